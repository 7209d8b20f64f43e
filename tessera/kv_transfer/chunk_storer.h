// The device side of receiving: checks a sequence's pages and slots, writes chunks into them, and digests what was
// written. Owned by a Receiver; used from its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/kv_cache/integrity.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/page_table.h"
#include "tessera/kv_cache/verifier.h"
#include "tessera/kv_transfer/handoff.h"
#include "tessera/ops/backend.h"

namespace tessera::kv_transfer {

struct ChunkStorerOptions {
  std::int32_t kv_len_max = 0;
  std::int32_t chunk_pages_max = 0;
  kv_cache::IntegrityLevel integrity = kv_cache::IntegrityLevel::kTags;
};

class ChunkStorer {
 public:
  static base::Result<std::unique_ptr<ChunkStorer>> create(ops::Backend& backend, ops::Stream& stream,
                                                           const kv_cache::PagePool& pool,
                                                           const ChunkStorerOptions& options);

  struct Target {
    std::span<const kv_cache::Lease> leases;  // Logical page j is leases[j].
    std::int32_t kv_len = 0;
    std::int32_t first_page = 0;  // Pages before it are not to be written.
    std::uint64_t digest_key = 0;
  };
  // Writes the images [chunk.num_pages, page_layer_bytes(chunk.layer)] and returns the digest of each page as it is
  // stored; at levels with digests the pool's own digests were added to before that one is read, so that nothing can
  // change in between unseen. The pages are checked before and after; when the check fails, nothing was written if it
  // failed before, and there is only its verdict. Waits for the stream once.
  std::expected<std::vector<std::uint64_t>, ops::RowVerdict> store(const Target& target, const Chunk& chunk,
                                                                   std::span<const std::byte> images);
  // Checks all pages of the sequence once; failed_checks of the verdict is 0 when they are sound.
  ops::RowVerdict check(const Target& target);

  std::int64_t device_bytes() const;

 private:
  ChunkStorer(ops::Backend& backend, ops::Stream& stream, const kv_cache::PagePool& pool,
              const ChunkStorerOptions& options)
      : backend_(backend), stream_(stream), pool_(pool), options_(options) {}
  kv_cache::CheckedPages check_before(const Target& target);
  void stage_writes(const Target& target, const Chunk& chunk);

  ops::Backend& backend_;
  ops::Stream& stream_;
  const kv_cache::PagePool& pool_;
  const ChunkStorerOptions options_;
  std::unique_ptr<kv_cache::Verifier> verifier_;
  std::unique_ptr<kv_cache::PageTable> table_;
  ops::Buffer images_;   // [chunk_pages_max, page_layer_bytes_max]
  ops::Buffer digests_;  // [chunk_pages_max]
  // The writes of one chunk, as the check wants them; reused.
  std::vector<std::int32_t> token_rows_;
  std::vector<std::int32_t> token_positions_;
  std::vector<std::int64_t> slot_mapping_;
};

}  // namespace tessera::kv_transfer
