#include "tessera/kv_transfer/loopback_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::kv_transfer {
namespace {

std::vector<std::byte> message_of(std::size_t bytes, int fill = 0) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(fill));
}

TEST(LoopbackTransport, DeliversInOrderWithTheSendersNumber) {
  LoopbackTransport transport({});
  auto a = transport.make_endpoint(1);
  auto b = transport.make_endpoint(2);
  EXPECT_EQ(a->id(), 1u);
  EXPECT_FALSE(b->poll().has_value());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(a->try_send(2, message_of(4, i)), SendResult::kSent);
  EXPECT_EQ(b->try_send(2, message_of(4, 9)), SendResult::kSent);
  for (int i = 0; i < 3; ++i) {
    const auto envelope = b->poll();
    ASSERT_TRUE(envelope.has_value());
    EXPECT_EQ(envelope->from, 1u);
    EXPECT_EQ(envelope->bytes, message_of(4, i));
  }
  EXPECT_EQ(b->poll()->from, 2u);
  EXPECT_FALSE(a->poll().has_value());
}

TEST(LoopbackTransport, BoundsBytesInFlightAndWakesWhoWaits) {
  int wakeups_a = 0;  // Counted until the last endpoint has gone.
  int wakeups_b = 0;
  LoopbackTransport transport({.bytes_in_flight_max = 100});
  auto a = transport.make_endpoint(1);
  auto b = transport.make_endpoint(2);
  auto c = transport.make_endpoint(3);
  a->set_wakeup([&] { ++wakeups_a; });
  b->set_wakeup([&] { ++wakeups_b; });
  EXPECT_EQ(a->message_bytes_max(), 100);
  EXPECT_EQ(a->try_send(2, message_of(60)), SendResult::kSent);
  EXPECT_EQ(wakeups_b, 1);
  std::vector<std::byte> kept = message_of(41);
  EXPECT_EQ(a->try_send(2, std::move(kept)), SendResult::kFull);
  EXPECT_EQ(kept.size(), 41u);  // NOLINT(bugprone-use-after-move): a refused message is untouched.
  EXPECT_EQ(c->try_send(2, message_of(100)), SendResult::kSent);  // Bounded for each pair.
  EXPECT_EQ(a->try_send(2, message_of(40)), SendResult::kSent);
  EXPECT_EQ(wakeups_a, 0);
  EXPECT_TRUE(b->poll().has_value());
  EXPECT_EQ(wakeups_a, 1);
  EXPECT_EQ(a->try_send(2, std::move(kept)), SendResult::kSent);
  EXPECT_TRUE(b->poll().has_value());
  EXPECT_EQ(wakeups_a, 1);  // Nobody waited.
}

TEST(LoopbackTransport, KnowsWhoIsGone) {
  int wakeups = 0;  // Counted until the last endpoint has gone.
  LoopbackTransport transport({});
  auto a = transport.make_endpoint(1);
  EXPECT_FALSE(a->reachable(2));
  std::vector<std::byte> kept = message_of(3);
  EXPECT_EQ(a->try_send(2, std::move(kept)), SendResult::kGone);
  EXPECT_EQ(kept.size(), 3u);  // NOLINT(bugprone-use-after-move): a refused message is untouched.
  auto b = transport.make_endpoint(2);
  EXPECT_TRUE(a->reachable(2));
  EXPECT_EQ(b->try_send(1, message_of(5)), SendResult::kSent);
  a->set_wakeup([&] { ++wakeups; });
  b.reset();
  EXPECT_EQ(wakeups, 1);
  EXPECT_FALSE(a->reachable(2));
  EXPECT_EQ(a->poll()->bytes, message_of(5));  // What it sent before is still there.
  b = transport.make_endpoint(2);
  EXPECT_FALSE(b->poll().has_value());
}

TEST(LoopbackTransport, FilterHasEveryMessage) {
  LoopbackTransport transport({});
  auto a = transport.make_endpoint(1);
  auto b = transport.make_endpoint(2);
  transport.set_filter([&](PeerId from, PeerId to, std::vector<std::byte> message) {
    message.push_back(std::byte{7});
    transport.deliver(from, to, message);
    transport.deliver(from, to, message);
  });
  EXPECT_EQ(a->try_send(2, message_of(1)), SendResult::kSent);
  EXPECT_EQ(b->poll()->bytes.size(), 2u);
  EXPECT_EQ(b->poll()->bytes.size(), 2u);
  transport.set_filter({});
  EXPECT_EQ(a->try_send(2, message_of(1)), SendResult::kSent);
  EXPECT_EQ(b->poll()->bytes.size(), 1u);
  transport.deliver(1, 99, message_of(1));  // To nobody.
}

TEST(LoopbackTransport, EndpointsOutliveIt) {
  std::optional<LoopbackTransport> transport(LoopbackOptions{});
  auto a = transport->make_endpoint(1);
  auto b = transport->make_endpoint(2);
  transport.reset();
  EXPECT_EQ(a->try_send(2, message_of(1)), SendResult::kSent);
  EXPECT_TRUE(b->poll().has_value());
}

TEST(LoopbackTransport, ServesThreads) {
  constexpr int kMessages = 500;
  LoopbackTransport transport({.bytes_in_flight_max = 64});
  auto receiver = transport.make_endpoint(9);
  std::atomic<int> wakeups = 0;
  receiver->set_wakeup([&] { ++wakeups; });
  std::vector<std::thread> senders;
  for (PeerId id = 1; id <= 3; ++id) {
    senders.emplace_back([&transport, id] {
      auto endpoint = transport.make_endpoint(id);
      for (int i = 0; i < kMessages;) {
        if (endpoint->try_send(9, message_of(8, i)) == SendResult::kSent)
          ++i;
        else
          std::this_thread::yield();
      }
    });
  }
  int next[4] = {};
  for (int received = 0; received < 3 * kMessages;) {
    const auto envelope = receiver->poll();
    if (!envelope.has_value()) {
      std::this_thread::yield();
      continue;
    }
    ++received;
    ASSERT_EQ(envelope->bytes[0], static_cast<std::byte>(next[envelope->from]++));
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_GE(wakeups.load(), 3 * kMessages);
}

TEST(LoopbackTransportDeathTest, MisuseAborts) {
  LoopbackTransport transport({.bytes_in_flight_max = 10});
  auto a = transport.make_endpoint(1);
  EXPECT_DEATH(static_cast<void>(a->try_send(1, message_of(11))), "11 bytes");
  EXPECT_DEATH(transport.make_endpoint(1), "two endpoints");
}

}  // namespace
}  // namespace tessera::kv_transfer
