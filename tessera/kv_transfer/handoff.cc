#include "tessera/kv_transfer/handoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/ops/page_transfer.h"

namespace tessera::kv_transfer {

namespace {

void check_shape(const HandoffShape& shape) {
  TESSERA_CHECK(shape.kv_len >= 1 && shape.num_pages >= 1 && shape.num_layers >= 1);
}

std::string describe(const Chunk& chunk) {
  return "layer " + std::to_string(chunk.layer) + ", pages " + std::to_string(chunk.first_page) + " to " +
         std::to_string(chunk.first_page + chunk.num_pages - 1);
}

std::uint64_t in_place(std::uint64_t digest, std::int32_t layer, std::int32_t page) {
  return ops::digest_seed(digest, layer, page);
}

}  // namespace

base::Status failed_page_check(const ops::RowVerdict& verdict, const char* doing) {
  // What a failed device leaves in place of verdicts (ops::Backend::health) says nothing of pages.
  if (verdict.failed_checks == ~0u) return base::unavailable("a device failed while " + std::string(doing));
  return base::corruption("KV page check failed while " + std::string(doing) + ": checks " +
                          std::to_string(verdict.failed_checks) + ", logical page " +
                          std::to_string(verdict.logical_page));
}

const char* send_state_name(SendState state) {
  switch (state) {
    case SendState::kOffered:
      return "offered";
    case SendState::kQueued:
      return "queued";
    case SendState::kSending:
      return "sending";
    case SendState::kAwaitingCommit:
      return "awaiting_commit";
    case SendState::kDone:
      return "done";
    case SendState::kAborted:
      return "aborted";
  }
  return "?";
}

const char* receive_state_name(ReceiveState state) {
  switch (state) {
    case ReceiveState::kOffered:
      return "offered";
    case ReceiveState::kAllocated:
      return "allocated";
    case ReceiveState::kReceiving:
      return "receiving";
    case ReceiveState::kVerifying:
      return "verifying";
    case ReceiveState::kCommitted:
      return "committed";
    case ReceiveState::kAborted:
      return "aborted";
  }
  return "?";
}

SendHandoff::SendHandoff(const HandoffShape& shape, base::Nanoseconds deadline) : shape_(shape), deadline_(deadline) {
  check_shape(shape);
}

void SendHandoff::enter(SendState state) {
  TESSERA_CHECK(!terminal(), send_state_name(state));
  state_ = state;
}

void SendHandoff::layer_ready(std::int32_t layer) {
  TESSERA_CHECK(layer >= 0 && layer < shape_.num_layers, std::to_string(layer));
  layers_ready_ = std::max(layers_ready_, layer + 1);
}

bool SendHandoff::queued() {
  if (accepted()) return false;
  enter(SendState::kQueued);
  deadline_ = kNoDeadline;
  return true;
}

void SendHandoff::offer_again(base::Nanoseconds deadline) {
  TESSERA_CHECK(state_ == SendState::kQueued, send_state_name(state_));
  deadline_ = deadline;
  enter(SendState::kOffered);
}

base::Status SendHandoff::accept(std::int32_t first_page) {
  if (accepted()) {
    return base::internal_error(std::string("Accept in state ") + send_state_name(state_));
  }
  if (first_page < 0 || first_page > shape_.num_pages) {
    return base::out_of_range("Accept wants pages from " + std::to_string(first_page) + " of " +
                              std::to_string(shape_.num_pages));
  }
  first_page_ = first_page;
  next_page_ = first_page;
  enter(SendState::kSending);
  return base::ok_status();
}

std::optional<Chunk> SendHandoff::next_chunk(std::int32_t chunk_pages_max) const {
  TESSERA_CHECK(chunk_pages_max >= 1);
  if (state_ != SendState::kSending || first_page_ == shape_.num_pages || next_layer_ >= layers_ready_) {
    return std::nullopt;
  }
  return Chunk{next_layer_, next_page_, std::min(chunk_pages_max, shape_.num_pages - next_page_)};
}

std::vector<Chunk> SendHandoff::next_chunks(std::int32_t chunk_pages_max, std::int32_t count) const {
  std::vector<Chunk> chunks;
  SendHandoff ahead = *this;
  while (std::ssize(chunks) < count) {
    const std::optional<Chunk> chunk = ahead.next_chunk(chunk_pages_max);
    if (!chunk.has_value()) break;
    const std::vector<std::uint64_t> unknown(static_cast<std::size_t>(chunk->num_pages), 0);
    ahead.chunk_sent(*chunk, unknown);
    chunks.push_back(*chunk);
  }
  return chunks;
}

void SendHandoff::chunk_sent(const Chunk& chunk, std::span<const std::uint64_t> digests) {
  TESSERA_CHECK(state_ == SendState::kSending && chunk.layer == next_layer_ && chunk.first_page == next_page_);
  TESSERA_CHECK(std::ssize(digests) == chunk.num_pages);
  for (std::int32_t i = 0; i < chunk.num_pages; ++i) {
    combined_digest_ += in_place(digests[static_cast<std::size_t>(i)], chunk.layer, chunk.first_page + i);
  }
  next_page_ += chunk.num_pages;
  if (next_page_ == shape_.num_pages) {
    next_page_ = first_page_;
    ++next_layer_;
  }
}

bool SendHandoff::all_sent() const {
  if (!accepted() || layers_ready_ < shape_.num_layers) return false;
  return first_page_ == shape_.num_pages || next_layer_ == shape_.num_layers;
}

void SendHandoff::commit_sent() {
  TESSERA_CHECK(state_ == SendState::kSending && all_sent());
  enter(SendState::kAwaitingCommit);
}

base::Status SendHandoff::done() {
  if (state_ != SendState::kAwaitingCommit) {
    return base::internal_error(std::string("Done in state ") + send_state_name(state_));
  }
  enter(SendState::kDone);
  return base::ok_status();
}

bool SendHandoff::abort(base::Status reason) {
  TESSERA_CHECK(!reason.ok(), "an abort needs a reason");
  if (terminal()) return false;
  enter(SendState::kAborted);
  status_ = std::move(reason);
  return true;
}

ReceiveHandoff::ReceiveHandoff(const HandoffShape& shape, std::uint64_t digest_key, base::Nanoseconds deadline)
    : shape_(shape), digest_key_(digest_key), deadline_(deadline) {
  check_shape(shape);
}

void ReceiveHandoff::enter(ReceiveState state) {
  TESSERA_CHECK(!terminal(), receive_state_name(state));
  state_ = state;
}

std::size_t ReceiveHandoff::index(std::int32_t layer, std::int32_t page) const {
  return static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape_.num_pages - first_page_) +
         static_cast<std::size_t>(page - first_page_);
}

