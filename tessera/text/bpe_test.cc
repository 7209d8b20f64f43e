#include "tessera/text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <string>

namespace tessera::text {
namespace {

std::array<std::int32_t, 256> letters_only(std::string_view letters) {
  std::array<std::int32_t, 256> ids;
  ids.fill(-1);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    ids[static_cast<unsigned char>(letters[i])] = static_cast<std::int32_t>(i);
  }
  return ids;
}

// The definition, in quadratic time: scan for the best pair, the leftmost of equal ones, merge it, begin again.
std::vector<std::int32_t> naive(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
                                std::string_view word) {
  std::vector<std::int32_t> ids;
  for (const char c : word) {
    if (byte_ids[static_cast<unsigned char>(c)] >= 0) ids.push_back(byte_ids[static_cast<unsigned char>(c)]);
  }
  while (true) {
    std::size_t best_rank = merges.size();
    std::size_t best_at = 0;
    for (std::size_t at = 0; at + 1 < ids.size(); ++at) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == ids[at] && merges[rank].right == ids[at + 1]) {
          best_rank = rank;
          best_at = at;
        }
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best_at] = merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

std::vector<std::int32_t> encode(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
                                 std::string_view word) {
  std::size_t repeated = 0;
  const auto bpe = Bpe::create(byte_ids, merges, MergeOrder::kByPlace, repeated);
  EXPECT_TRUE(bpe.has_value());
  Bpe::Scratch scratch;
  std::vector<std::int32_t> ids = {-7};  // What is there already stays.
  bpe->encode("abcabc", scratch, ids);   // What the scratch held does not matter.
  ids.resize(1);
  bpe->encode(word, scratch, ids);
  EXPECT_EQ(ids.front(), -7);
  ids.erase(ids.begin());
  return ids;
}

TEST(Bpe, MergesByRankThenFromTheLeft) {
  const auto bytes = letters_only("abc");
  const std::vector<Merge> merges = {{1, 2, 3}, {0, 1, 4}, {0, 0, 5}, {5, 0, 6}};  // bc, ab, aa, aaa
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(encode(bytes, merges, "abc"), (Ids{0, 3})) << "bc comes before ab";
  EXPECT_EQ(encode(bytes, merges, "ab"), (Ids{4}));
  EXPECT_EQ(encode(bytes, merges, "aaaaa"), (Ids{5, 6})) << "aa aa a from the left, then aa a";
  EXPECT_EQ(encode(bytes, merges, ""), (Ids{}));
  EXPECT_EQ(encode(bytes, merges, "c"), (Ids{2}));
}

TEST(Bpe, DropsBytesWithoutATokenBeforeMerging) {
  const std::vector<Merge> merges = {{0, 1, 2}};
  EXPECT_EQ(encode(letters_only("ab"), merges, "a?b"), (std::vector<std::int32_t>{2}));
  EXPECT_EQ(encode(letters_only("ab"), merges, "???"), (std::vector<std::int32_t>{}));
}

TEST(Bpe, WorksWithoutMerges) { EXPECT_EQ(encode(letters_only("ab"), {}, "ab"), (std::vector<std::int32_t>{0, 1})); }

TEST(Bpe, RefusesAPairTwice) {
  std::size_t repeated = 0;
  EXPECT_FALSE(
      Bpe::create(letters_only("ab"), {{0, 1, 2}, {1, 0, 3}, {0, 1, 4}}, MergeOrder::kByPlace, repeated).has_value());
  EXPECT_EQ(repeated, 2u);
}

TEST(Bpe, EqualsTheDefinition) {
  EXPECT_TRUE(rc::check("heap equals scan", [] {
    // A vocabulary of strings over three letters: each merge joins two that are there, as in a trained one.
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::map<std::string, std::int32_t> id_of = {{"a", 0}, {"b", 1}, {"c", 2}};
    std::vector<Merge> merges;
    const auto count = *rc::gen::inRange(0, 40);
    for (int i = 0; i < count; ++i) {
      const auto left = *rc::gen::inRange<std::size_t>(0, tokens.size());
      const auto right = *rc::gen::inRange<std::size_t>(0, tokens.size());
      const auto known = std::ranges::any_of(merges, [&](const Merge& m) {
        return m.left == static_cast<std::int32_t>(left) && m.right == static_cast<std::int32_t>(right);
      });
      const std::string joined = tokens[left] + tokens[right];
      if (known || joined.size() > 12) continue;
      const auto [at, added] = id_of.emplace(joined, static_cast<std::int32_t>(tokens.size()));
      if (added) tokens.push_back(joined);
      merges.push_back({static_cast<std::int32_t>(left), static_cast<std::int32_t>(right), at->second});
    }
    // Ranks in any order: a token may be made before its parts can be.
    for (std::size_t i = merges.size(); i > 1; --i)
      std::swap(merges[i - 1], merges[*rc::gen::inRange<std::size_t>(0, i)]);
    const auto word = *rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c', '?'));
    RC_ASSERT(encode(letters_only("abc"), merges, word) == naive(letters_only("abc"), merges, word));
  }));
}

}  // namespace
}  // namespace tessera::text
