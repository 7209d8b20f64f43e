// Page pool and prefix cache together against a trivial model, under random operations in any order: after every step
// all pages are accounted for, and both agree about every page, every cached chain and what could be evicted.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/logging.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/prefix_cache.h"

namespace tessera::kv_cache {
namespace {

constexpr std::int32_t kPageSize = 2;
constexpr std::int64_t kPages = 20;

// A chain of whole pages, each named by the one token that fills it.
using Chain = std::vector<std::int32_t>;

std::vector<std::int32_t> tokens_of(const Chain& chain) {
  std::vector<std::int32_t> tokens;
  for (const std::int32_t id : chain) tokens.insert(tokens.end(), kPageSize, id);
  return tokens;
}

Chain prefix(const Chain& chain, std::size_t pages) {
  return Chain(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(pages));
}

bool is_below(const Chain& chain, const Chain& above) {
  return chain.size() >= above.size() && prefix(chain, above.size()) == above;
}

// The whole truth about a pool and its cache, written down as plainly as can be.
struct Model {
  struct Page {
    PageTag tag = 0;
    std::int32_t leases = 0;
    bool held = false;
    enum class Content : std::uint8_t { kNone, kByPeer, kComplete } content = Content::kNone;
    bool quarantined = false;
    bool check_failed = false;
    bool write_in_flight = false;

    PageState state() const {
      if (quarantined) return PageState::kQuarantined;
      if (leases > 1) return PageState::kShared;
      if (leases == 0) return PageState::kCached;
      return content == Content::kNone     ? PageState::kReserved
             : content == Content::kByPeer ? PageState::kInTransfer
                                           : PageState::kLive;
    }
  };
  struct Entry {
    PageId page = 0;
    std::int64_t last_used = 0;
  };
  std::map<PageId, Page> pages;  // Those that are not free.
  std::map<Chain, Entry> cache;
  std::int64_t clock = 0;
  std::int64_t double_frees = 0;

  bool current(const Lease& lease) const {
    const auto it = pages.find(lease.page);
    return it != pages.end() && !it->second.quarantined && it->second.tag == lease.tag;
  }
  void settle(PageId page) {
    const auto it = pages.find(page);
    if (!it->second.quarantined && it->second.leases == 0 && !it->second.held) pages.erase(it);
  }
  void release(const Lease& lease) {
    if (!current(lease)) return;  // A quarantine ended it.
    Page& page = pages.at(lease.page);
    if (page.content == Page::Content::kByPeer) {
      page = Page{.quarantined = true, .write_in_flight = true};
      return;
    }
    --page.leases;
    settle(lease.page);
  }
  bool complete(const Lease& lease) const {
    return current(lease) && pages.at(lease.page).content == Page::Content::kComplete;
  }
  bool pinned(const Chain& chain) const {
    return std::ranges::any_of(cache, [&](const auto& entry) {
      return is_below(entry.first, chain) && pages.at(entry.second.page).leases > 0;
    });
  }
  bool leaf(const Chain& chain) const {
    return std::ranges::none_of(
        cache, [&](const auto& entry) { return entry.first.size() > chain.size() && is_below(entry.first, chain); });
  }
  std::int64_t evictable() const {
    return std::ranges::count_if(cache, [&](const auto& entry) { return !pinned(entry.first); });
  }
  void erase_entry(const Chain& chain) {
    const PageId page = cache.at(chain).page;
    cache.erase(chain);
    pages.at(page).held = false;
    settle(page);
  }
  std::int64_t evict(std::int64_t wanted) {
    std::int64_t freed = 0;
    for (; freed < wanted; ++freed) {
      const Chain* oldest = nullptr;
      for (const auto& [chain, entry] : cache) {
        if (!leaf(chain) || pinned(chain)) continue;
        if (oldest == nullptr || entry.last_used < cache.at(*oldest).last_used) oldest = &chain;
      }
      if (oldest == nullptr) break;
      erase_entry(Chain(*oldest));
    }
    return freed;
  }
  void drop(PageId page) {
    const auto it = std::ranges::find_if(cache, [&](const auto& entry) { return entry.second.page == page; });
    if (it == cache.end()) return;
    const Chain top = it->first;
    std::vector<Chain> below;
    for (const auto& [chain, entry] : cache) {
      if (is_below(chain, top)) below.push_back(chain);
    }
    for (const Chain& chain : below) erase_entry(chain);
  }
  void quarantine(PageId page, QuarantineCause cause) {
    if (!pages.contains(page) || !pages.at(page).quarantined) {
      drop(page);
      Page& p = pages[page];
      p = Page{.quarantined = true, .write_in_flight = p.content == Page::Content::kByPeer};
    }
    (cause == QuarantineCause::kFailedCheck ? pages.at(page).check_failed : pages.at(page).write_in_flight) = true;
  }
  std::int64_t match_length(const Chain& chain) const {
    std::size_t pages_found = 0;
    while (pages_found < chain.size() && cache.contains(prefix(chain, pages_found + 1))) ++pages_found;
    return static_cast<std::int64_t>(pages_found);
  }
};

struct Sequence {
  Chain chain;
  std::vector<Lease> leases;
};

// Numbers that say what to do next; what they choose among depends on the state then.
using Step = std::tuple<std::uint8_t, std::uint16_t, std::uint16_t>;

class Comparison {
 public:
  Comparison() {
    auto made =
        PagePool::create(*backend_, *stream_, ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, kPageSize, 1, 8), kPages);
    RC_ASSERT(made.has_value());
    pool_ = std::move(*made);
    cache_ = std::make_unique<PrefixCache>(*pool_, *stream_);
  }

