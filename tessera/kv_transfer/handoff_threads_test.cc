// Both engines with threads of their own, as they run in one process: only the transport is shared.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/handoff_pair.h"

namespace tessera::kv_transfer {
namespace {

using tests::HandoffPair;
using tests::HandoffPairOptions;

// Sleeps until the transport says that there is something to do.
class Doorbell {
 public:
  void ring() {
    {
      std::lock_guard lock(mutex_);
      rung_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

TEST(HandoffThreads, EnginesMeetOnlyInTheTransport) {
  constexpr int kHandoffs = 24;
  HandoffPairOptions options;
  options.bytes_in_flight_max = 20'000;
  options.prefill_pages = options.decode_pages = 64;
  Doorbell sender_bell;  // Rung until the last endpoint has gone.
  Doorbell receiver_bell;
  HandoffPair pair(options);
  pair.prefill_endpoint->set_wakeup([&] { sender_bell.ring(); });
  pair.decode_endpoint->set_wakeup([&] { receiver_bell.ring(); });
  std::atomic<bool> stop = false;

  std::thread decode([&] {
    while (!stop) {
      if (!pair.receiver->tick()) receiver_bell.wait();
      pair.take_receive_events();
    }
  });
  std::thread prefill([&] {
    int offered = 0;
    while (std::ssize(pair.send_events) < kHandoffs) {
      // At most four at once: the pools are small.
      for (; offered < kHandoffs && pair.sender->live() < 4; ++offered) {
        const std::int32_t kv_len = 1 + offered * 17 % 200;
        pair.offer(pair.prefill(kv_len), kv_len);
      }
      if (!pair.sender->tick()) sender_bell.wait();
      pair.take_send_events();
    }
  });
  prefill.join();
  stop = true;
  receiver_bell.ring();
  decode.join();
  int done = 0;
  for (const auto& [id, event] : pair.send_events) done += event.outcome == SendOutcome::kDone ? 1 : 0;
  // The decode side keeps what was committed until the end, so that later ones are rejected when its pool is full.
  EXPECT_EQ(done, std::ssize(pair.committed));
  EXPECT_GE(done, 16);
  pair.expect_balance();
}

}  // namespace
}  // namespace tessera::kv_transfer
