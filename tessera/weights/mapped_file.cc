#include "tessera/weights/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::weights {

namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace

base::Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. It has no effect on regular files.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    std::string message = fmt::format("{}: cannot be opened: {}", path.string(), error_text(error));
    return base::failure(error == ENOENT ? base::not_found(std::move(message))
                                         : base::invalid_argument(std::move(message)));
  }
  MappedFile file(path, descriptor, 0);
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    return base::failure(base::data_loss(fmt::format("{}: {}", path.string(), error_text(errno))));
  }
  if (!S_ISREG(status.st_mode)) {
    return base::failure(base::invalid_argument(fmt::format("{}: expected a regular file", path.string())));
  }
  file.size_ = status.st_size;
  return file;
}

MappedFile::MappedFile(std::filesystem::path path, int descriptor, std::int64_t size)
    : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(std::exchange(other.size_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    size_ = std::exchange(other.size_, 0);
    mapping_ = std::exchange(other.mapping_, nullptr);
  }
  return *this;
}

MappedFile::~MappedFile() { close(); }

void MappedFile::close() noexcept {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), static_cast<std::size_t>(size_));
  if (descriptor_ >= 0) ::close(descriptor_);
  mapping_ = nullptr;
  descriptor_ = -1;
}

base::Status MappedFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  TESSERA_CHECK(descriptor_ >= 0, "read_at after map");
  TESSERA_CHECK(offset >= 0 && offset <= size_ && std::ssize(out) <= size_ - offset);
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(descriptor_, out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return base::data_loss(fmt::format("{}: cannot be read: {}", path_.string(), error_text(errno)));
    if (count == 0) return base::data_loss(fmt::format("{}: became shorter while it was read", path_.string()));
    done += static_cast<std::size_t>(count);
  }
  return base::ok_status();
}

base::Status MappedFile::map() {
  TESSERA_CHECK(descriptor_ >= 0 && mapping_ == nullptr, "map is called once");
  TESSERA_CHECK(size_ > 0, "an empty file cannot be mapped");
  void* address = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (address == MAP_FAILED) {
    return base::resource_exhausted(
        fmt::format("{}: mapping {} bytes failed: {}", path_.string(), size_, error_text(errno)));
  }
  mapping_ = static_cast<const std::byte*>(address);
  ::close(std::exchange(descriptor_, -1));
  return base::ok_status();
}

base::Result<std::string> read_text_file(const std::filesystem::path& path, std::int64_t bytes_max) {
  TESSERA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.size() > bytes_max) {
    return base::failure(
        base::out_of_range(fmt::format("{}: {} bytes, expected at most {}", path.string(), file.size(), bytes_max)));
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  TESSERA_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace tessera::weights
