// The device side of sending: checks a sequence's pages and gathers chunks of them, converted and digested, into
// messages; then proves that what it read is what was once written. Owned by a Sender; used from its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/kv_cache/digest_checker.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/page_table.h"
#include "tessera/kv_cache/verifier.h"
#include "tessera/kv_transfer/handoff.h"
#include "tessera/ops/backend.h"

namespace tessera::kv_transfer {

// A chunk as it goes out.
struct GatheredChunk {
  HandoffId handoff = 0;
  Chunk chunk;
  std::vector<std::uint64_t> digests;  // [chunk.num_pages]
  std::vector<std::byte> message;      // A sealed PageData.
};

struct ChunkGathererOptions {
  std::int32_t kv_len_max = 0;
  std::int32_t chunk_pages_max = 0;
  std::int32_t chunks_max = 0;                 // Of one call.
  kv_cache::DigestChecker* digests = nullptr;  // Null: nothing is proved. Outlives the gatherer.
};

class ChunkGatherer {
 public:
  static base::Result<std::unique_ptr<ChunkGatherer>> create(ops::Backend& backend, ops::Stream& stream,
                                                             const kv_cache::PagePool& pool,
                                                             const ChunkGathererOptions& options);

  struct Source {
    SessionId session = 0;
    HandoffId handoff = 0;
    std::span<const kv_cache::Lease> leases;  // Logical page j is leases[j].
    std::int32_t kv_len = 0;
    std::uint64_t digest_key = 0;
  };
  // Messages for `chunks` in the target's layout, whose pages must not be larger than the pool's. The pages are checked
  // before and after they are read; when the check fails there is only its verdict. Waits for the stream once.
  std::expected<std::vector<GatheredChunk>, ops::RowVerdict> gather(const Source& source, const ops::KvLayout& target,
                                                                    std::span<const Chunk> chunks);

  // Compares the pages of a sequence, from `first` on, with their digests: what is sound now was sound when it was
  // gathered. As many as take about as long to read as `budget` chunks; takes that from the budget. Without digests,
  // the tags of all pages are checked once more. Returns how many are sound, or the verdict of the first one that is
  // not.
  struct Pages {
    std::span<const kv_cache::Lease> leases;  // Logical page j is leases[j].
    std::int32_t kv_len = 0;
  };
  std::expected<std::int32_t, ops::RowVerdict> prove(const Pages& pages, std::int32_t first, std::int32_t& budget);

  std::int64_t device_bytes() const;

 private:
  ChunkGatherer(ops::Backend& backend, ops::Stream& stream, const kv_cache::PagePool& pool,
                const ChunkGathererOptions& options)
      : backend_(backend), stream_(stream), pool_(pool), options_(options) {}

  // Enqueues the check of tags, owners and positions of all pages.
  kv_cache::CheckedPages check(const Pages& pages);

  ops::Backend& backend_;
  ops::Stream& stream_;
  const kv_cache::PagePool& pool_;
  const ChunkGathererOptions options_;
  std::unique_ptr<kv_cache::Verifier> verifier_;
  std::unique_ptr<kv_cache::PageTable> table_;
  ops::Buffer images_;   // [chunks_max, chunk_pages_max, page_layer_bytes_max of the pool]
  ops::Buffer digests_;  // [chunks_max, chunk_pages_max]
};

}  // namespace tessera::kv_transfer
