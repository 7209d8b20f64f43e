// One wrong number, in one step of one engine: exactly that request ends with an error, its pages go to quarantine,
// and its neighbours' tokens are those of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/corruption/injector.h"
#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

enum class Where : std::uint8_t { kUnified, kPrefill, kDecode };

struct Case {
  const char* name;
  Moment moment;
  Injector::Injection injection;
};

// Row 0's page 0 is where every victim has something; its last page is where it writes.
kv_cache::PageId first_page(const Target& t) { return t.victim.leases.front().page; }
std::size_t write_page_index(const Target& t) {
  return static_cast<std::size_t>((t.victim.start + t.victim.count - 1) / t.step.pool.layout().page_size);
}
kv_cache::PageId write_page(const Target& t) { return t.victim.leases[write_page_index(t)].page; }

std::vector<Case> cases() {
  constexpr Moment kBefore = Moment::kBeforeCheck;
  constexpr Moment kAfter = Moment::kBeforeSecondCheck;
  return {
      {"Tag", kBefore, [](const Target& t) { t.tag(first_page(t)) ^= 1; }},
      {"TagDuringTheStep", kAfter, [](const Target& t) { t.tag(first_page(t)) ^= 1ull << 63; }},
      {"TagOfTheWrittenPage", kBefore, [](const Target& t) { t.tag(write_page(t)) += 1; }},
      // The page was freed and handed out again: its lease is the old one.
      {"OldTag", kBefore, [](const Target& t) { t.tag(first_page(t)) = t.victim.leases.front().tag + 1000; }},
      {"FreedPage", kBefore, [](const Target& t) { t.tag(first_page(t)) = 0; }},
      {"Owner", kBefore, [](const Target& t) { t.owner(first_page(t)) = t.neighbour->leases.front().owner; }},
      {"Position", kBefore, [](const Target& t) { t.position(first_page(t)) = 1; }},
      {"SwappedEntries", kBefore, [](const Target& t) { std::swap(t.table_entry(0), t.table_entry(1)); }},
      {"SwappedEntriesDuringTheStep", kAfter, [](const Target& t) { std::swap(t.table_entry(0), t.table_entry(1)); }},
      {"AnothersPage", kBefore, [](const Target& t) { t.table_entry(0) = t.neighbour->leases.front().page; }},
      {"NullPage", kBefore, [](const Target& t) { t.table_entry(0) = 0; }},
      {"PageIdJustOutOfRange", kBefore,
       [](const Target& t) { t.table_entry(0) = static_cast<std::int32_t>(t.step.pool.cache().num_pages); }},
      {"PageIdHuge", kBefore, [](const Target& t) { t.table_entry(1) = std::numeric_limits<std::int32_t>::max(); }},
      {"PageIdMinusOne", kBefore, [](const Target& t) { t.table_entry(0) = -1; }},
      {"PageIdMostNegative", kBefore,
       [](const Target& t) { t.table_entry(write_page_index(t)) = std::numeric_limits<std::int32_t>::min(); }},
      {"PageIdHugeDuringTheStep", kAfter,
       [](const Target& t) { t.table_entry(0) = std::numeric_limits<std::int32_t>::max(); }},
      {"SlotInAnothersPage", kBefore,
       [](const Target& t) {
         t.last_slot() = static_cast<std::int64_t>(t.neighbour->leases.front().page) * t.step.pool.layout().page_size;
       }},
      {"SlotPastTheLength", kBefore, [](const Target& t) { t.last_slot() += 1; }},
      {"SlotBeforeTheLength", kBefore,
       [](const Target& t) {
         t.last_slot() = static_cast<std::int64_t>(first_page(t)) * t.step.pool.layout().page_size;
       }},
      {"SlotHuge", kBefore, [](const Target& t) { t.last_slot() = std::numeric_limits<std::int64_t>::max(); }},
      {"SlotNegative", kBefore, [](const Target& t) { t.last_slot() = -7; }},
      {"SharedPageWritten", kBefore, [](const Target& t) { t.lease_count(write_page(t)) = 2; }},
  };
}

