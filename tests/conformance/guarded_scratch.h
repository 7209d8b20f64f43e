// Scratch memory of an op as the cases lend it: watched, and as large as an engine would make it.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {

// Scratch memory of an op between two stretches of known bytes: an op that writes past either end is found out. It
// holds NaN, so that one which relies on what was there before spoils its result.
class GuardedScratch {
 public:
  GuardedScratch(Device& device, std::int64_t bytes);
  std::byte* data() const { return buffer_.data() + kGuardBytes; }
  // Fails the case when what lies around the scratch was written to.
  void expect_guards_whole() const;

 private:
  static constexpr std::int64_t kGuardBytes = 256;  // So data() is aligned as backends may ask.
  static constexpr std::byte kGuard{0xa5};
  Device& device_;
  std::int64_t bytes_;
  ops::Buffer buffer_;
};

// Bytes by which scratch may grow with a token of context, whatever the number of tokens (ops/backend.h).
inline constexpr std::int64_t kScratchBytesAContextToken = 256;

// What scratch is sized for, where it is more than a case's own batch: an engine sizes it once.
struct ScratchSize {
  std::int64_t tokens = 1;
  std::int64_t context = 1;
};

inline GuardedScratch::GuardedScratch(Device& device, std::int64_t bytes)
    : device_(device), bytes_(bytes), buffer_(device.allocate(bytes + 2 * kGuardBytes)) {
  EXPECT_GE(bytes, 0);
  std::vector<std::byte> host(static_cast<std::size_t>(bytes + 2 * kGuardBytes), std::byte{0xff});
  std::fill_n(host.begin(), kGuardBytes, kGuard);
  std::fill_n(host.end() - kGuardBytes, kGuardBytes, kGuard);
  device.backend().copy_to_device(device.stream(), buffer_.data(), host.data(), std::ssize(host));
}

inline void GuardedScratch::expect_guards_whole() const {
  for (const std::int64_t begin : {std::int64_t{0}, kGuardBytes + bytes_}) {
    const std::vector<std::byte> guard = device_.download(buffer_.data() + begin, kGuardBytes);
    EXPECT_EQ(std::count(guard.begin(), guard.end(), kGuard), kGuardBytes)
        << "the op wrote " << (begin == 0 ? "before" : "past the end of") << " its " << bytes_ << " bytes of scratch";
  }
}

}  // namespace tessera::conformance
