// One wrong number, in one step of one engine: exactly that request ends with an error, its pages go to quarantine,
// and its neighbours' tokens are those of an undisturbed run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tests/corruption/injector.h"
#include "tests/corruption/log_capture.h"
#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::ContainsRegex;
using testing::ElementsAreArray;

enum class Where : std::uint8_t { kUnified, kPrefill, kDecode };

struct Case {
  const char* name;
  // All that find it, as the log has them; "slot" may follow, as what the row was to write to such a page is refused.
  const char* checks;
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
      {"Tag", "tag", kBefore, [](const Target& t) { t.tag(first_page(t)) ^= 1; }},
      {"TagDuringTheStep", "tag", kAfter, [](const Target& t) { t.tag(first_page(t)) ^= 1ull << 63; }},
      {"TagOfTheWrittenPage", "tag", kBefore, [](const Target& t) { t.tag(write_page(t)) += 1; }},
      // The page was freed and handed out again: its lease is the old one.
      {"OldTag", "tag", kBefore, [](const Target& t) { t.tag(first_page(t)) = t.victim.leases.front().tag + 1000; }},
      {"FreedPage", "tag", kBefore, [](const Target& t) { t.tag(first_page(t)) = 0; }},
      {"Owner", "owner", kBefore, [](const Target& t) { t.owner(first_page(t)) = t.neighbour->leases.front().owner; }},
      {"Position", "position", kBefore, [](const Target& t) { t.position(first_page(t)) = 1; }},
      // Pages that the cache has got have owners of their own.
      {"SwappedEntries", "tag(\\+owner)?\\+position", kBefore,
       [](const Target& t) { std::swap(t.table_entry(0), t.table_entry(1)); }},
      {"SwappedEntriesDuringTheStep", "tag(\\+owner)?\\+position", kAfter,
       [](const Target& t) { std::swap(t.table_entry(0), t.table_entry(1)); }},
      {"SwappedPages", "position", kBefore, [](const Target& t) { t.swap_pages(0, 1); }},
      {"AnothersPage", "tag\\+owner", kBefore,
       [](const Target& t) { t.table_entry(0) = t.neighbour->leases.front().page; }},
      {"NullPage", "range", kBefore, [](const Target& t) { t.table_entry(0) = 0; }},
      {"PageIdJustOutOfRange", "range", kBefore,
       [](const Target& t) { t.table_entry(0) = static_cast<std::int32_t>(t.step.pool.cache().num_pages); }},
      {"PageIdHuge", "range", kBefore,
       [](const Target& t) { t.table_entry(1) = std::numeric_limits<std::int32_t>::max(); }},
      {"PageIdMinusOne", "range", kBefore, [](const Target& t) { t.table_entry(0) = -1; }},
      {"PageIdMostNegative", "range", kBefore,
       [](const Target& t) { t.table_entry(write_page_index(t)) = std::numeric_limits<std::int32_t>::min(); }},
      {"PageIdHugeDuringTheStep", "range", kAfter,
       [](const Target& t) { t.table_entry(0) = std::numeric_limits<std::int32_t>::max(); }},
      {"SlotInAnothersPage", "slot", kBefore,
       [](const Target& t) {
         t.last_slot() = static_cast<std::int64_t>(t.neighbour->leases.front().page) * t.step.pool.layout().page_size;
       }},
      {"SlotPastTheLength", "slot", kBefore, [](const Target& t) { t.last_slot() += 1; }},
      {"SlotBeforeTheLength", "slot", kBefore,
       [](const Target& t) {
         t.last_slot() = static_cast<std::int64_t>(first_page(t)) * t.step.pool.layout().page_size;
       }},
      {"SlotHuge", "slot", kBefore, [](const Target& t) { t.last_slot() = std::numeric_limits<std::int64_t>::max(); }},
      {"SlotNegative", "slot", kBefore, [](const Target& t) { t.last_slot() = -7; }},
      {"SharedPageWritten", "shared", kBefore, [](const Target& t) { t.lease_count(write_page(t)) = 2; }},
  };
}

using CorruptionParam = std::tuple<Where, OracleKv, std::size_t>;

class StepCorruption : public testing::TestWithParam<CorruptionParam> {};

