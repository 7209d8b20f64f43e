// The prefill engine's side of all its handoffs. It is ticked from the engine's loop and never waits: each tick reads
// what peers said and gathers, converts and sends a bounded number of chunks. Used from the engine's thread.
//
// Pages are the engine's. From offer() until the event that ends the handoff the engine keeps the leases; then it
// releases them. Every handoff that offer() took ends with exactly one event. Nobody writes to a sender's pages, so no
// fence is needed here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/status.h"
#include "tessera/kv_cache/digest_checker.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_transfer/handoff.h"
#include "tessera/kv_transfer/transport.h"
#include "tessera/ops/backend.h"

namespace tessera::kv_transfer {

struct SenderOptions {
  std::string model_digest;                        // Receivers must have the same.
  std::int32_t kv_len_max = 0;                     // Longest sequence that is ever offered.
  std::int32_t chunk_pages = 16;                   // Pages of one layer in a message, at most.
  std::int32_t chunks_per_tick = 16;               // Bounds what one tick takes of the engine's time.
  std::int32_t handoffs_max = 256;                 // Live at once.
  base::Nanoseconds timeout{30'000'000'000};       // Of a receiver's silence, and of a transfer; see handoff.h.
  base::Nanoseconds resend_interval{200'000'000};  // Of control messages that were not answered.
  // Levels with digests: what was sent is compared with what was once written before the receiver may commit it. Null:
  // it is not. Outlives the sender.
  kv_cache::DigestChecker* digests = nullptr;
};

// When a layer's KV may be read.
enum class LayerReadiness : std::uint8_t {
  kAll,         // Prefill is over.
  kAsComputed,  // Layers become ready by Sender::layer_ready.
};

struct HandoffRequest {
  HandoffId id = 0;
  PeerId peer = 0;
  std::vector<std::byte> blob;              // Handed to the receiving engine as it is; at most wire::kBlobBytesMax.
  std::span<const kv_cache::Lease> leases;  // Logical page j is leases[j]; exactly ceil(kv_len / page_size). Copied.
  std::int32_t kv_len = 0;
  LayerReadiness readiness = LayerReadiness::kAll;
};

enum class SendOutcome : std::uint8_t { kDone, kAborted };

// An abort after everything was sent does not prove that the receiver did not commit (its answer may be lost): whether
// the sequence runs is for the receiving engine to say.
struct SendEvent {
  HandoffId id = 0;
  SendOutcome outcome = SendOutcome::kAborted;
  // Why it aborted. Corruption, data_loss: bytes are not those that were written, in a pool or on the way; peers that
  // do not speak the same protocol are internal errors.
  base::Status status = {};
  // Set when a page failed its check: what the engine does with such pages is what it does after a step.
  std::optional<ops::RowVerdict> verdict = {};
  FoundBy found_by = FoundBy::kHere;
  HandoffStatistics statistics = {};
};

class Sender {
 public:
  // Allocates its device memory (staging for one chunk, page check) once. Everything passed must outlive it. KV is
  // read on `stream`, on which the engine also writes it.
  static base::Result<std::unique_ptr<Sender>> create(ops::Backend& backend, ops::Stream& stream,
                                                      const kv_cache::PagePool& pool, Endpoint& endpoint,
                                                      const base::Clock& clock, const SenderOptions& options);
  ~Sender();

  // Starts a handoff. resource_exhausted: too many are live; out_of_range: longer than kv_len_max, or the blob is too
  // large; unavailable: the peer is gone; invalid_argument: the peer refused us (layout, model). Then nothing happened,
  // and there will be no event. A wrong number of leases, or an id used before, is a programmer's error.
  base::Status offer(const HandoffRequest& request);
  // All tokens' KV is written in layers 0 .. layer. Ignored when the handoff is over.
  void layer_ready(HandoffId id, std::int32_t layer);
  // Ends a handoff from this side; its event follows. Ignored when it is over already.
  void abort(HandoffId id, base::Status reason);

  // True when it did something: then another tick may find more to do at once.
  bool tick();
  // Events since the last call.
  std::vector<SendEvent> take_events();

  std::int64_t live() const;
  // Of them, those that a receiver has given pages to: the others wait for its room.
  std::int64_t accepted() const;
  // When tick must be called next even if nothing arrives (a deadline, a resend); empty when nothing is live.
  std::optional<base::Nanoseconds> next_deadline() const;
  std::optional<SendState> state(HandoffId id) const;  // Empty once it is over.
  // The handoff is over here, and its receiver has yet to confirm that it knows; until its confirmation, or a timeout
  // later. What it was about is best not offered to that receiver again before.
  bool is_ending(HandoffId id) const;
  std::int64_t malformed_messages() const;
  std::int64_t device_bytes() const;

 private:
  struct Impl;
  explicit Sender(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::kv_transfer
