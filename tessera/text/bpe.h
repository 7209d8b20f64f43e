// Byte-pair merging of one word: of all adjacent pairs, the one with the lowest rank is merged first, the leftmost of
// equal ones, until no pair has a merge. Time O(n log n) in the length of the word.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera::text {

// A merge of a vocabulary.
struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

// What a merge's rank is: its place in the list, or its result, so that all merges to one token are equal (tiktoken).
enum class MergeOrder { kByPlace, kByResult };

// Immutable: any number of threads at once, each with its own Scratch.
class Bpe {
 public:
  // Buffers of encode(), kept from word to word.
  struct Scratch;

  // `byte_ids[b]` is the token of byte b, or -1 if the vocabulary has none: such bytes are dropped. Empty if two merges
  // have the same pair: then `repeated` is the index of the second.
  static std::optional<Bpe> create(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
                                   MergeOrder order, std::size_t& repeated);

  // Appends the word's tokens to `ids`.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Entry {
    std::uint64_t pair = kNoPair;  // left << 32 | right
    std::int32_t rank = 0;
    std::int32_t result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};  // No pair of ids from 0 up.

  Bpe() = default;
  const Entry* find(std::int32_t left, std::int32_t right) const;
  std::size_t slot(std::uint64_t pair) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<Entry> table_;  // Open addressing, linear probing, at most half full; the size is a power of two.
};

struct Bpe::Scratch {
  // A doubly linked list in an array: merging two neighbours removes the right one.
  struct Symbol {
    std::int32_t id;  // -1: merged into its left neighbour.
    std::int32_t previous;
    std::int32_t next;
  };
  std::vector<Symbol> symbols;
  // Pairs that may be merged, the next one first: rank << 32 | index of the left symbol.
  std::vector<std::uint64_t> heap;
};

}  // namespace tessera::text