using CorruptionParam = std::tuple<Where, OracleKv, std::size_t>;

class StepCorruption : public testing::TestWithParam<CorruptionParam> {};

TEST_P(StepCorruption, EndsExactlyThatRequest) {
  const auto [where, kv, index] = GetParam();
  const Case injected = cases()[index];
  Injector injector;
  HarnessOptions options;
  options.pools = where == Where::kUnified ? Pools::kUnified : Pools::kSplit;
  options.kv = kv;
  (where == Where::kDecode ? options.decode_observer : options.first_observer) = &injector;
  ServingHarness harness(options);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<request::SequenceId> ids;
  // Prompts end at no multiple of the page size, so that the step after the prompt writes in the middle of a page.
  // Prefill's are so short that two of them share a step.
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto nth = static_cast<std::int64_t>(i);
    prompts.push_back(make_prompt(40 + i, where == Where::kPrefill ? 7 - nth % 3 : 13 + 4 * nth));
  }
  for (const auto& prompt : prompts) ids.push_back(harness.submit(prompt, 15));
  const std::size_t victim = 1;
  const std::int64_t start_min = where == Where::kPrefill ? 0 : std::ssize(prompts[victim]) + 3;
  injector.arm(ids[victim], start_min, injected.moment, injected.injection);
  harness.run_until_ended();

  ASSERT_TRUE(injector.reached()) << "nothing was injected";
  const Heard heard = harness.heard(ids[victim]);
  EXPECT_EQ(heard.terminals, 1);
  EXPECT_EQ(heard.after_terminal, 0);
  ASSERT_TRUE(heard.failed.has_value());
  EXPECT_EQ(heard.failed->code(), base::StatusCode::kCorruption);
  // The text has nothing of what the check saw.
  EXPECT_EQ(heard.failed->message().find_first_of("0123456789"), std::string::npos);
  const auto right = harness.expected(prompts[victim], 15);
  ASSERT_LT(heard.tokens.size(), right.size());
  EXPECT_THAT(heard.ids(), ElementsAreArray(right.begin(), right.begin() + std::ssize(heard.tokens)));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i == victim) continue;
    EXPECT_TRUE(harness.heard(ids[i]).finished.has_value());
    EXPECT_THAT(harness.heard(ids[i]).ids(), ElementsAreArray(harness.expected(prompts[i], 15))) << "neighbour " << i;
  }

  engine::Engine& engine = where == Where::kDecode ? harness.decode() : harness.first();
  const request::EngineStats stats = engine.loop().stats();
  EXPECT_EQ(stats.check_failures, 1);
  EXPECT_GT(stats.pages_quarantined, 0);
  EXPECT_LE(stats.pages_quarantined, injector.victim_pages());
  EXPECT_EQ(harness.router().snapshot().corrupted, 1);

  // The same prompt again: nothing of the suspicious pages is used, and the answer is right.
  const auto again = harness.submit(prompts[victim], 15);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(right));
  harness.expect_pages_balance(where == Where::kDecode ? 0 : stats.pages_quarantined,
                               where == Where::kDecode ? stats.pages_quarantined : 0);
}

std::string corruption_name(const testing::TestParamInfo<CorruptionParam>& test) {
  const auto [where, kv, index] = test.param;
  const std::string engine = where == Where::kUnified ? "Unified" : where == Where::kPrefill ? "Prefill" : "Decode";
  return engine + (kv == OracleKv::kLatents ? "Latents" : "") + cases()[index].name;
}

INSTANTIATE_TEST_SUITE_P(Engines, StepCorruption,
                         testing::Combine(testing::Values(Where::kUnified, Where::kPrefill, Where::kDecode),
                                          testing::Values(OracleKv::kKeysAndValues, OracleKv::kLatents),
                                          testing::Range<std::size_t>(0, cases().size())),
                         corruption_name);

}  // namespace
}  // namespace tessera::test_support
