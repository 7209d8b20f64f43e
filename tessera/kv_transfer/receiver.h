// The decode engine's side of all its handoffs. It is ticked from the engine's loop and never waits: each tick takes a
// bounded number of messages, stores what they bring and checks its digest. Used from the engine's thread.
//
// Pages are the engine's. It is asked by OfferReceived and answers accept (with leases for every logical page) or
// reject, whenever it likes: until then the sender is told that its offer waits. After accept exactly one of
// HandoffCommitted and HandoffAborted follows; until then the engine keeps the leases and leaves the pages alone. On
// HandoffCommitted what was in transfer is live (kv_cache::PagePool::end_receive). On HandoffAborted the engine first
// quarantines the pages that the event lists, fences (PagePool::fence) those that are in transfer still, as the peer
// writes nothing to them, then releases all leases. HandoffFenced lists the pages in quarantine that it is to fence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/status.h"
#include "tessera/kv_cache/integrity.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_transfer/handoff.h"
#include "tessera/kv_transfer/transport.h"
#include "tessera/ops/backend.h"

namespace tessera::kv_transfer {

struct ReceiverOptions {
  std::string model_digest;
  std::int32_t kv_len_max = 0;  // Longer offers are refused before the engine hears of them.
  std::int32_t chunk_pages_max = 16;
  std::int32_t messages_per_tick = 32;        // Bounds what one tick takes of the engine's time.
  std::int32_t handoffs_max = 256;            // Live at once; more are refused with resource_exhausted.
  base::Nanoseconds timeout{30'000'000'000};  // Of a sender's silence, and of a transfer; never above the sender's own.
  base::Nanoseconds resend_interval{200'000'000};
  // Levels with digests: what is stored is added to the pool's digests as soon as it is.
  kv_cache::IntegrityLevel integrity = kv_cache::IntegrityLevel::kTags;
};

// Which handoff, seen from a receiver. Different senders may use the same ids.
struct HandoffKey {
  PeerId peer = 0;
  HandoffId id = 0;
  friend auto operator<=>(const HandoffKey&, const HandoffKey&) = default;
};

struct OfferReceived {
  HandoffKey key;
  std::int32_t kv_len = 0;
  std::vector<std::byte> blob;  // From outside: the engine parses it with care.
};

// The KV of all kv_len tokens is in the pages, verified. The sequence may run.
struct HandoffCommitted {
  HandoffKey key;
  HandoffStatistics statistics;
};

// By its lease, not its number: a lease that has ended since says nothing of whose page it is by now, and is passed
// over.
struct PageToQuarantine {
  kv_cache::Lease lease;
  kv_cache::QuarantineCause cause = kv_cache::QuarantineCause::kWriteInFlight;
};

struct HandoffAborted {
  HandoffKey key;
  base::Status status;
  // To be quarantined, each for its cause, before the leases are released: the pages that failed a check, and, while
  // the peer may still write, all that it was to fill. Empty when no page was given yet, or when the peer is gone or
  // said itself that it will send nothing more.
  std::vector<PageToQuarantine> quarantine;
  std::optional<ops::RowVerdict> verdict;  // Set when a page failed its tag check.
  FoundBy found_by = FoundBy::kHere;
};

// No write of the peer to these pages can come any more: those that its HandoffAborted listed.
struct HandoffFenced {
  HandoffKey key;
  std::vector<kv_cache::PageId> pages;
};

using ReceiveEvent = std::variant<OfferReceived, HandoffCommitted, HandoffAborted, HandoffFenced>;

class Receiver {
 public:
  // Allocates its device memory once. Everything passed must outlive it. KV is written on `stream`, on which the engine
  // also reads it.
  static base::Result<std::unique_ptr<Receiver>> create(ops::Backend& backend, ops::Stream& stream,
                                                        const kv_cache::PagePool& pool, Endpoint& endpoint,
                                                        const base::Clock& clock, const ReceiverOptions& options);
  ~Receiver();

  // Answers an offer. leases has ceil(kv_len / page_size) entries (checked): the first `cached_pages` hold the same
  // tokens' KV already (a prefix hit); the others were allocated for this sequence alone and are in transfer
  // (kv_cache::PagePool::begin_receive; checked). Copied. not_found when the
  // handoff is over already (its HandoffAborted was, or will be, among the events, and lists no page): the engine
  // releases the leases.
  base::Status accept(const HandoffKey& key, std::span<const kv_cache::Lease> leases, std::int32_t cached_pages);
  // No event follows. Ignored when the handoff is over already.
  void reject(const HandoffKey& key, base::Status reason);
  // Ends a handoff from this side (the client left); HandoffAborted follows. Ignored when it is over already.
  void abort(const HandoffKey& key, base::Status reason);

  // True when it did something: then another tick may find more to do at once.
  bool tick();
  // Events since the last call, in order.
  std::vector<ReceiveEvent> take_events();

  std::int64_t live() const;
  // When tick must be called next even if nothing arrives; empty when nothing is live.
  std::optional<base::Nanoseconds> next_deadline() const;
  std::optional<ReceiveState> state(const HandoffKey& key) const;  // Empty once it is over.
  std::int64_t malformed_messages() const;
  std::int64_t device_bytes() const;

 private:
  struct Impl;
  explicit Receiver(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::kv_transfer
