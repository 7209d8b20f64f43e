// The way between engines: messages take their time, and, where faults are asked for, are lost, doubled, overtaken, cut
// or changed. Knows whose handoff each message belongs to, and tells the judge whose was disturbed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/judge.h"
#include "tests/simulation/trace.h"

namespace tessera::simulation {

inline constexpr std::array<std::string_view, 6> kWireFaultNames = {"dropped",   "doubled", "delayed",
                                                                    "overtaken", "flipped", "cut"};
using WireFaultCounts = std::array<std::int64_t, kWireFaultNames.size()>;

class Wire {
 public:
  struct Options {
    base::Nanoseconds turn{0};
    std::int64_t latency_turns_max = 0;
    double fault_rate = 0.0;                         // Of messages.
    base::Nanoseconds handoff_timeout{0};            // Some messages are late by so much.
    std::function<bool(kv_transfer::PeerId)> sends;  // Whether it is a prefill engine.
    // It has sent so many pages of a sequence, from the first one on; it has said that all are sent.
    std::function<void(kv_transfer::PeerId, request::SequenceId, std::int64_t first, std::int64_t count)> sent;
    std::function<void(kv_transfer::PeerId, request::SequenceId)> committing;
    // What two engines say of no sequence alone was disturbed.
    std::function<void(kv_transfer::PeerId sender, kv_transfer::PeerId receiver)> session_disturbed;
  };
  Wire(Options options, kv_transfer::LoopbackTransport& transport, const base::Clock& clock, Judge& judge, Trace& trace,
       Dice dice);

  // What is due arrives.
  void deliver();
  std::optional<base::Nanoseconds> next_arrival() const;
  void end_faults() { options_.fault_rate = 0.0; }
  std::int64_t messages() const { return messages_; }
  const WireFaultCounts& disturbed() const { return disturbed_; }

 private:
  struct Message {
    kv_transfer::PeerId from = 0;
    kv_transfer::PeerId to = 0;
    std::vector<std::byte> bytes;
  };
  void take(Message message);
  void note_offer(const Message& message, kv_transfer::PeerId sender, std::uint64_t handoff);
  void disturb(Message message, kv_transfer::PeerId sender, std::uint64_t handoff, base::Nanoseconds due);
  void send(base::Nanoseconds due, Message message);

  Options options_;
  kv_transfer::LoopbackTransport& transport_;
  const base::Clock& clock_;
  Judge& judge_;
  Trace& trace_;
  Dice dice_;
  std::map<std::pair<base::Nanoseconds, std::int64_t>, Message> under_way_;  // By arrival, then in order.
  std::map<std::pair<kv_transfer::PeerId, kv_transfer::PeerId>, base::Nanoseconds> last_due_;
  // Of the latest life of a sender.
  std::map<std::pair<kv_transfer::PeerId, std::uint64_t>, request::SequenceId> sequence_of_;
  std::int64_t sent_ = 0;
  std::int64_t messages_ = 0;
  WireFaultCounts disturbed_{};
};

}  // namespace tessera::simulation
