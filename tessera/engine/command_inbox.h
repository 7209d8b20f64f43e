// The engine's end of its command queue: bounded, and also what the engine sleeps on, so that a transport can wake it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/request/messages.h"

namespace tessera::engine {

// Thread-safe: any thread pushes and wakes, the engine's thread takes and waits.
class CommandInbox {
 public:
  explicit CommandInbox(std::size_t capacity) : capacity_(capacity) {}

  // False when full or closed.
  [[nodiscard]] bool try_push(request::EngineCommand&& command) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || commands_.size() >= capacity_) return false;
      commands_.push_back(std::move(command));
    }
    changed_.notify_one();
    return true;
  }

  // Ends the current or the next wait.
  void wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

  // No command gets in any more.
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

  // All commands, in order.
  std::vector<request::EngineCommand> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(commands_, {});
  }

  // Returns when there is a command, when somebody called wake since the last wait, or when the time is over.
  void wait_for(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return woken_ || !commands_.empty(); });
    woken_ = false;
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<request::EngineCommand> commands_;
  bool woken_ = false;
  bool closed_ = false;
};

}  // namespace tessera::engine
