// A backend that passes everything on to another one, except that a chosen allocation of device memory fails. For
// tests of "fail the n-th allocation, for every n".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/ops/forwarding_backend.h"

namespace tessera::tests {

class FailingBackend final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // The n-th allocation from now fails (1: the next); 0: none.
  void fail_nth_allocation(std::int64_t n) { until_failure_ = n; }
  // Whether the failure was reached.
  bool failed() const { return failed_; }
  std::int64_t allocations() const { return allocations_; }

  base::Result<ops::Buffer> allocate(std::int64_t bytes, std::string_view what) override {
    ++allocations_;
    if (until_failure_ > 0 && --until_failure_ == 0) {
      failed_ = true;
      return base::failure(base::resource_exhausted("injected: no memory for " + std::string(what)));
    }
    return ForwardingBackend::allocate(bytes, what);
  }

 private:
  std::int64_t until_failure_ = 0;
  std::int64_t allocations_ = 0;
  bool failed_ = false;
};

}  // namespace tessera::tests
