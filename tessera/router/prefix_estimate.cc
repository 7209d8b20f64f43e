#include "tessera/router/prefix_estimate.h"

#include "tessera/base/arithmetic.h"

namespace tessera::router {

namespace {

// One step of a running hash.
constexpr std::uint64_t fold(std::uint64_t hash, std::uint64_t value) {
  return base::mix64((hash ^ value) + base::kMix64Step);
}

}  // namespace

std::vector<std::uint64_t> prefix_hashes(std::string_view tenant, std::span<const std::int32_t> prompt,
                                         std::int64_t page_size) {
  std::uint64_t hash = 0;
  for (const char c : tenant) hash = fold(hash, static_cast<unsigned char>(c));
  std::vector<std::uint64_t> hashes;
  hashes.reserve(prompt.size() / static_cast<std::size_t>(page_size));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    hash = fold(hash, static_cast<std::uint32_t>(prompt[i]));
    if (static_cast<std::int64_t>(i + 1) % page_size == 0) hashes.push_back(hash);
  }
  return hashes;
}

std::int64_t PrefixEstimate::match(std::span<const std::uint64_t> hashes) const {
  std::int64_t pages = 0;
  while (pages < std::ssize(hashes) && counts_.contains(hashes[static_cast<std::size_t>(pages)])) ++pages;
  return pages;
}

void PrefixEstimate::remember(std::span<const std::uint64_t> hashes) {
  for (const std::uint64_t hash : hashes) {
    ++counts_[hash];
    order_.push_back(hash);
  }
  while (order_.size() > pages_max_) {
    const auto found = counts_.find(order_.front());
    if (--found->second == 0) counts_.erase(found);
    order_.pop_front();
  }
}

void PrefixEstimate::clear() {
  counts_.clear();
  order_.clear();
}

}  // namespace tessera::router
