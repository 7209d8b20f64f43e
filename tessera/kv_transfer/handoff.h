// The life of one handoff, on either side, as explicit state machines. They hold states, deadlines and what was sent or
// stored; they own no page, no device memory and no transport, and decide nothing: Sender and Receiver drive them.
//
//   sender:    kOffered [-> kQueued] -> kSending -> kAwaitingCommit -> kDone      any but kDone -> kAborted
//   receiver:  kOffered -> kAllocated -> kReceiving -> kVerifying -> kCommitted   any but kCommitted -> kAborted
//
// Terminal states are entered once and never left. A receiver that was started again has lost its queue: then kQueued
// goes back to kOffered.
//
// Deadlines. An offer may wait for pages for as long as it takes: what is limited is the peer's silence. The sender's
// deadline runs from a question (an Offer, a Queued) until its answer, the receiver's from the sender's last word. Once
// the offer is accepted, the rest has one deadline on either side, from the acceptance to the commit.
//
// The combined digest of a handoff is the sum modulo 2^64, over all pages of all layers that were sent, of
// digest_seed(page's digest, layer, logical page) (ops/page_transfer.h): it ties each page's digest to its place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/status.h"
#include "tessera/kv_transfer/wire.h"
#include "tessera/ops/verify.h"

namespace tessera::kv_transfer {

enum class SendState : std::uint8_t {
  kOffered,         // Waiting for the receiver's answer.
  kQueued,          // The receiver keeps the offer until it has pages for it.
  kSending,         // Accepted; chunks go out as layers are ready.
  kAwaitingCommit,  // All chunks and Commit went out.
  kDone,            // The receiver has committed.
  kAborted,
};

enum class ReceiveState : std::uint8_t {
  kOffered,    // In the engine's queue: it accepts once it has pages, or rejects.
  kAllocated,  // The engine gave pages; no chunk has come.
  kReceiving,
  kVerifying,  // Everything came; the last check is to be made.
  kCommitted,
  kAborted,
};

// Why a handoff ended in which a page failed its check while this side was `doing` something; for the log.
base::Status failed_page_check(const ops::RowVerdict& verdict, const char* doing);

// Which side found the reason of an abort. Where it was the peer, it said so, or it is gone.
enum class FoundBy : std::uint8_t { kHere, kPeer };

const char* send_state_name(SendState state);
const char* receive_state_name(ReceiveState state);

inline constexpr base::Nanoseconds kNoDeadline = base::Nanoseconds::max();

// For logs and metrics.
struct HandoffStatistics {
  std::int64_t pages = 0;         // Sent, each counted once for all its layers.
  std::int64_t pages_cached = 0;  // Not sent, because the receiver had them.
  std::int64_t bytes_before = 0;  // Of the pages sent, in the source's format.
  std::int64_t bytes_after = 0;   // In the target's format.
  base::Nanoseconds duration{0};  // From the offer to the end.
};

// Consecutive logical pages of one layer.
struct Chunk {
  std::int32_t layer = 0;
  std::int32_t first_page = 0;
  std::int32_t num_pages = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// What both sides know of a handoff from its offer.
struct HandoffShape {
  std::int32_t kv_len = 0;
  std::int32_t num_pages = 0;
  std::int32_t num_layers = 0;
};

class SendHandoff {
 public:
  SendHandoff(const HandoffShape& shape, base::Nanoseconds deadline);

  SendState state() const { return state_; }
  bool terminal() const { return state_ == SendState::kDone || state_ == SendState::kAborted; }
  // The receiver gave pages, at some time.
  bool accepted() const { return state_ != SendState::kOffered && state_ != SendState::kQueued; }
  // Why it aborted.
  const base::Status& status() const { return status_; }
  const HandoffShape& shape() const { return shape_; }
  std::int32_t first_page() const { return first_page_; }

  // The hook for sending while prefill still runs: the KV of all tokens is written in layers 0 .. layer. In ascending
  // order; layers already ready are ignored.
  void layer_ready(std::int32_t layer);

