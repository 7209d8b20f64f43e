// Damage between prefill and decode: while the sender reads, and while the receiver waits or writes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tessera/kv_transfer/wire.h"
#include "tests/corruption/log_capture.h"
#include "tests/serving/serving_harness.h"
#include "tests/support/fault_access.h"

namespace tessera::test_support {
namespace {

using testing::ElementsAreArray;

// Damages the tags of all leased pages of an engine that are at a logical position, and returns their leases.
std::vector<kv_cache::Lease> damage(engine::Engine& engine, std::int32_t position) {
  auto& pool = engine.loop().pool();
  std::vector<kv_cache::Lease> damaged;
  for (kv_cache::PageId page = 1; page < static_cast<kv_cache::PageId>(pool.cache().num_pages); ++page) {
    if (pool.lease_count(page) > 0 && pool.position(page) == position) {
      fault_injection::Access::tags(pool)[page] ^= 8;
      damaged.push_back(pool.current_lease(page));
    }
  }
  return damaged;
}

void expect_in_log(const LogCapture& log, request::EngineId engine, request::SequenceId id, std::int32_t position,
                   const kv_cache::Lease& lease, std::size_t held) {
  // What was to be written to such a page is refused, too.
  expect_one_line(
      log, "in a handoff of request",
      fmt::format("engine {}: page check failed \\(tag(\\+slot)?\\) in a handoff of request request-{} sequence "
                  "{}: logical page {}, page {}, expected {:#x}, found {:#x}; {} pages held",
                  engine, id, id, position, lease.page, lease.tag, lease.tag ^ 8, held));
}

void expect_served(ServingHarness& harness, const std::vector<std::int32_t>& prompt) {
  const auto again = harness.submit(prompt, 6);
  harness.run_until_ended();
  EXPECT_THAT(harness.heard(again).ids(), ElementsAreArray(harness.expected(prompt, 6)));
}

void expect_only_that_one_failed(ServingHarness& harness, request::SequenceId id,
                                 const std::vector<std::int32_t>& prompt) {
  const Heard heard = harness.heard(id);
  EXPECT_EQ(heard.terminals, 1);
  ASSERT_TRUE(heard.failed.has_value());
  EXPECT_EQ(heard.failed->code(), base::StatusCode::kCorruption);
  EXPECT_EQ(heard.tokens.size(), 1u);
  expect_served(harness, prompt);
}

void expect_recomputed(ServingHarness& harness, request::SequenceId id, const std::vector<std::int32_t>& prompt) {
  const Heard heard = harness.heard(id);
  EXPECT_EQ(heard.terminals, 1);
  EXPECT_THAT(heard.ids(), ElementsAreArray(harness.expected(prompt, 6)));
  EXPECT_EQ(heard.report.integrity_recomputes, 1);
  EXPECT_EQ(harness.first().loop().stats().integrity_recomputes, 1);
  EXPECT_EQ(harness.router().snapshot().failed, 0);
  expect_served(harness, prompt);
}

class HandoffCorruption : public testing::TestWithParam<std::tuple<OracleKv, kv_cache::OnIntegrityError>> {
 protected:
  static HarnessOptions options() {
    HarnessOptions options;
    std::tie(options.kv, options.integrity.on_error) = GetParam();
    return options;
  }
  static void expect_outcome(ServingHarness& harness, request::SequenceId id, const std::vector<std::int32_t>& prompt) {
    if (std::get<1>(GetParam()) == kv_cache::OnIntegrityError::kRecompute) {
      expect_recomputed(harness, id, prompt);
    } else {
      expect_only_that_one_failed(harness, id, prompt);
    }
  }
};

std::string corruption_name(const testing::TestParamInfo<HandoffCorruption::ParamType>& test) {
  const auto [kv, on_error] = test.param;
  return std::string(kv == OracleKv::kLatents ? "Latents" : "KeysAndValues") +
         (on_error == kv_cache::OnIntegrityError::kRecompute ? "Recompute" : "");
}

INSTANTIATE_TEST_SUITE_P(Layouts, HandoffCorruption,
                         testing::Combine(testing::Values(OracleKv::kKeysAndValues, OracleKv::kLatents),
                                          testing::Values(kv_cache::OnIntegrityError::kAbort,
                                                          kv_cache::OnIntegrityError::kRecompute)),
                         corruption_name);

TEST_P(HandoffCorruption, APageOfTheSenderBeforeItIsRead) {
  const LogCapture log;
  ServingHarness harness(options());
  const auto prompt = make_prompt(1, 22);
  const auto id = harness.submit(prompt, 6);
  ASSERT_TRUE(harness.run_until([&] { return harness.first().loop().stats().handing_over == 1; }));
  const auto damaged = damage(harness.first(), 1);
  ASSERT_EQ(damaged.size(), 1u);
  harness.run_until_ended();
  expect_in_log(log, 1, id, 1, damaged[0], 6);
  expect_outcome(harness, id, prompt);
  EXPECT_GT(harness.first().loop().stats().pages_quarantined, 0);
  harness.expect_pages_balance(harness.first().loop().stats().pages_quarantined,
                               harness.decode().loop().stats().pages_quarantined);
}

TEST_P(HandoffCorruption, APageOfTheReceiverBeforeItIsWritten) {
  const LogCapture log;
  ServingHarness harness(options());
  const auto prompt = make_prompt(1, 22);
  // Messages with page data wait until the damage is done.
  std::vector<std::tuple<kv_transfer::PeerId, kv_transfer::PeerId, std::vector<std::byte>>> held;
  bool holding = true;
  harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
    if (holding && harness.decode().loop().stats().handing_over == 1 && from == 1) {
      held.emplace_back(from, to, std::move(message));
    } else {
      harness.transport().deliver(from, to, std::move(message));
    }
  });
  const auto id = harness.submit(prompt, 6);
  ASSERT_TRUE(harness.run_until([&] { return !held.empty(); }));
  const auto damaged = damage(harness.decode(), 2);
  ASSERT_EQ(damaged.size(), 1u);
  holding = false;
  for (auto& [from, to, message] : held) harness.transport().deliver(from, to, std::move(message));
  harness.run_until_ended();
  expect_in_log(log, 2, id, 2, damaged[0], 6);
  expect_outcome(harness, id, prompt);
  harness.expect_pages_balance(harness.first().loop().stats().pages_quarantined,
                               harness.decode().loop().stats().pages_quarantined);
}

