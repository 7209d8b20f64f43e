// What happened in a run, in order: as one number, by which two runs are compared, and on request as lines of text.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/clock.h"

namespace tessera::simulation {

enum class Printing : std::uint8_t { kOff, kOn };

class Trace {
 public:
  Trace(const base::Clock& clock, Printing printing) : clock_(clock), printing_(printing) {}
  // One thing of a kind that happened, with the numbers that say which.
  void add(std::string_view what, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0) {
    for (const char letter : what) fold(static_cast<std::uint64_t>(letter));
    fold(a);
    fold(b);
    fold(c);
    fold(static_cast<std::uint64_t>(clock_.now().count()));
    if (printing_ == Printing::kOn) {
      fmt::print("{:>12.4f} ms  {:<12} {:>8} {:>8} {:>8}\n", static_cast<double>(clock_.now().count()) * 1e-6, what, a,
                 b, c);
    }
  }
  std::uint64_t hash() const { return hash_; }

 private:
  void fold(std::uint64_t value) { hash_ = base::mix64((hash_ ^ value) + base::kMix64Step); }
  const base::Clock& clock_;
  const Printing printing_;
  std::uint64_t hash_ = 0;
};

}  // namespace tessera::simulation
