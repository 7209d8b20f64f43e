// A target with a planted fault: it reads one byte past a buffer, but only for inputs that begin with "tag:". Finding
// it takes coverage feedback (four bytes are not guessed blindly in the time given) and address sanitizer (the read is
// harmless otherwise), so a green canary shows that both are at work in the other targets.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

int read_payload(const std::vector<std::uint8_t>& bytes) {
  if (bytes.size() < 4) return 0;
  if (bytes[0] != 't') return 1;
  if (bytes[1] != 'a') return 2;
  if (bytes[2] != 'g') return 3;
  if (bytes[3] != ':') return 4;
  const volatile std::uint8_t* end = bytes.data() + bytes.size();
  return *end;  // The planted fault.
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> bytes(data, data + size);
  bytes.shrink_to_fit();
  return read_payload(bytes) < 0 ? 1 : 0;
}
