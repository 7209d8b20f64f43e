#include "tests/simulation/wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/kv_transfer/wire.h"
#include "tessera/request/handoff_ticket.h"

namespace tessera::simulation {

namespace wire = kv_transfer::wire;

namespace {

// Where docs/kv_page.md says that they stand.
constexpr std::size_t kTypeAt = 6;
constexpr std::size_t kHandoffAt = 16;
constexpr std::size_t kFirstPageAt = 48 + 4;
constexpr std::size_t kPagesAt = 48 + 8;
constexpr std::size_t kBlobAt = static_cast<std::size_t>(wire::kOfferBytesMin);

template <typename T>
T read_at(const std::vector<std::byte>& bytes, std::size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

enum class WireFault : std::uint8_t { kDrop, kDuplicate, kDelay, kOvertaken, kFlip, kTruncate };

}  // namespace

Wire::Wire(Options options, kv_transfer::LoopbackTransport& transport, const base::Clock& clock, Judge& judge,
           Trace& trace, Dice dice)
    : options_(std::move(options)), transport_(transport), clock_(clock), judge_(judge), trace_(trace), dice_(dice) {
  transport_.set_filter([this](kv_transfer::PeerId from, kv_transfer::PeerId to, std::vector<std::byte> bytes) {
    take({from, to, std::move(bytes)});
  });
}

void Wire::take(Message message) {
  ++messages_;
  const kv_transfer::PeerId sender = options_.sends(message.from) ? message.from : message.to;
  const auto handoff = read_at<std::uint64_t>(message.bytes, kHandoffAt);
  const auto type = static_cast<wire::MessageType>(read_at<std::uint16_t>(message.bytes, kTypeAt));
  if (type == wire::MessageType::kOffer) note_offer(message, sender, handoff);
  if (const auto found = sequence_of_.find({sender, handoff}); found != sequence_of_.end()) {
    if (type == wire::MessageType::kPageData) {
      options_.sent(sender, found->second, read_at<std::int32_t>(message.bytes, kFirstPageAt),
                    read_at<std::int32_t>(message.bytes, kPagesAt));
    } else if (type == wire::MessageType::kCommit) {
      options_.committing(sender, found->second);
    }
  }
  // In order, unless something happens to it.
  base::Nanoseconds& last = last_due_[{message.from, message.to}];
  last = std::max(last, clock_.now() + options_.turn * dice_.range(0, options_.latency_turns_max));
  if (dice_.chance(options_.fault_rate)) {
    disturb(std::move(message), sender, handoff, last);
  } else if (last <= clock_.now()) {
    transport_.deliver(message.from, message.to, std::move(message.bytes));
  } else {
    send(last, std::move(message));
  }
}

void Wire::note_offer(const Message& message, kv_transfer::PeerId sender, std::uint64_t handoff) {
  if (message.bytes.size() <= kBlobAt) return;
  const auto ticket = request::decode_ticket(std::span(message.bytes).subspan(kBlobAt));
  if (ticket.has_value()) sequence_of_[{sender, handoff}] = ticket->spec.id;
}

void Wire::disturb(Message message, kv_transfer::PeerId sender, std::uint64_t handoff, base::Nanoseconds due) {
  if (const auto found = sequence_of_.find({sender, handoff}); found != sequence_of_.end()) {
    judge_.may_be_lost(found->second);
  } else {
    options_.session_disturbed(sender, message.from == sender ? message.to : message.from);
  }
  const auto fault = static_cast<WireFault>(dice_.range(0, std::ssize(kWireFaultNames) - 1));
  ++disturbed_[static_cast<std::size_t>(fault)];
  trace_.add(kWireFaultNames[static_cast<std::size_t>(fault)], message.from, message.to, handoff);
  const auto some_turns = [&](std::int64_t most) { return options_.turn * dice_.range(1, most); };
  switch (fault) {
    case WireFault::kDrop:
      return;
    case WireFault::kDuplicate:
      send(due + some_turns(200), message);
      break;
    case WireFault::kDelay:  // Perhaps for longer than the other side waits.
      due += dice_.chance(0.1) ? options_.handoff_timeout : some_turns(500);
      break;
    case WireFault::kOvertaken:  // Of page data: the word that all is there comes before the data.
      due += some_turns(5);
      break;
    case WireFault::kFlip: {
      const std::int64_t bit = dice_.range(0, 8 * std::ssize(message.bytes) - 1);
      message.bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::byte>(1 << (bit % 8));
      break;
    }
    case WireFault::kTruncate:
      message.bytes.resize(static_cast<std::size_t>(dice_.range(0, std::ssize(message.bytes) - 1)));
      break;
  }
  send(due, std::move(message));
}

void Wire::send(base::Nanoseconds due, Message message) {
  under_way_.emplace(std::pair{due, sent_++}, std::move(message));
}

void Wire::deliver() {
  while (!under_way_.empty() && under_way_.begin()->first.first <= clock_.now()) {
    Message message = std::move(under_way_.begin()->second);
    under_way_.erase(under_way_.begin());
    transport_.deliver(message.from, message.to, std::move(message.bytes));
  }
}

std::optional<base::Nanoseconds> Wire::next_arrival() const {
  if (under_way_.empty()) return std::nullopt;
  return under_way_.begin()->first.first;
}

}  // namespace tessera::simulation