  // kOffered -> kQueued, where no deadline runs until one is set. False, and no change, after an acceptance.
  bool queued();
  // kQueued -> kOffered, with a new deadline.
  void offer_again(base::Nanoseconds deadline);
  // kOffered or kQueued -> kSending. A first_page outside 0 .. num_pages, or an answer in another state, is an error
  // and changes nothing.
  base::Status accept(std::int32_t first_page);
  // The next chunk to send, layer by layer; empty when no ready layer has any left.
  std::optional<Chunk> next_chunk(std::int32_t chunk_pages_max) const;
  // The next `count` chunks, or as many as there are.
  std::vector<Chunk> next_chunks(std::int32_t chunk_pages_max, std::int32_t count) const;
  // It went out, with these digests.
  void chunk_sent(const Chunk& chunk, std::span<const std::uint64_t> digests);
  // Every layer is ready, and all of its wanted pages went out.
  bool all_sent() const;
  std::uint64_t combined_digest() const { return combined_digest_; }
  // kSending -> kAwaitingCommit; all must be sent.
  void commit_sent();
  // kAwaitingCommit -> kDone; an error, and no change, in another state.
  base::Status done();
  // To kAborted, from any state that is not terminal. False, and no change, in a terminal one.
  bool abort(base::Status reason);
  void set_deadline(base::Nanoseconds deadline) { deadline_ = deadline; }
  base::Nanoseconds deadline() const { return deadline_; }
  bool expired(base::Nanoseconds now) const { return !terminal() && now >= deadline_; }

 private:
  void enter(SendState state);
  const HandoffShape shape_;
  base::Nanoseconds deadline_;
  SendState state_ = SendState::kOffered;
  base::Status status_;
  std::int32_t layers_ready_ = 0;
  std::int32_t first_page_ = 0;
  std::int32_t next_layer_ = 0;
  std::int32_t next_page_ = 0;
  std::uint64_t combined_digest_ = 0;
};

class ReceiveHandoff {
 public:
  ReceiveHandoff(const HandoffShape& shape, std::uint64_t digest_key, base::Nanoseconds deadline);

  ReceiveState state() const { return state_; }
  bool terminal() const { return state_ == ReceiveState::kCommitted || state_ == ReceiveState::kAborted; }
  const base::Status& status() const { return status_; }
  const HandoffShape& shape() const { return shape_; }
  std::uint64_t digest_key() const { return digest_key_; }
  std::int32_t first_page() const { return first_page_; }

  // kOffered -> kAllocated: pages first_page .. num_pages are to come (first_page is checked).
  void accept(std::int32_t first_page);

  enum class ChunkKind : std::uint8_t {
    kNew,        // To be stored, then stored() is called.
    kDuplicate,  // Every page of it is stored already, with these digests: nothing to do.
  };
  // What to do with a chunk that came. An error (which must abort the handoff): outside of what is wanted, in part
  // stored already, or stored with another digest, or not expected in this state.
  base::Result<ChunkKind> classify(const Chunk& chunk, std::span<const std::uint64_t> digests) const;
  // The chunk is in the pages, where these digests were computed. Corruption when they are not the ones that were sent.
  base::Status stored(const Chunk& chunk, std::span<const std::uint64_t> sent, std::span<const std::uint64_t> found);
  // The sender says that it sent all. May come before the last chunks do. A second one must say the same.
  base::Status commit(std::uint64_t combined_digest);
  // kReceiving (or kAllocated, when nothing was to come) -> kVerifying once both the commit and all chunks are there.
  // True when in kVerifying.
  bool ready_to_verify();
  // The sender said that it sent all, and not all is here: late, or lost.
  bool misses_chunks() const { return !terminal() && commit_digest_.has_value() && missing_ > 0; }
  // Compares the combined digest: corruption when it differs.
  base::Status verify() const;
  // kVerifying -> kCommitted.
  void committed();
  bool abort(base::Status reason);
  void set_deadline(base::Nanoseconds deadline) { deadline_ = deadline; }
  base::Nanoseconds deadline() const { return deadline_; }
  bool expired(base::Nanoseconds now) const { return !terminal() && now >= deadline_; }

 private:
  void enter(ReceiveState state);
  std::size_t index(std::int32_t layer, std::int32_t page) const;
  const HandoffShape shape_;
  const std::uint64_t digest_key_;
  base::Nanoseconds deadline_;
  ReceiveState state_ = ReceiveState::kOffered;
  base::Status status_;
  std::int32_t first_page_ = 0;
  std::int64_t missing_ = 0;            // Pages of layers not stored yet.
  std::vector<std::uint64_t> digests_;  // [layers, pages wanted]
  std::vector<bool> stored_;
  std::optional<std::uint64_t> commit_digest_;
  std::uint64_t combined_digest_ = 0;
};

}  // namespace tessera::kv_transfer
