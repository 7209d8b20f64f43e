#include "tessera/kv_cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"

namespace tessera::kv_cache {
namespace {

constexpr std::int32_t kPageSize = 4;

// Whole pages, page k filled with the token ids[k].
std::vector<std::int32_t> tokens_of(const std::vector<std::int32_t>& ids) {
  std::vector<std::int32_t> tokens;
  for (const std::int32_t id : ids) tokens.insert(tokens.end(), kPageSize, id);
  return tokens;
}

std::string hex(const ChainKey& key) {
  std::string text;
  for (const std::uint8_t byte : key) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", byte);
    text += two;
  }
  return text;
}

// Every page's key is the same 32 bytes: all lookups collide.
ChainKey constant_hash(const ChainKey&, std::span<const std::int32_t>) { return ChainKey{1, 2, 3}; }

class PrefixCacheTest : public ::testing::Test {
 protected:
  void make(std::int64_t pages, ChainHash hash = &sha256_chain_key) {
    cache_.reset();
    auto made =
        PagePool::create(*backend_, *stream_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, kPageSize, 1, 8), pages);
    ASSERT_TRUE(made.has_value());
    pool_ = std::move(*made);
    cache_ = std::make_unique<PrefixCache>(*pool_, *stream_, hash);
  }
  std::vector<Lease> allocate(std::size_t pages, std::size_t first_position = 0) {
    std::vector<Lease> leases;
    for (std::size_t j = 0; j < pages; ++j) {
      auto lease =
          pool_->allocate(*stream_, owner_of_sequence(++sequences_), static_cast<std::int32_t>(first_position + j));
      EXPECT_TRUE(lease.has_value());
      leases.push_back(lease.value_or(Lease{}));
      pool_->begin_write(leases.back());
      pool_->end_write(leases.back(), 1);
    }
    return leases;
  }
  void release(const std::vector<Lease>& leases) {
    for (const Lease& lease : leases) EXPECT_TRUE(pool_->release(*stream_, lease).ok());
  }
  // Computes the pages that ids name, offers them to the cache and releases them.
  std::vector<Lease> put(const std::vector<std::int32_t>& ids) {
    std::vector<Lease> leases = cache_->match(scope_, tokens_of(ids), std::ssize(ids));
    const std::vector<Lease> fresh = allocate(ids.size() - leases.size(), leases.size());
    leases.insert(leases.end(), fresh.begin(), fresh.end());
    cache_->insert(scope_, tokens_of(ids), leases);
    release(leases);
    return leases;
  }
  std::int64_t hit(const std::vector<std::int32_t>& ids) { return cache_->match_length(scope_, tokens_of(ids)); }
  void expect_sound() {
    const base::Status status = pool_->check_conservation(*stream_);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PrefixCache> cache_;
  const PrefixScope scope_{"tenant", "digest", ops::KvFormat::kBF16, Provenance::kPrefill};
  std::uint64_t sequences_ = 0;
};

// Computed with Python's hashlib from the schema in chain_key.h:
//   root = sha256(pack("<Q16sQ1sQ1sBBI", 16, b"tessera prefix 1", 1, b"t", 1, b"m", 1, 0, 64)).digest()
//   page = sha256(root + pack("<3i", 1, 2, 3)).digest()
TEST(ChainKeys, AreTheSchemasSha256) {
  const ChainKey root = root_chain_key({"t", "m", ops::KvFormat::kBF16, Provenance::kPrefill}, 64);
  EXPECT_EQ(hex(root), "b71313e79a7f37c003013a77099143f69f98d47e08a216cc6eb8cdb9b134b669");
  const ChainKey page = sha256_chain_key(root, std::vector<std::int32_t>{1, 2, 3});
  EXPECT_EQ(hex(page), "d1877b1c51b35a9eb9dd152aa452ca85cbd4838a4f01de9a33a83f838fde725a");
  EXPECT_EQ(chain_owner(page), 0x1e5ab3511c7b87d1u);
}

TEST(ChainKeys, DependOnEveryPartOfTheScope) {
  const PrefixScope scope{"ab", "c", ops::KvFormat::kBF16, Provenance::kPrefill};
  const ChainKey key = root_chain_key(scope, 64);
  EXPECT_NE(root_chain_key({"a", "bc", scope.format, scope.provenance}, 64), key);
  EXPECT_NE(root_chain_key({"ab", "d", scope.format, scope.provenance}, 64), key);
  EXPECT_NE(root_chain_key({"ab", "c", ops::KvFormat::kF8E4M3, scope.provenance}, 64), key);
  EXPECT_NE(root_chain_key({"ab", "c", scope.format, Provenance::kDecode}, 64), key);
  EXPECT_NE(root_chain_key(scope, 32), key);
}

TEST_F(PrefixCacheTest, FindsTheLongestCommonPrefixOfWholePages) {
  make(16);
  put({1, 2, 3});
  EXPECT_EQ(hit({1, 2, 3}), 3);
  EXPECT_EQ(hit({1, 2, 9}), 2);
  EXPECT_EQ(hit({2, 2, 3}), 0);
  EXPECT_EQ(cache_->match_length(scope_, std::vector<std::int32_t>{1, 1, 1, 1, 2, 2, 2}), 1);
  EXPECT_EQ(cache_->match_length(scope_, {}), 0);
  const std::vector<Lease> leases = cache_->match(scope_, tokens_of({1, 2, 3, 4}), 2);
  ASSERT_EQ(leases.size(), 2u);
  EXPECT_EQ(pool_->position(leases[1].page), 1);
  release(leases);
  expect_sound();
}

TEST_F(PrefixCacheTest, OwnerIsTheChainsFromThenOn) {
  make(4);
  std::vector<Lease> leases = allocate(2);
  const std::vector<Lease> before = leases;
  cache_->insert(scope_, tokens_of({1, 2}), leases);
  const ChainKey first = sha256_chain_key(root_chain_key(scope_, kPageSize), tokens_of({1}));
  EXPECT_EQ(leases[0], (Lease{before[0].page, before[0].tag, chain_owner(first)}));
  EXPECT_EQ(leases[1].owner, chain_owner(sha256_chain_key(first, tokens_of({2}))));
  EXPECT_EQ(pool_->records().owners[leases[0].page], leases[0].owner);
  EXPECT_EQ(cache_->match(scope_, tokens_of({1, 2}), 2), leases);
}

TEST_F(PrefixCacheTest, AnotherScopeSeesNothing) {
  make(4);
  put({1, 2});
  PrefixScope other = scope_;
  other.tenant = "someone else";
  EXPECT_EQ(cache_->match_length(other, tokens_of({1, 2})), 0);
  other = scope_;
  other.model_digest = "other weights";
  EXPECT_EQ(cache_->match_length(other, tokens_of({1, 2})), 0);
  other = scope_;
  other.provenance = Provenance::kDecode;
  EXPECT_TRUE(cache_->match(other, tokens_of({1, 2}), 2).empty());
}

TEST_F(PrefixCacheTest, KeepsWhatItHasAndGoesOnBelow) {
  make(8);
  const std::vector<Lease> cached = put({1});
  std::vector<Lease> leases = allocate(2);
  const std::vector<Lease> before = leases;
  cache_->insert(scope_, tokens_of({1, 2}), leases);
  EXPECT_EQ(leases[0], before[0]);  // The sequence keeps its own first page, uncached,
  EXPECT_NE(leases[1].owner, before[1].owner);
  EXPECT_EQ(cache_->match(scope_, tokens_of({1, 2}), 2).at(0).page, cached[0].page);
  expect_sound();
}

TEST_F(PrefixCacheTest, TakesOnlyWhatOneSequenceHolds) {
  make(8);
  std::vector<Lease> leases = allocate(3);
  pool_->share(*stream_, leases[1]);
  cache_->insert(scope_, tokens_of({1, 2, 3}), leases);
  EXPECT_EQ(cache_->pages(), 1);
  EXPECT_EQ(hit({1, 2, 3}), 1);
  // Nor pages that ended, nor pages of another place in their sequence.
  std::vector<Lease> gone = allocate(1);
  release(gone);
  cache_->insert(scope_, tokens_of({7}), gone);
  std::vector<Lease> misplaced = allocate(1, 5);
  cache_->insert(scope_, tokens_of({8}), misplaced);
  EXPECT_EQ(cache_->pages(), 1);
  // Nor pages that a step or a peer still writes to.
  std::vector<Lease> unfinished = allocate(1);
  pool_->begin_write(unfinished[0]);
  cache_->insert(scope_, tokens_of({9}), unfinished);
  EXPECT_EQ(cache_->pages(), 1);
  pool_->end_write(unfinished[0], 1);
  cache_->insert(scope_, tokens_of({9}), unfinished);
  EXPECT_EQ(cache_->pages(), 2);
  expect_sound();
}

TEST_F(PrefixCacheTest, EvictsLeastRecentlyUsedLeavesAndNeverWhatIsLeased) {
  make(8);
  put({1, 2});
  put({1, 3});
  put({4});
  EXPECT_EQ(cache_->pages(), 4);
  EXPECT_EQ(cache_->evictable(), 4);
  const std::vector<Lease> held = cache_->match(scope_, tokens_of({1, 2}), 2);
  EXPECT_EQ(cache_->evictable(), 2);
  EXPECT_EQ(cache_->evict(1), 1);  // {1,3}, used before {4}.
  EXPECT_EQ(hit({1, 3}), 1);
  EXPECT_EQ(hit({4}), 1);
  EXPECT_EQ(cache_->evict(5), 1);
  EXPECT_EQ(hit({4}), 0);
  EXPECT_EQ(hit({1, 2}), 2);
  release(held);
  EXPECT_EQ(cache_->evictable(), 2);
  EXPECT_EQ(cache_->evict(1), 1);
  EXPECT_EQ(hit({1, 2}), 1);  // The leaf goes first.
  EXPECT_EQ(cache_->clear(), 1);
  EXPECT_EQ(pool_->counts().free, 8);
  expect_sound();
}

TEST_F(PrefixCacheTest, LeaseBelowPinsUnleasedPagesAbove) {
  make(8);
  put({1});
  std::vector<Lease> leases = allocate(2);
  cache_->insert(scope_, tokens_of({1, 2}), leases);
  // Page {1} is nobody's, but {1, 2}, below it, is leased.
  EXPECT_EQ(pool_->counts().cached, 1);
  EXPECT_EQ(cache_->evictable(), 0);
  EXPECT_EQ(cache_->evict(1), 0);
  release(leases);
  EXPECT_EQ(cache_->evictable(), 2);
  EXPECT_EQ(cache_->evict(9), 2);
  expect_sound();
}

TEST_F(PrefixCacheTest, DropTakesTheSubtreeAndLeavesLeasedPagesToTheirHolders) {
  make(8);
  const std::vector<Lease> pages = put({1, 2, 3});
  put({1, 2, 4});
  put({1, 5});
  const std::vector<Lease> held = cache_->match(scope_, tokens_of({1, 2, 3}), 3);
  cache_->drop(pages[1].page);
  EXPECT_EQ(hit({1, 2, 3}), 1);
  EXPECT_EQ(hit({1, 5}), 2);
  EXPECT_EQ(pool_->state(pages[1].page), PageState::kLive);
  EXPECT_EQ(pool_->state(pages[2].page), PageState::kLive);
  EXPECT_EQ(pool_->counts().free, 4);
  release(held);
  EXPECT_EQ(pool_->counts().free, 6);
  EXPECT_EQ(cache_->evictable(), 2);
  cache_->drop(pages[1].page);  // It has no entry any more.
  expect_sound();
}

TEST_F(PrefixCacheTest, QuarantineOfAPageDropsItsSubtree) {
  make(8);
  const std::vector<Lease> pages = put({1, 2, 3});
  const std::vector<Lease> held = cache_->match(scope_, tokens_of({1, 2}), 2);
  pool_->quarantine(*stream_, pages[1].page, "test");
  EXPECT_EQ(hit({1, 2, 3}), 1);
  EXPECT_EQ(cache_->pages(), 1);
  EXPECT_EQ(pool_->counts(), (PageCounts{8, 6, 1, 0, 1}));
  release(held);
  EXPECT_EQ(pool_->double_frees(), 0);
  EXPECT_EQ(cache_->evictable(), 1);
  // The chain can be computed and cached anew.
  put({1, 2, 3});
  EXPECT_EQ(hit({1, 2, 3}), 3);
  expect_sound();
}

TEST_F(PrefixCacheTest, CollisionIsAMiss) {
  make(8, &constant_hash);
  put({1});
  EXPECT_EQ(hit({1}), 1);
  EXPECT_EQ(hit({2}), 0);     // The same key, other tokens.
  EXPECT_EQ(hit({1, 1}), 1);  // The same key and tokens, under another parent.
  EXPECT_TRUE(cache_->match(scope_, tokens_of({2}), 1).empty());
  // Every token counts, not only where the page begins.
  for (std::size_t at = 0; at < kPageSize; ++at) {
    std::vector<std::int32_t> tokens = tokens_of({1});
    tokens[at] = 2;
    EXPECT_EQ(cache_->match_length(scope_, tokens), 0) << at;
  }
  PrefixScope other = scope_;
  other.tenant = "someone else";
  EXPECT_EQ(cache_->match_length(other, tokens_of({1})), 0);
  // What collides is not cached, and stays its holder's.
  std::vector<Lease> leases = allocate(2);
  const std::vector<Lease> before = leases;
  cache_->insert(scope_, tokens_of({2, 3}), leases);
  cache_->insert(other, tokens_of({1, 1}), leases);
  EXPECT_EQ(leases, before);
  EXPECT_EQ(cache_->pages(), 1);
  release(leases);
  expect_sound();
}

TEST_F(PrefixCacheTest, PageOfAnEarlierLeaseIsNotCached) {
  make(1);
  std::vector<Lease> old = allocate(1);
  release(old);
  const std::vector<Lease> now = allocate(1);
  ASSERT_EQ(now.front().page, old.front().page);
  const std::vector<Lease> before = old;
  cache_->insert(scope_, tokens_of({1}), old);
  EXPECT_EQ(old, before);
  EXPECT_EQ(cache_->pages(), 0);
  release(now);
  expect_sound();
}

TEST_F(PrefixCacheTest, PageThatIsCachedAlreadyIsNotCachedForAnotherTenant) {
  make(4);
  std::vector<Lease> leases = allocate(1);
  cache_->insert(scope_, tokens_of({1}), leases);
  const std::vector<Lease> before = leases;
  PrefixScope other = scope_;
  other.tenant = "someone else";
  cache_->insert(other, tokens_of({1}), leases);
  EXPECT_EQ(leases, before);
  EXPECT_EQ(cache_->match_length(other, tokens_of({1})), 0);
  EXPECT_EQ(cache_->pages(), 1);
  release(leases);
  expect_sound();
}

TEST_F(PrefixCacheTest, GivesAllPagesBackWhenItEnds) {
  make(8);
  put({1, 2, 3});
  put({4, 5});
  const std::vector<Lease> held = cache_->match(scope_, tokens_of({1, 2}), 2);
  cache_.reset();
  EXPECT_EQ(pool_->counts(), (PageCounts{8, 6, 2, 0, 0}));
  release(held);
  EXPECT_EQ(pool_->counts().free, 8);
  expect_sound();
}

TEST_F(PrefixCacheTest, ManySiblingsComeAndGo) {
  make(2000);
  for (std::int32_t id = 0; id < 1999; ++id) put({-1, id});
  EXPECT_EQ(cache_->evictable(), 2000);
  EXPECT_EQ(cache_->evict(1000), 1000);
  EXPECT_EQ(hit({-1, 999}), 1);
  EXPECT_EQ(hit({-1, 1000}), 2);
  EXPECT_EQ(cache_->clear(), 1000);
  EXPECT_EQ(pool_->counts().free, 2000);
}

}  // namespace
}  // namespace tessera::kv_cache
