// Finds whole pages of KV that were already computed for the same tokens. A tree of pages: a node's key is
// SHA-256(parent's key, page's token ids), the root's is SHA-256(tenant, model digest, KV format, provenance, page
// size). So a hit needs the same tenant, model, format and provenance and the same tokens from the first one on; and
// the tokens themselves are compared on a hit, so that a collision is a miss. Used from the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/kv_cache/lease.h"
#include "tessera/kv_cache/page_pool.h"

namespace tessera::kv_cache {

using ChainKey = std::array<std::uint8_t, 32>;

// Which plan wrote a page's bytes.
enum class Provenance : std::uint8_t { kPrefill, kConverted, kDecode };

struct PrefixScope {
  std::string tenant;        // Derived by the server from the API key.
  std::string model_digest;  // Of the weights that computed the KV.
  ops::KvFormat format = ops::KvFormat::kBF16;
  Provenance provenance = Provenance::kPrefill;
};

class PrefixCache {
 public:
  PrefixCache(PagePool& pool, ops::Stream& stream);
  ~PrefixCache();

  // Leases the longest cached chain of whole pages that are a prefix of tokens; at most max_pages. The caller releases
  // them. A page that turns out not to match (tokens differ) ends the chain.
  std::vector<Lease> match(const PrefixScope& scope, std::span<const std::int32_t> tokens, std::int64_t max_pages);
  // How many pages match would lease; changes nothing (the scheduler and the router ask).
  std::int64_t match_length(const PrefixScope& scope, std::span<const std::int32_t> tokens) const;
  // Offers a sequence's whole pages, leases[j] holding tokens j*page_size ..; pages that the cache already has are left
  // alone. A page taken into the cache changes owner: its entry in leases is rewritten.
  void insert(const PrefixScope& scope, std::span<const std::int32_t> tokens, std::span<Lease> leases);
  // Frees up to `pages` cached pages that nobody leases, least recently used leaf first. Returns how many were freed.
  std::int64_t evict(std::int64_t pages);
  // Drops the entry of a page and everything below it (a check failed on it).
  void drop(PageId page);
  // Drops everything that nobody leases.
  std::int64_t clear();

  // Pages that evict could free now.
  std::int64_t evictable() const;
  std::int64_t queries() const { return queries_; }  // Tokens asked for.
  std::int64_t hit_tokens() const { return hit_tokens_; }

 private:
  struct Node;
  PagePool& pool_;
  ops::Stream& stream_;
  struct State;
  std::unique_ptr<State> state_;
  std::int64_t queries_ = 0;
  std::int64_t hit_tokens_ = 0;
};

}  // namespace tessera::kv_cache
