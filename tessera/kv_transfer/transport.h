// How the two sides of a handoff talk: whole messages of bytes between endpoints that are known by a small number. Only
// bytes cross, never a pointer, so that a process or a network may lie between.
//
// A transport may drop, duplicate, reorder or damage messages, and the protocol above it (wire.h, handoff.h) ends such
// a handoff without harm; but it is meant to be reliable and ordered, and only then are handoffs fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera::kv_transfer {

// Which endpoint: given out by whoever wires the engines together.
using PeerId = std::uint32_t;

enum class SendResult : std::uint8_t {
  kSent,  // The transport has the message.
  kFull,  // Too many bytes are on their way to that peer; try again later.
  kGone,  // No such peer (any more).
};

struct Envelope {
  PeerId from = 0;
  std::vector<std::byte> bytes;
};

// One engine's end. It belongs to one Sender or one Receiver and is used from its engine's thread.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual PeerId id() const = 0;
  // The largest message that try_send can ever take. Larger ones are a programmer's error.
  virtual std::int64_t message_bytes_max() const = 0;
  // Never waits. On kFull and kGone the message is untouched.
  [[nodiscard]] virtual SendResult try_send(PeerId to, std::vector<std::byte>&& message) = 0;
  // The next message, if one is there. Never waits.
  virtual std::optional<Envelope> poll() = 0;
  // False once the peer is known to be gone: nothing of it will arrive any more, except what poll still holds.
  virtual bool reachable(PeerId peer) const = 0;
  // Called, from any thread, when a message arrives, when room appears after kFull, or when a peer goes away: an engine
  // that sleeps wakes up and ticks. It must not call into the transport, nor block.
  virtual void set_wakeup(std::function<void()> wakeup) = 0;
};

}  // namespace tessera::kv_transfer