  void step(const Step& step) {
    const auto [kind, a, b] = step;
    // Weighted so that the pool is neither always full nor always empty, and the cache holds several leaves.
    switch (kind % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
        start(a, b);
        break;
      case 4:
      case 5:
      case 6:
        insert(a);
        break;
      case 7:
      case 8:
      case 9:
      case 10:
        finish(a);
        break;
      case 11:
        fork(a);
        break;
      case 12:
        RC_ASSERT(cache_->evict(b % 3) == model_.evict(b % 3));
        break;
      case 13:
        quarantine(a, b);
        break;
      case 14:
        fence();
        drop(a, b);
        complete(a);
        audit(b);
        break;
      case 15:
        free_again(a);
        break;
    }
    compare(Chain{a % 3, b % 3, (a / 3) % 3});
  }

  void end() {
    while (!sequences_.empty()) finish(0);
    cache_->clear();
    model_.evict(kPages);
    compare(Chain{});
    RC_ASSERT(cache_->pages() == 0);
    RC_ASSERT(pool_->counts().leased == 0);
  }

 private:
  // A new sequence: prefix match, then allocation of the rest; without enough pages it gives all back.
  void start(std::uint16_t a, std::uint16_t b) {
    Chain chain;
    for (int j = 0; j <= a % 4; ++j) chain.push_back((b >> (2 * j)) % 3);
    const std::int64_t found = model_.match_length(chain);
    Sequence sequence{chain, cache_->match(scope_, tokens_of(chain), std::ssize(chain))};
    RC_ASSERT(std::ssize(sequence.leases) == found);
    for (std::size_t j = 0; j < sequence.leases.size(); ++j) {
      Model::Entry& entry = model_.cache.at(prefix(chain, j + 1));
      RC_ASSERT(sequence.leases[j].page == entry.page);
      entry.last_used = ++model_.clock;
      ++model_.pages.at(entry.page).leases;
    }
    bool enough = true;
    while (enough && sequence.leases.size() < chain.size()) {
      const auto lease = pool_->allocate(*stream_, owner_of_sequence(++sequence_ids_),
                                         static_cast<std::int32_t>(sequence.leases.size()));
      RC_ASSERT(lease.has_value() == (std::ssize(model_.pages) < kPages));
      enough = lease.has_value();
      if (!enough) break;
      RC_ASSERT(tags_.insert(lease->tag).second);
      RC_ASSERT(!model_.pages.contains(lease->page));
      model_.pages[lease->page] = Model::Page{.tag = lease->tag, .leases = 1};
      sequence.leases.push_back(*lease);
      // Most are written at once; a few stay reserved, or are a peer's to fill.
      if (a % 8 == 0) continue;
      a % 8 == 1 ? receive(*lease) : write(*lease);
    }
    sequences_.push_back(std::move(sequence));
    if (!enough) finish(static_cast<std::uint16_t>(sequences_.size() - 1));
  }

