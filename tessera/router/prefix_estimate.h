// What a router believes an engine's prefix cache holds: the hashes of the page-sized prefixes of prompts that it sent
// there lately. Only an estimate, used to choose between engines; the engine itself compares tokens. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::router {

// One hash for each whole page of the prompt, each of the whole prefix up to the page's end.
std::vector<std::uint64_t> prefix_hashes(std::string_view tenant, std::span<const std::int32_t> prompt,
                                         std::int64_t page_size);

class PrefixEstimate {
 public:
  // Remembers at most so many pages; the oldest are forgotten first.
  explicit PrefixEstimate(std::size_t pages_max) : pages_max_(pages_max) {}
  // How many pages of the prompt are believed to be cached.
  std::int64_t match(std::span<const std::uint64_t> hashes) const;
  void remember(std::span<const std::uint64_t> hashes);
  void clear();

 private:
  const std::size_t pages_max_;
  // How often a hash is in the queue: one that was remembered again outlives its first turn.
  std::unordered_map<std::uint64_t, std::int64_t> counts_;
  std::deque<std::uint64_t> order_;
};

}  // namespace tessera::router
