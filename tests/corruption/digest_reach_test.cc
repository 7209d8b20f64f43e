// Levels with digests: how far the damage of one page reaches. Everything that may have been computed from it ends or
// is dropped; nothing else is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/corruption/integrity_settings.h"
#include "tests/support/forwarding_backend.h"

namespace tessera::test_support {
namespace {

using kv_cache::IntegrityLevel;
using kv_cache::PageId;
using kv_cache::PageState;
using testing::ElementsAreArray;
using testing::IsEmpty;

// The page at a position of a sequence's own (its owner), or of the prefix cache's (a chain); 0 while there is none.
template <typename Owned>
PageId full_page(const kv_cache::PagePool& pool, std::int32_t position, Owned owned) {
  for (PageId page = 1; page <= pool.counts().total; ++page) {
    const kv_cache::Lease lease = pool.current_lease(page);
    if (lease.tag == 0 || !owned(lease.owner) || pool.position(page) != position) continue;
    if (pool.filled(page) == pool.layout().page_size) return page;
  }
  return 0;
}
PageId private_page(const kv_cache::PagePool& pool, request::SequenceId id, std::int32_t position) {
  return full_page(pool, position, [&](auto owner) { return owner == kv_cache::owner_of_sequence(id); });
}
PageId chain_page(const kv_cache::PagePool& pool, std::int32_t position) {
  return full_page(pool, position, [](auto owner) { return owner >> 63 == 0; });
}

class DigestReach : public testing::TestWithParam<OracleKv> {};
INSTANTIATE_TEST_SUITE_P(Layouts, DigestReach, testing::Values(OracleKv::kKeysAndValues, OracleKv::kLatents),
                         [](const auto& param_info) {
                           return param_info.param == OracleKv::kLatents ? "Latents" : "KeysAndValues";
                         });

// The victim's first page is a copy of its own, as somebody else was first to cache that page. What it computes from
// the copy would hang in the cache under the other's, which is sound.
TEST_P(DigestReach, WhatCameOfADamagedPrivateCopyIsNotCached) {
  for (const Where where : {Where::kUnified, Where::kPrefill}) {
    HarnessOptions options = harness_options({where, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
    options.chunk = 4;
    ServingHarness harness(options);
    auto& pool = harness.first().loop().pool();
    const auto common = make_prompt(1, 4);
    const auto victim_prompt = make_prompt_after(common, 2, 20);
    harness.submit(make_prompt_after(common, 3, 2), 2);
    const auto victim = harness.submit(victim_prompt, 20);
    ASSERT_TRUE(harness.run_until([&] { return private_page(pool, victim, 0) != 0 && chain_page(pool, 0) != 0; }));
    ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], private_page(pool, victim, 0), 1));
    harness.run_until_ended();
    expect_corrupted(harness.heard(victim));
    EXPECT_THAT(harness.heard(victim).tokens, IsEmpty());
    EXPECT_EQ(harness.first().loop().stats().digest_failures, 1);
    const auto reader_prompt = make_prompt_after(victim_prompt, 4, 3);
    const auto reader = harness.submit(reader_prompt, 6);
    harness.run_until_ended();
    EXPECT_EQ(harness.heard(reader).report.cached_tokens, 4);
    EXPECT_THAT(harness.heard(reader).ids(), ElementsAreArray(harness.expected(reader_prompt, 6)));
    expect_balance(harness);
  }
}

// The decode engine runs the sequence, and prefill, which has not heard so, finds that it read damage.
TEST_P(DigestReach, WhatPrefillFindsAfterCommitEndsTheSequenceOnTheDecodeEngine) {
  HarnessOptions options =
      harness_options({Where::kPrefill, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
  options.pages = 320;
  options.integrity.sweep_pages_per_second = 1000;
  ServingHarness harness(options);
  constexpr std::size_t kTypeOffset = 6;
  constexpr std::byte kDone{7};
  bool losing = true;
  harness.transport().set_filter([&](auto from, auto to, std::vector<std::byte> message) {
    if (!losing || message[kTypeOffset] != kDone) harness.transport().deliver(from, to, std::move(message));
  });
  const auto id = harness.submit(make_prompt(1, 22), 1200);
  ASSERT_TRUE(harness.run_until([&] { return harness.tokens_so_far(id).size() >= 3; }));
  auto& pool = harness.first().loop().pool();
  PageId page = 0;
  for (PageId p = 1; p <= pool.counts().total; ++p) {
    if (pool.lease_count(p) > 0 && pool.position(p) == 2) page = p;
  }
  ASSERT_NE(page, 0);
  ASSERT_TRUE(flip(pool, byte_sites(pool.layout())[0], page, 1));
  ASSERT_TRUE(harness.run_until([&] { return harness.first().loop().stats().digest_failures == 1; }));
  ASSERT_FALSE(harness.heard(id).ended());
  losing = false;
  harness.run_until_ended();
  expect_corrupted(harness.heard(id));
  EXPECT_LT(harness.heard(id).tokens.size(), 1200u);
  EXPECT_EQ(harness.first().loop().stats().handoffs_done, 0);
  expect_balance(harness);
}

// Verdicts of a device that failed: all ones.
class FailingDevice final : public tests::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) override {
    ForwardingBackend::check_digests(stream, params);
    if (!answers_ones) return;
    ++answers;
    const auto bytes = static_cast<std::size_t>(params.count) * sizeof(ops::RowVerdict);
    std::memset(static_cast<void*>(params.verdicts), 0xff, bytes);
  }
  base::Status health() const override {
    return says_so ? base::internal_error("the device is gone") : ForwardingBackend::health();
  }
  bool answers_ones = false;
  bool says_so = false;
  int answers = 0;
};

TEST_P(DigestReach, VerdictsOfADeviceThatFailedNameNoPage) {
  const std::unique_ptr<ops::Backend> reference = backends::cpu::make_reference_backend();
  for (const bool says_so : {false, true}) {
    SCOPED_TRACE(says_so);
    FailingDevice device(*reference);
    HarnessOptions options =
        harness_options({Where::kPrefill, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
    options.backend = &device;
    ServingHarness harness(options);
    device.answers_ones = true;
    device.says_so = says_so;
    const auto id = harness.submit(make_prompt(1, 22), 6);
    harness.run_until_ended();
    EXPECT_GT(device.answers, 0);
    expect_corrupted(harness.heard(id));
    EXPECT_EQ(harness.first().loop().stats().digest_failures, 0);
    device.answers_ones = device.says_so = false;
    expect_balance(harness);
  }
}

TEST_P(DigestReach, ADeviceThatSaysThatItFailedCondemnsNoPage) {
  const std::unique_ptr<ops::Backend> reference = backends::cpu::make_reference_backend();
  FailingDevice device(*reference);
  HarnessOptions options =
      harness_options({Where::kUnified, GetParam(), ops::KvFormat::kBF16}, IntegrityLevel::kDigest);
  options.backend = &device;
  options.integrity.sweep_pages_per_second = 10'000;
  ServingHarness harness(options);
  const auto prompt = make_prompt(1, 22);
  harness.submit(prompt, 2);
  harness.run_until_ended();
  device.answers_ones = device.says_so = true;
  const std::int64_t swept = harness.first().loop().stats().pages_swept;
  ASSERT_TRUE(harness.run_until([&] { return harness.first().loop().stats().pages_swept > swept + 10; }));
  // No hit is trusted.
  const auto hit = harness.submit(prompt, 6);
  harness.run_until_ended();
  EXPECT_EQ(harness.heard(hit).report.cached_tokens, 0);
  EXPECT_THAT(harness.heard(hit).ids(), ElementsAreArray(harness.expected(prompt, 6)));
  EXPECT_EQ(harness.first().loop().stats().digest_failures, 0);
  EXPECT_EQ(harness.first().loop().stats().check_failures, 0);
  EXPECT_EQ(harness.first().loop().stats().pages_quarantined, 0);
  expect_balance(harness);
}

}  // namespace
}  // namespace tessera::test_support