  void insert(std::uint16_t a) {
    if (sequences_.empty()) return;
    Sequence& sequence = sequences_[a % sequences_.size()];
    std::vector<Lease>& leases = sequence.leases;
    const std::vector<Lease> before = leases;
    cache_->insert(scope_, tokens_of(sequence.chain), leases);
    bool taking = true;
    for (std::size_t j = 0; j < leases.size(); ++j) {
      const Chain chain = prefix(sequence.chain, j + 1);
      if (taking && model_.cache.contains(chain)) {
        model_.cache.at(chain).last_used = ++model_.clock;
        RC_ASSERT(leases[j] == before[j]);
        continue;
      }
      taking = taking && model_.complete(before[j]) && !model_.pages.at(before[j].page).held &&
               (model_.pages.at(before[j].page).leases == 1 || before[j].owner == leases[j].owner);
      if (taking && model_.pages.at(before[j].page).leases > 1) {
        // It was cached under this very chain before, and dropped: all its holders know that owner.
        taking = (before[j].owner >> 63) == 0;
      }
      if (taking) {
        model_.pages.at(before[j].page).held = true;
        model_.cache[chain] = Model::Entry{before[j].page, ++model_.clock};
        RC_ASSERT((leases[j].owner >> 63) == 0u);
        RC_ASSERT(leases[j].tag == before[j].tag && leases[j].page == before[j].page);
      } else {
        RC_ASSERT(leases[j] == before[j]);
      }
    }
  }

