// What a sequence holds of the page pool.
#pragma once

#include <cstdint>

namespace tessera::kv_cache {

using PageId = std::int32_t;
// New at every allocation of a page, never used twice in a pool's life; 0 means "not allocated".
using PageTag = std::uint64_t;
// Of a private page: its sequence's id (owner_of_sequence). Of a shared or cached page: tenant and chain hash of the
// tokens up to its end (PrefixCache says how).
using PageOwner = std::uint64_t;

// The host's record, written when the page was allocated or shared, of what the device's arrays must still say.
struct Lease {
  PageId page = 0;
  PageTag tag = 0;
  PageOwner owner = 0;
  friend bool operator==(const Lease&, const Lease&) = default;
};

// Sequence ids are small; the highest bit keeps them apart from chain hashes, which have it cleared.
constexpr PageOwner owner_of_sequence(std::uint64_t sequence_id) { return sequence_id | (1ull << 63); }
constexpr PageOwner owner_of_chain(std::uint64_t chain_hash) { return chain_hash & ~(1ull << 63); }

}  // namespace tessera::kv_cache
