// Keys of the prefix cache: a chain of SHA-256 over everything that a page's KV depends on.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/kv_cache/lease.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::kv_cache {

using ChainKey = std::array<std::uint8_t, 32>;

// Which plan wrote a page's bytes.
enum class Provenance : std::uint8_t { kPrefill, kConverted, kDecode };

// Pages are shared only inside one scope.
struct PrefixScope {
  std::string tenant;        // Derived by the server from the API key.
  std::string model_digest;  // Of the weights that computed the KV.
  ops::KvFormat format = ops::KvFormat::kBF16;
  Provenance provenance = Provenance::kPrefill;
  friend bool operator==(const PrefixScope&, const PrefixScope&) = default;
};

// SHA-256 of a fixed name of this schema, then tenant and model digest (each after its length as u64), format and
// provenance (a byte each) and page size (u32), all little-endian.
ChainKey root_chain_key(const PrefixScope& scope, std::int32_t page_size);

// The key of a page below `parent`. A type, so that tests can force collisions.
using ChainHash = ChainKey (*)(const ChainKey& parent, std::span<const std::int32_t> tokens);
// SHA-256 of the parent's key and the page's token ids as little-endian i32.
ChainKey sha256_chain_key(const ChainKey& parent, std::span<const std::int32_t> tokens);

// The owner of a cached page: its key's first 8 bytes, little-endian, see owner_of_chain.
PageOwner chain_owner(const ChainKey& key);

}  // namespace tessera::kv_cache
