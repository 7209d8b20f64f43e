// Finds whole pages of KV that were already computed for the same tokens. A tree of pages: a node's key is
// SHA-256(parent's key, page's token ids), the root's is SHA-256(tenant, model digest, KV format, provenance, page
// size) (chain_key.h). So a hit needs the same tenant, model, format and provenance and the same tokens from the first
// one on; and parent and tokens themselves are compared on a hit, so that a collision is a miss. A page that the cache
// holds has the owner owner_of_chain(first 8 bytes of its key, little-endian). Used from the engine's thread.
//
// One cache belongs to one pool, whose observer it is while it lives; it gives all its pages back when it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/kv_cache/chain_key.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"

namespace tessera::kv_cache {

class PrefixCache {
 public:
  // `hash` is sha256_chain_key, except in tests that force collisions.
  PrefixCache(PagePool& pool, ops::Stream& stream, ChainHash hash = &sha256_chain_key);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Leases the longest cached chain of whole pages that are a prefix of tokens; at most max_pages. The caller releases
  // them. A page that turns out not to match (tokens differ) ends the chain. Who must compute at least one token itself
  // (to get its logits) says so with max_pages.
  std::vector<Lease> match(const PrefixScope& scope, std::span<const std::int32_t> tokens, std::int64_t max_pages);
  // How many pages match would lease; changes nothing (the scheduler and the router ask).
  std::int64_t match_length(const PrefixScope& scope, std::span<const std::int32_t> tokens) const;
  // Offers a sequence's whole pages, leases[j] holding tokens j*page_size ..; pages that the cache already has are left
  // alone (the sequence keeps its own). A page taken into the cache changes owner: its entry in leases is rewritten.
  // Only complete pages (no step and no peer writes to them) that this sequence alone leases are taken, and the chain
  // ends at the first page that cannot be.
  // leases.size() is how many pages are offered; tokens has at least that many whole pages (checked).
  void insert(const PrefixScope& scope, std::span<const std::int32_t> tokens, std::span<Lease> leases);
  // Frees up to `pages` cached pages that nobody leases, least recently used leaf first. Returns how many were freed.
  std::int64_t evict(std::int64_t pages);
  // Drops the entry of a page, if it has one, and everything below it. Pages below that are leased stay their holders'.
  // PagePool::quarantine of a page does this by itself.
  void drop(PageId page);
  // Drops everything that nobody leases.
  std::int64_t clear();

  // Pages that evict could free now: those with no lease on them or on any page below. Constant time.
  std::int64_t evictable() const;
  std::int64_t pages() const;  // All that it holds.

 private:
  struct Node;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::kv_cache
