// The one way to ask for the time. Rooms take a Clock, so that tests and simulations can turn it by hand.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera::base {

using Nanoseconds = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic time since an arbitrary origin. Thread-safe.
  virtual Nanoseconds now() const = 0;
  // Seconds since 1970-01-01 UTC, for timestamps in API objects. Thread-safe.
  virtual std::int64_t unix_seconds() const = 0;
};

class SystemClock final : public Clock {
 public:
  Nanoseconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  std::int64_t unix_seconds() const override {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

// Stands still until advanced.
class ManualClock final : public Clock {
 public:
  Nanoseconds now() const override { return Nanoseconds(now_.load()); }
  std::int64_t unix_seconds() const override { return now_.load() / 1'000'000'000; }
  void advance(Nanoseconds duration) { now_.fetch_add(duration.count()); }

 private:
  std::atomic<std::int64_t> now_{0};
};

}  // namespace tessera::base