// A victim and three neighbours, and what is done to the victim in one step.
struct Scene {
  explicit Scene(const CorruptionParam& param, const engine::IntegrityConfig& integrity) {
    const auto& [where, kv, index] = param;
    HarnessOptions options;
    options.pools = where == Where::kUnified ? Pools::kUnified : Pools::kSplit;
    options.kv = kv;
    options.integrity = integrity;
    (where == Where::kDecode ? options.decode_observer : options.first_observer) = &injector;
    harness.emplace(options);
    // Prompts end at no multiple of the page size, so that the step after the prompt writes in the middle of a page.
    // Prefill's are so short that two of them share a step.
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto nth = static_cast<std::int64_t>(i);
      prompts.push_back(make_prompt(40 + i, where == Where::kPrefill ? 7 - nth % 3 : 13 + 4 * nth));
    }
    for (const auto& prompt : prompts) ids.push_back(harness->submit(prompt, 15));
    const Case injected = cases()[index];
    const std::int64_t start_min = where == Where::kPrefill ? 0 : std::ssize(prompts[victim]) + 3;
    injector.arm(ids[victim], start_min, injected.moment, injected.injection);
    harness->run_until_ended();
  }
  engine::Engine& engine_of(Where where) { return where == Where::kDecode ? harness->decode() : harness->first(); }
  void expect_neighbours_undisturbed() {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i == victim) continue;
      const Heard heard = harness->heard(ids[i]);
      EXPECT_TRUE(heard.finished.has_value());
      EXPECT_EQ(heard.report.integrity_recomputes, 0);
      EXPECT_THAT(heard.ids(), ElementsAreArray(harness->expected(prompts[i], 15))) << "neighbour " << i;
    }
  }

  static constexpr std::size_t victim = 1;
  Injector injector;
  std::optional<ServingHarness> harness;
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<request::SequenceId> ids;
};

TEST_P(StepCorruption, EndsExactlyThatRequest) {
  const auto [where, kv, index] = GetParam();
  const LogCapture log;
  Scene scene(GetParam(), {});
  Injector& injector = scene.injector;
  ServingHarness& harness = *scene.harness;
  const auto& prompts = scene.prompts;
  const auto& ids = scene.ids;
  constexpr std::size_t victim = Scene::victim;

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
  scene.expect_neighbours_undisturbed();
  // One line for those who look into it, and nothing of the request's content in it.
  const std::vector<std::string> lines = log.lines_with("page check failed");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], ContainsRegex(fmt::format("page check failed \\({}(\\+slot)?\\) in a step of "
                                                  "request request-{} sequence {}: logical page [0-9]+, page -?[0-9]+, "
                                                  "expected 0x[0-9a-f]+, found 0x[0-9a-f]+; [0-9]+ pages held$",
                                                  cases()[index].checks, ids[victim], ids[victim])));

  const request::EngineStats stats = scene.engine_of(where).loop().stats();
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

// The same faults where a failed check is answered by computing again: the client hears every token and no error.
TEST_P(StepCorruption, IsComputedAgainExactly) {
  const auto [where, kv, index] = GetParam();
  Scene scene(GetParam(), {.on_error = kv_cache::OnIntegrityError::kRecompute});
  ServingHarness& harness = *scene.harness;
  ASSERT_TRUE(scene.injector.reached()) << "nothing was injected";
  const auto& prompt = scene.prompts[Scene::victim];
  const Heard heard = harness.heard(scene.ids[Scene::victim]);
  EXPECT_EQ(heard.terminals, 1);
  EXPECT_EQ(heard.after_terminal, 0);
  EXPECT_TRUE(heard.finished.has_value());
  EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(prompt, 15)));
  EXPECT_EQ(heard.report.integrity_recomputes, 1);
  EXPECT_EQ(heard.report.preemptions, 0);
  scene.expect_neighbours_undisturbed();
  const request::EngineStats stats = scene.engine_of(where).loop().stats();
  EXPECT_EQ(stats.check_failures, 1);
  EXPECT_EQ(stats.integrity_recomputes, 1);
  EXPECT_GT(stats.pages_quarantined, 0);
  EXPECT_EQ(harness.router().snapshot().corrupted, 0);
  EXPECT_EQ(harness.router().snapshot().failed, 0);
  harness.expect_pages_balance(where == Where::kDecode ? 0 : stats.pages_quarantined,
                               where == Where::kDecode ? stats.pages_quarantined : 0);
}

// To the number: what the log says is what the device had and what the lease has.
TEST(ForensicLog, HasTheNumbers) {
  const LogCapture log;
  Injector injector;
  HarnessOptions options;
  options.pools = Pools::kUnified;
  options.first_observer = &injector;
  ServingHarness harness(options);
  const auto id = harness.submit(make_prompt(1, 13), 15);
  harness.submit(make_prompt(2, 13), 15);
  kv_cache::Lease lease;
  injector.arm(id, 16, Moment::kBeforeCheck, [&](const Target& t) {
    lease = t.victim.leases[2];
    t.tag(lease.page) = 0xdead;
  });
  harness.run_until_ended();
  const std::vector<std::string> lines = log.lines_with(
      fmt::format("(tag) in a step of request request-{} sequence {}: logical page 2, page {}, expected {:#x}, found "
                  "0xdead; 5 pages held",
                  id, id, lease.page, lease.tag));
  EXPECT_EQ(lines.size(), 1u);
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