  void finish(std::uint16_t a) {
    if (sequences_.empty()) return;
    const std::size_t index = a % sequences_.size();
    for (const Lease& lease : sequences_[index].leases) {
      model_.release(lease);
      RC_ASSERT(pool_->release(*stream_, lease).ok());
      if (!model_.current(lease)) ended_.push_back(lease);
    }
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // Another sequence with the same pages.
  void fork(std::uint16_t a) {
    if (sequences_.empty()) return;
    const Sequence& original = sequences_[a % sequences_.size()];
    if (!std::ranges::all_of(original.leases, [&](const Lease& lease) { return model_.complete(lease); })) return;
    Sequence copy{original.chain, {}};
    for (const Lease& lease : original.leases) {
      copy.leases.push_back(pool_->share(*stream_, lease));
      ++model_.pages.at(lease.page).leases;
    }
    sequences_.push_back(std::move(copy));
  }

  void write(const Lease& lease) {
    pool_->begin_write(lease);
    RC_ASSERT(pool_->state(lease.page) == PageState::kWriting);
    pool_->end_write(lease, 1);
    model_.pages.at(lease.page).content = Model::Page::Content::kComplete;
  }

  void receive(const Lease& lease) {
    pool_->begin_receive(lease);
    model_.pages.at(lease.page).content = Model::Page::Content::kByPeer;
  }

  // What a sequence's pages still miss is written.
  void complete(std::uint16_t a) {
    if (sequences_.empty()) return;
    for (const Lease& lease : sequences_[a % sequences_.size()].leases) {
      if (!model_.current(lease)) continue;
      Model::Page& page = model_.pages.at(lease.page);
      if (page.content == Model::Page::Content::kNone) write(lease);
      if (page.content == Model::Page::Content::kByPeer) pool_->end_receive(lease, 1);
      page.content = Model::Page::Content::kComplete;
    }
  }

  void audit(std::uint16_t b) {
    if (b % 8 != 0) return;
    QuarantineAudit expected;
    for (auto it = model_.pages.begin(); it != model_.pages.end();) {
      const Model::Page page = it->second;
      const bool freed = page.quarantined && !page.write_in_flight;
      if (page.quarantined) ++(freed ? expected.freed : expected.kept);
      it = freed ? model_.pages.erase(it) : std::next(it);
    }
    const QuarantineAudit found = pool_->audit_quarantined(*stream_);
    RC_ASSERT(found.freed == expected.freed && found.kept == expected.kept);
  }

  // Of every second page, so that what is audited may still have a write in flight.
  void fence() {
    fence_from_ = 3 - fence_from_;
    for (PageId page = fence_from_; page <= kPages; page += 2) {
      pool_->fence(*stream_, page);
      const auto it = model_.pages.find(page);
      if (it == model_.pages.end()) continue;
      if (it->second.content == Model::Page::Content::kByPeer) it->second.content = Model::Page::Content::kNone;
      it->second.write_in_flight = false;
      if (it->second.quarantined && !it->second.check_failed) model_.pages.erase(it);
    }
  }

  void drop(std::uint16_t a, std::uint16_t b) {
    if (b % 4 != 0) return;
    const PageId page = 1 + a % kPages;
    cache_->drop(page);
    model_.drop(page);
  }

  void quarantine(std::uint16_t a, std::uint16_t b) {
    const PageId page = 1 + a % kPages;
    // Rarely for good, or all pages would soon be there.
    const QuarantineCause cause = b % 16 == 0 ? QuarantineCause::kFailedCheck : QuarantineCause::kWriteInFlight;
    pool_->quarantine(*stream_, page, "model test", cause);
    model_.quarantine(page, cause);
  }

  // A lease that ended for all its holders is released once more. (While others hold the page under the same tag, the
  // pool cannot know whose lease it was.)
  void free_again(std::uint16_t a) {
    if (ended_.empty()) return;
    const Lease lease = ended_[a % ended_.size()];
    const auto holds = [&](const Sequence& sequence) {
      return std::ranges::any_of(sequence.leases, [&](const Lease& held) { return held.tag == lease.tag; });
    };
    if (std::ranges::any_of(sequences_, holds)) return;
    RC_ASSERT(pool_->release(*stream_, lease).code() == base::StatusCode::kCorruption);
    ++model_.double_frees;
  }

  void compare(const Chain& probe) {
    const base::Status sound = pool_->check_conservation(*stream_);
    if (!sound.ok()) RC_FAIL(sound.to_string());
    PageCounts expected{.total = kPages};
    for (PageId page = 1; page <= kPages; ++page) {
      PageState state = PageState::kFree;
      std::int32_t leases = 0;
      if (const auto it = model_.pages.find(page); it != model_.pages.end()) {
        leases = it->second.leases;
        state = it->second.state();
      }
      ++(state == PageState::kFree          ? expected.free
         : state == PageState::kCached      ? expected.cached
         : state == PageState::kQuarantined ? expected.quarantined
                                            : expected.leased);
      RC_ASSERT(pool_->state(page) == state);
      RC_ASSERT(pool_->lease_count(page) == leases);
    }
    RC_ASSERT(pool_->counts() == expected);
    RC_ASSERT(cache_->pages() == std::ssize(model_.cache));
    RC_ASSERT(cache_->evictable() == model_.evictable());
    RC_ASSERT(cache_->match_length(scope_, tokens_of(probe)) == model_.match_length(probe));
    RC_ASSERT(pool_->double_frees() == model_.double_frees);
    std::vector<Lease> held;
    for (const Sequence& sequence : sequences_) {
      held.insert(held.end(), sequence.leases.begin(), sequence.leases.end());
    }
    const base::Status audited = pool_->audit(*stream_, held);
    if (!audited.ok()) RC_FAIL(audited.to_string());
  }

  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PrefixCache> cache_;
  const PrefixScope scope_{"tenant", "model", ops::KvFormat::kBF16, Provenance::kPrefill};
  Model model_;
  std::vector<Sequence> sequences_;
  std::vector<Lease> ended_;
  std::set<PageTag> tags_;
  std::uint64_t sequence_ids_ = 0;
  PageId fence_from_ = 1;
};

// Thousands of quarantines would be logged.
class KvCacheModel : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(base::set_log_level("off").ok()); }
  void TearDown() override { ASSERT_TRUE(base::set_log_level("info").ok()); }
};

TEST_F(KvCacheModel, AgreesUnderRandomOperations) {
  EXPECT_TRUE(rc::check("pool and cache agree with the model", [](const std::vector<Step>& steps) {
    Comparison run;
    for (const Step& step : steps) run.step(step);
    run.end();
  }));
}

// Long runs, which the property above (at most 100 steps) does not make.
TEST_F(KvCacheModel, AgreesOverLongRuns) {
  EXPECT_TRUE(rc::check("pool and cache agree over a long run", [](std::uint64_t seed) {
    Comparison run;
    std::uint64_t state = seed;
    const auto next = [&state] { return base::mix64(state += base::kMix64Step); };
    for (int i = 0; i < 400; ++i) {
      const std::uint64_t bits = next();
      run.step({static_cast<std::uint8_t>(bits), static_cast<std::uint16_t>(bits >> 8),
                static_cast<std::uint16_t>(bits >> 24)});
    }
    run.end();
  }));
}

}  // namespace
}  // namespace tessera::kv_cache