// On the way: where the message's checksum sees it, and where it happened before that was taken. The log has it once of
// each engine that hears of it, with request and sequence, what was expected and what was found, and the logical page.
TEST_P(HandoffCorruption, OfPageDataOnTheWay) {
  for (const bool sealed : {false, true}) {
    SCOPED_TRACE(sealed);
    const LogCapture log;
    ServingHarness harness(options());
    constexpr std::size_t kTypeOffset = 6;
    constexpr std::byte kPageData{5};
    std::uint64_t expected = 0;
    std::int32_t layer = -1;
    std::int32_t first = -1;
    harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
      if (expected == 0 && message[kTypeOffset] == kPageData) {
        // The body's checksum, or the digest of its first page.
        const std::size_t body = kv_transfer::wire::kHeaderBytes;
        std::memcpy(&expected, message.data() + (sealed ? body + 24 : 32), sizeof(expected));
        std::memcpy(&layer, message.data() + body, sizeof(layer));
        std::memcpy(&first, message.data() + body + 4, sizeof(first));
        std::int32_t pages = 0;
        std::memcpy(&pages, message.data() + body + 8, sizeof(pages));
        message[body + 24 + 8 * static_cast<std::size_t>(pages)] ^= std::byte{4};
        if (sealed) kv_transfer::wire::seal(message);
      }
      harness.transport().deliver(from, to, std::move(message));
    });
    const auto prompt = make_prompt(1, 22);
    const auto id = harness.submit(prompt, 6);
    harness.run_until_ended();
    ASSERT_NE(expected, 0u);
    const std::string what =
        sealed
            ? fmt::format("corruption: layer {}, page {}: digest of what was stored: expected {:#x}, found 0x[0-9a-f]+",
                          layer, first, expected)
            : fmt::format("data_loss: handoff message: body checksum: expected {:#x}, found 0x[0-9a-f]+", expected);
    expect_one_line(
        log, "from engine 1 failed",
        fmt::format("engine 2: handoff of request request-{} sequence {} from engine 1 failed: {}", id, id, what));
    // Where the router ends the sequence, the sender has not heard yet why.
    if (std::get<1>(GetParam()) == kv_cache::OnIntegrityError::kRecompute) {
      expect_one_line(
          log, "to engine 2 failed",
          fmt::format("engine 1: handoff of request request-{} sequence {} to engine 2 failed: {}", id, id, what));
    }
    expect_outcome(harness, id, prompt);
    harness.run_until([&] { return harness.decode().loop().pool().awaiting_fence() == 0; });  // The fence.
    harness.expect_pages_balance(0, harness.decode().loop().stats().pages_quarantined);
  }
}

