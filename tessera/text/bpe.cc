#include "tessera/text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::text {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

// A candidate of the heap: smaller is earlier.
std::uint64_t pack(std::int32_t rank, std::int32_t left) { return pair_key(rank, left); }
std::pair<std::int32_t, std::int32_t> unpack(std::uint64_t candidate) {
  return {static_cast<std::int32_t>(candidate >> 32), static_cast<std::int32_t>(candidate & 0xFFFFFFFFu)};
}

}  // namespace

std::size_t Bpe::slot(std::uint64_t pair) const {
  // Every bit of the pair moves every bit of the slot.
  return base::mix64(pair) & (table_.size() - 1);
}

std::optional<Bpe> Bpe::create(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
                               MergeOrder order, std::size_t& repeated) {
  TESSERA_CHECK(merges.size() < std::numeric_limits<std::int32_t>::max());
  Bpe bpe;
  bpe.byte_ids_ = byte_ids;
  bpe.table_.resize(std::bit_ceil(2 * merges.size() + 2));
  for (std::size_t place = 0; place < merges.size(); ++place) {
    const Merge& merge = merges[place];
    TESSERA_CHECK(merge.left >= 0 && merge.right >= 0 && merge.result >= 0);
    const std::uint64_t pair = pair_key(merge.left, merge.right);
    std::size_t at = bpe.slot(pair);
    while (bpe.table_[at].pair != kNoPair) {
      if (bpe.table_[at].pair == pair) {
        repeated = place;
        return std::nullopt;
      }
      at = (at + 1) & (bpe.table_.size() - 1);
    }
    const std::int32_t rank = order == MergeOrder::kByPlace ? static_cast<std::int32_t>(place) : merge.result;
    bpe.table_[at] = {pair, rank, merge.result};
  }
  return bpe;
}

const Bpe::Entry* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_key(left, right);
  for (std::size_t at = slot(pair); table_[at].pair != kNoPair; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at].pair == pair) return &table_[at];
  }
  return nullptr;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  TESSERA_CHECK(word.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()));
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (const char c : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) continue;
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  const auto add_candidate = [&](std::int32_t left) {
    const std::int32_t right = symbols[left].next;
    if (right < 0) return false;
    const Entry* entry = find(symbols[left].id, symbols[right].id);
    if (entry == nullptr) return false;
    heap.push_back(pack(entry->rank, left));
    return true;
  };
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(symbols.size()); ++i) add_candidate(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [rank, index] = unpack(heap.back());
    heap.pop_back();
    Scratch::Symbol& left = symbols[index];
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = symbols[left.next];
    // The candidate is out of date if one of its two symbols has changed since; then it was replaced by another.
    const Entry* entry = find(left.id, right.id);
    if (entry == nullptr || entry->rank != rank) continue;
    left.id = entry->result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = index;
    for (const std::int32_t changed : {left.previous, index}) {
      if (changed >= 0 && add_candidate(changed)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace tessera::text
