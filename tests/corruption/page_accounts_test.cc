// Pages that the accounts lose: the audit reports them, what can still be served is served, and nobody waits for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/corruption/log_capture.h"
#include "tests/serving/serving_harness.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

// Frees of so many pages that never came: leases that nobody holds.
void lose(engine::Engine& engine, std::int64_t pages) {
  const std::unique_ptr<ops::Backend> backend = backends::cpu::make_reference_backend();
  const std::unique_ptr<ops::Stream> stream = backend->make_stream();
  for (std::int64_t i = 0; i < pages; ++i) {
    ASSERT_TRUE(engine.loop().pool().allocate(*stream, kv_cache::owner_of_sequence(9999), 0).has_value());
  }
}

TEST(LostPages, TheAuditReportsThemAndServiceDegrades) {
  for (const bool lost_at_decode : {false, true}) {
    for (const Pools pools : {Pools::kUnified, Pools::kSplit}) {
      if (lost_at_decode && pools == Pools::kUnified) continue;
      SCOPED_TRACE(fmt::format("{} pool(s), lost at {}", pools == Pools::kUnified ? 1 : 2, lost_at_decode ? 2 : 1));
      HarnessOptions options;
      options.pools = pools;
      options.pages = 12;
      options.prefill_pages = 12;
      ServingHarness harness(options);
      engine::Engine& damaged = lost_at_decode ? harness.decode() : harness.first();
      lose(damaged, 7);
      EXPECT_EQ(damaged.loop().audit().code(), base::StatusCode::kCorruption);

      // When idle, by itself.
      const LogCapture log;
      harness.clock().advance(std::chrono::seconds(61));
      for (int i = 0; i < 3; ++i) harness.turn();
      EXPECT_EQ(log.lines_with("the page accounts do not balance").size(), 1u);
      EXPECT_EQ(damaged.loop().stats().audit_failures, 1);

      // What fits the rest is served; what does not is told so, also when it stands before others in the queue or
      // outgrows what is left.
      const auto small = make_prompt(1, 9);
      const auto big = make_prompt(2, 25);
      const auto first = harness.submit(small, 6);
      const auto too_big = harness.submit(big, 6);
      const auto outgrows = harness.submit(small, 30);
      const auto last = harness.submit(small, 6);
      harness.run_until_ended();
      for (const auto id : {first, last}) {
        EXPECT_THAT(harness.heard(id).ids(), ElementsAreArray(harness.expected(small, 6)));
      }
      ASSERT_TRUE(harness.heard(too_big).failed.has_value());
      EXPECT_EQ(harness.heard(too_big).failed->code(), base::StatusCode::kResourceExhausted);
      // A prefill pool does not hold what is generated.
      const auto right = harness.expected(small, 30);
      if (pools == Pools::kSplit && !lost_at_decode) {
        EXPECT_THAT(harness.heard(outgrows).ids(), ElementsAreArray(right));
      } else {
        const Heard heard = harness.heard(outgrows);
        ASSERT_TRUE(heard.failed.has_value());
        EXPECT_EQ(heard.failed->code(), base::StatusCode::kResourceExhausted);
        EXPECT_EQ(heard.terminals, 1);
        // All that five pages have room for, and the token after it.
        EXPECT_THAT(heard.ids(), ElementsAreArray(right.begin(), right.begin() + 5 * 4 - 9 + 1));
      }
      EXPECT_GT(damaged.loop().stats().audit_failures, 1);
      EXPECT_EQ(damaged.loop().stats().pages_leased, 7);
      EXPECT_EQ(damaged.loop().live(), 0);
    }
  }
}

}  // namespace
}  // namespace tessera::test_support
