// Checkpoint files from outside: a whole safetensors file (length, header, data), and an index. Whatever is accepted
// must be what the rooms above rely on: tensors that tile the data, bytes that can be read, shard names without a path.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/weights/checkpoint.h"
#include "tessera/weights/safetensors.h"

namespace {

using namespace tessera::weights;

// A file in memory, which has a path and is regular.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(::memfd_create("safetensors_fuzz", 0)) {
    TESSERA_CHECK(descriptor_ >= 0);
    for (std::size_t done = 0; done < size;) {
      const ssize_t count = ::write(descriptor_, data + done, size - done);
      TESSERA_CHECK(count > 0);
      done += static_cast<std::size_t>(count);
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void check_file(const std::uint8_t* data, std::size_t size) {
  const MemoryFile memory(data, size);
  auto file = SafetensorsFile::open(memory.path());
  if (!file.has_value()) {
    TESSERA_CHECK(!file.error().message().empty());
    return;
  }
  TESSERA_CHECK(file->map().ok());
  std::int64_t end = 0;
  unsigned sum = 0;
  for (const TensorInfo& tensor : file->tensors()) {
    TESSERA_CHECK(!tensor.name.empty() && tensor.offset == end && tensor.bytes >= 0);
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    TESSERA_CHECK(elements * tessera::base::dtype_size(tensor.dtype) == tensor.bytes);
    for (const std::byte byte : file->data(tensor)) sum += std::to_integer<unsigned>(byte);
    end += tensor.bytes;
  }
  TESSERA_CHECK(end <= file->file_bytes());
  volatile const unsigned keeps_the_reads = sum;
  static_cast<void>(keeps_the_reads);
}

void check_index(std::string_view text) {
  const auto index = parse_checkpoint_index(text, "index.json");
  if (!index.has_value()) return;
  TESSERA_CHECK(!index->empty());
  for (const auto& [tensor, shard] : *index) {
    TESSERA_CHECK(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos);
    TESSERA_CHECK(shard.ends_with(".safetensors") && shard.front() != '.');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_file(data, size);
  check_index({reinterpret_cast<const char*>(data), size});
  return 0;
}