void ReceiveHandoff::accept(std::int32_t first_page) {
  TESSERA_CHECK(state_ == ReceiveState::kOffered, receive_state_name(state_));
  TESSERA_CHECK(first_page >= 0 && first_page <= shape_.num_pages);
  first_page_ = first_page;
  missing_ = std::int64_t{shape_.num_layers} * (shape_.num_pages - first_page);
  digests_.assign(static_cast<std::size_t>(missing_), 0);
  stored_.assign(static_cast<std::size_t>(missing_), false);
  enter(ReceiveState::kAllocated);
}

base::Result<ReceiveHandoff::ChunkKind> ReceiveHandoff::classify(const Chunk& chunk,
                                                                 std::span<const std::uint64_t> digests) const {
  TESSERA_CHECK(std::ssize(digests) == chunk.num_pages);
  if (state_ != ReceiveState::kAllocated && state_ != ReceiveState::kReceiving && state_ != ReceiveState::kVerifying) {
    return base::failure(base::internal_error(std::string("page data in state ") + receive_state_name(state_)));
  }
  // first_page and num_pages were range-checked when they were parsed: their sum does not overflow.
  if (chunk.layer < 0 || chunk.layer >= shape_.num_layers || chunk.num_pages < 1 || chunk.first_page < first_page_ ||
      chunk.first_page + chunk.num_pages > shape_.num_pages) {
    return base::failure(base::internal_error(describe(chunk) + ": outside of what was wanted"));
  }
  std::int32_t known = 0;
  for (std::int32_t i = 0; i < chunk.num_pages; ++i) {
    const std::size_t at = index(chunk.layer, chunk.first_page + i);
    if (!stored_[at]) continue;
    ++known;
    if (digests_[at] != digests[static_cast<std::size_t>(i)]) {
      return base::failure(base::internal_error(describe(chunk) + ": came twice, with different digests"));
    }
  }
  if (known == 0) return ChunkKind::kNew;
  if (known == chunk.num_pages) return ChunkKind::kDuplicate;
  return base::failure(base::internal_error(describe(chunk) + ": overlaps what came before"));
}