// A page that a receiver has from its prefix cache goes to quarantine, is rewritten and given to somebody else before
// the handoff is over: the receiver's check fails on it, and its new holder does not notice.
TEST(HandoffOfALostPage, APageThatIsSomebodyElsesByThen) {
  ServingHarness harness({});
  const auto prompt = make_prompt(1, 22);
  harness.submit(prompt, 2);
  harness.run_until_ended();  // Now both engines have its whole pages in their caches.
  std::vector<std::vector<std::byte>> held;
  harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
    if (from == 1 && held.empty() && harness.decode().loop().stats().handing_over == 1) {
      held.push_back(std::move(message));
    } else {
      harness.transport().deliver(from, to, std::move(message));
    }
  });
  const auto victim = harness.submit(prompt, 6);
  ASSERT_TRUE(harness.run_until([&] { return !held.empty(); }));
  auto& pool = harness.decode().loop().pool();
  const auto backend = backends::cpu::make_reference_backend();
  const auto stream = backend->make_stream();
  kv_cache::PageId page = 1;
  while (pool.lease_count(page) == 0 || pool.position(page) != 1) ++page;
  pool.quarantine(*stream, page, "another holder's check failed");
  ASSERT_EQ(pool.audit_quarantined(*stream).freed, 1);
  const auto other_prompt = make_prompt(2, 9);
  const auto other = harness.submit(other_prompt, 30);
  ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(other).size() > 2; }));
  ASSERT_GT(pool.lease_count(page), 0) << "nobody got the page";
  harness.transport().deliver(1, 2, std::move(held.front()));
  harness.run_until_ended();
  ASSERT_TRUE(harness.heard(victim).failed.has_value());
  EXPECT_EQ(harness.heard(victim).failed->code(), base::StatusCode::kCorruption);
  EXPECT_THAT(harness.heard(other).ids(), ElementsAreArray(harness.expected(other_prompt, 30)));
  EXPECT_EQ(harness.decode().loop().stats().check_failures, 1);
  harness.expect_pages_balance(harness.first().loop().stats().pages_quarantined,
                               harness.decode().loop().stats().pages_quarantined);
}

// A decode engine takes no KV for a request of another length: which tokens it is of is not to be guessed.
TEST(HandoffCorruptionOfAnOffer, TheKvIsAsLongAsTheTicketsPrompt) {
  namespace wire = kv_transfer::wire;
  for (const std::int32_t change : {-1, 1}) {
    ServingHarness harness({});
    int changed = 0;
    harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
      const auto parsed = wire::parse(message);
      if (parsed.has_value() && std::holds_alternative<wire::Offer>(parsed->body)) {
        wire::Offer offer = std::get<wire::Offer>(parsed->body);
        offer.kv_len += change;
        message = wire::encode(parsed->header.session, parsed->header.handoff, offer);
        ++changed;
      }
      harness.transport().deliver(from, to, std::move(message));
    });
    const auto prompt = make_prompt(1, 22);  // 6 pages, as 21 or 23 tokens would have.
    const auto id = harness.submit(prompt, 6);
    harness.run_until_ended();
    EXPECT_EQ(changed, 1);
    const Heard heard = harness.heard(id);
    EXPECT_EQ(heard.terminals, 1);
    ASSERT_TRUE(heard.failed.has_value());
    EXPECT_EQ(heard.failed->code(), base::StatusCode::kInternal);
    EXPECT_EQ(harness.decode().loop().stats().check_failures, 0);
    harness.expect_pages_balance();
  }
}

}  // namespace
}  // namespace tessera::test_support