base::Status ReceiveHandoff::stored(const Chunk& chunk, std::span<const std::uint64_t> sent,
                                    std::span<const std::uint64_t> found) {
  TESSERA_CHECK(state_ == ReceiveState::kAllocated || state_ == ReceiveState::kReceiving);
  TESSERA_CHECK(std::ssize(sent) == chunk.num_pages && std::ssize(found) == chunk.num_pages);
  for (std::int32_t i = 0; i < chunk.num_pages; ++i) {
    const std::int32_t page = chunk.first_page + i;
    const auto k = static_cast<std::size_t>(i);
    if (sent[k] != found[k]) {
      return base::corruption(fmt::format("layer {}, page {}: digest of what was stored: expected {:#x}, found {:#x}",
                                          chunk.layer, page, sent[k], found[k]));
    }
    const std::size_t at = index(chunk.layer, page);
    TESSERA_CHECK(!stored_[at], describe(chunk));
    stored_[at] = true;
    digests_[at] = sent[k];
    combined_digest_ += in_place(sent[k], chunk.layer, page);
    --missing_;
  }
  if (state_ == ReceiveState::kAllocated) enter(ReceiveState::kReceiving);
  return base::ok_status();
}

base::Status ReceiveHandoff::commit(std::uint64_t combined_digest) {
  if (state_ == ReceiveState::kOffered || terminal()) {
    return base::internal_error(std::string("Commit in state ") + receive_state_name(state_));
  }
  if (commit_digest_.has_value() && *commit_digest_ != combined_digest) {
    return base::internal_error("Commit came twice, with different digests");
  }
  commit_digest_ = combined_digest;
  return base::ok_status();
}

bool ReceiveHandoff::ready_to_verify() {
  if (state_ == ReceiveState::kVerifying) return true;
  if (state_ != ReceiveState::kAllocated && state_ != ReceiveState::kReceiving) return false;
  if (!commit_digest_.has_value() || missing_ > 0) return false;
  enter(ReceiveState::kVerifying);
  return true;
}

base::Status ReceiveHandoff::verify() const {
  TESSERA_CHECK(state_ == ReceiveState::kVerifying);
  if (*commit_digest_ != combined_digest_) {
    return base::corruption(
        fmt::format("digest over all pages: expected {:#x}, found {:#x}", *commit_digest_, combined_digest_));
  }
  return base::ok_status();
}

void ReceiveHandoff::committed() {
  TESSERA_CHECK(state_ == ReceiveState::kVerifying);
  enter(ReceiveState::kCommitted);
}

bool ReceiveHandoff::abort(base::Status reason) {
  TESSERA_CHECK(!reason.ok(), "an abort needs a reason");
  if (terminal()) return false;
  enter(ReceiveState::kAborted);
  status_ = std::move(reason);
  return true;
}

}  // namespace tessera::kv_transfer
