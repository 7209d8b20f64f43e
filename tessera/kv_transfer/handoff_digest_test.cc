// Levels with digests: a sender proves what it sent before the receiver may commit it, and a receiver records what it
// stored.
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/fault_access.h"
#include "tests/support/handoff_pair.h"

namespace tessera::kv_transfer {
namespace {

using kv_cache::IntegrityLevel;
using tests::HandoffPair;
using tests::HandoffPairOptions;
using tests::kDecodePeer;
using tests::kHandoffLayers;
using tests::kHandoffPageSize;
using tests::kPrefillPeer;
using tests::Lease;

class HandoffDigest : public testing::TestWithParam<bool> {
 protected:
  static HandoffPairOptions options() {
    HandoffPairOptions options;
    options.receiver.integrity = IntegrityLevel::kDigest;
    if (GetParam()) {
      options.prefill_layout = tests::handoff_latent_layout(ops::KvFormat::kBF16);
      options.decode_layout = tests::handoff_latent_layout(ops::KvFormat::kF8E4M3);
    }
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, HandoffDigest, testing::Bool(),
                         [](const auto& param_info) { return param_info.param ? "Latents" : "KeysAndValues"; });

TEST_P(HandoffDigest, WhatWasStoredIsWhatWasRecorded) {
  HandoffPair pair(options());
  for (const std::int32_t kv_len : {1, 63, 64, 65, 300}) {
    SCOPED_TRACE(kv_len);
    const std::vector<Lease> leases = pair.prefill(kv_len);
    const HandoffKey key{kPrefillPeer, pair.offer(leases, kv_len)};
    pair.run_out();
    ASSERT_TRUE(pair.committed.contains(key));
    const std::vector<Lease>& received = pair.receiving.at(key);
    for (const ops::RowVerdict& verdict : pair.digests->check_pages(*pair.stream, *pair.decode_pool, received)) {
      EXPECT_EQ(verdict.failed_checks, 0u);
    }
    // In every layer, as a flip in any of them shows.
    for (int layer = 0; layer < kHandoffLayers; ++layer) {
      std::byte& byte = *pair.decode_pool->cache().page_data(layer, 0, received.back().page);
      byte ^= std::byte{1};
      const auto verdicts = pair.digests->check_pages(*pair.stream, *pair.decode_pool, received);
      EXPECT_EQ(verdicts.back().failed_checks, ops::kCheckDigest) << "layer " << layer;
      byte ^= std::byte{1};
    }
    pair.release_received(key);
  }
  pair.expect_balance();
}

TEST_P(HandoffDigest, NothingIsRecordedWhereTheLevelHasNoDigests) {
  HandoffPairOptions tags = options();
  tags.receiver.integrity = IntegrityLevel::kTags;
  HandoffPair pair(tags);
  const HandoffKey key{kPrefillPeer, pair.offer(pair.prefill(100), 100)};
  pair.run_out();
  ASSERT_TRUE(pair.committed.contains(key));
  for (const Lease& lease : pair.receiving.at(key)) EXPECT_EQ(pair.decode_pool->digests()[lease.page], 0u);
  pair.expect_balance();
}

TEST_P(HandoffDigest, DamageInAnySourcePageIsNotCommitted) {
  constexpr std::int32_t kLength = 300;
  for (const std::int32_t page : {0, 2, 4}) {
    for (int layer = 0; layer < kHandoffLayers; ++layer) {
      SCOPED_TRACE(testing::Message() << "page " << page << ", layer " << layer);
      HandoffPair pair(options());
      const std::vector<Lease> leases = pair.prefill(kLength);
      const int part = pair.prefill_pool->layout().layer_parts(layer) - 1;
      *pair.source_row(leases, layer, part, page * kHandoffPageSize + 7) ^= std::byte{1};
      const HandoffId id = pair.offer(leases, kLength);
      pair.run_out();
      const SendEvent& event = pair.send_events.at(id);
      EXPECT_EQ(event.outcome, SendOutcome::kAborted);
      EXPECT_EQ(event.status.code(), base::StatusCode::kCorruption);
      ASSERT_TRUE(event.verdict.has_value());
      EXPECT_EQ(event.verdict->failed_checks, ops::kCheckDigest);
      EXPECT_EQ(event.verdict->logical_page, page);
      EXPECT_EQ(event.verdict->page_id, leases[static_cast<std::size_t>(page)].page);
      EXPECT_TRUE(pair.committed.empty());
      EXPECT_TRUE(pair.aborted.contains({kPrefillPeer, id}));
      pair.expect_balance();
    }
  }
}

// What the receiver had already is not sent, but prefill read it, and computed what is sent from it; so it is judged,
// also where nothing is sent.
TEST_P(HandoffDigest, PagesThatAreNotSentAreJudgedToo) {
  constexpr std::int32_t kPages = 3;
  constexpr std::int32_t kLength = kPages * kHandoffPageSize;
  for (const std::int32_t had : {1, kPages}) {
    for (const std::int32_t damaged : {-1, 0, kPages - 1}) {
      SCOPED_TRACE(testing::Message() << had << " pages had, page " << damaged << " damaged");
      HandoffPair pair(options());
      pair.on_offer = tests::OnOffer::kWait;
      const std::vector<Lease> leases = pair.prefill(kLength);
      if (damaged >= 0) *pair.source_row(leases, 0, 0, damaged * kHandoffPageSize + 3) ^= std::byte{1};
      const HandoffId id = pair.offer(leases, kLength);
      const HandoffKey key{kPrefillPeer, id};
      for (int i = 0; i < 50 && !pair.offers.contains(key); ++i) pair.step();
      ASSERT_TRUE(pair.offers.contains(key));
      std::vector<Lease> cached;
      for (std::int32_t j = 0; j < had; ++j) {
        cached.push_back(*pair.decode_pool->allocate(*pair.stream, kv_cache::owner_of_sequence(5), j));
      }
      pair.written(*pair.decode_pool, cached, had * kHandoffPageSize);
      pair.accept(key, cached);
      pair.run_out();
      EXPECT_EQ(pair.committed.contains(key), damaged < 0);
      if (damaged >= 0) {
        ASSERT_TRUE(pair.send_events.at(id).verdict.has_value());
        EXPECT_EQ(pair.send_events.at(id).verdict->failed_checks, ops::kCheckDigest);
        EXPECT_EQ(pair.send_events.at(id).verdict->logical_page, damaged);
      }
      pair.expect_balance();
    }
  }
}

// Without digests at least the tags of all pages are checked before Commit, also where no chunk was gathered.
TEST_P(HandoffDigest, TagsAreCheckedWhereNothingIsSent) {
  HandoffPairOptions tags = options();
  tags.receiver.integrity = IntegrityLevel::kTags;
  HandoffPair pair(tags);
  pair.on_offer = tests::OnOffer::kWait;
  const std::vector<Lease> leases = pair.prefill(kHandoffPageSize);
  const HandoffId id = pair.offer(leases, kHandoffPageSize);
  const HandoffKey key{kPrefillPeer, id};
  for (int i = 0; i < 50 && !pair.offers.contains(key); ++i) pair.step();
  ASSERT_TRUE(pair.offers.contains(key));
  fault_injection::Access::tags(*pair.prefill_pool)[leases[0].page] ^= 2;
  const std::vector<Lease> cached = {*pair.decode_pool->allocate(*pair.stream, kv_cache::owner_of_sequence(5), 0)};
  pair.written(*pair.decode_pool, cached, kHandoffPageSize);
  pair.accept(key, cached);
  pair.run_out();
  EXPECT_FALSE(pair.committed.contains(key));
  ASSERT_TRUE(pair.send_events.at(id).verdict.has_value());
  EXPECT_EQ(pair.send_events.at(id).verdict->failed_checks & ops::kCheckTag, ops::kCheckTag);
  pair.expect_balance();
}

// A tick proves no more than it may gather, and damage in the last portion is found as well.
TEST_P(HandoffDigest, ProofIsCutIntoTicks) {
  for (const bool damaged : {false, true}) {
    HandoffPairOptions small = options();
    small.sender.chunks_per_tick = 1;
    small.sender.chunk_pages = 1;
    HandoffPair pair(small);
    constexpr std::int32_t kPages = 5;
    const std::vector<Lease> leases = pair.prefill(kPages * kHandoffPageSize);
    if (damaged) *pair.source_row(leases, 2, 0, kPages * kHandoffPageSize - 1) ^= std::byte{1};
    const HandoffId id = pair.offer(leases, kPages * kHandoffPageSize);
    for (int i = 0; i < 50 && pair.sender->state(id) != SendState::kSending; ++i) pair.step();
    int ticks = 0;
    for (; ticks < 200 && pair.sender->state(id) == SendState::kSending; ++ticks) pair.step();
    EXPECT_GE(ticks, kPages * kHandoffLayers + kPages - 2);
    pair.run_out();
    EXPECT_EQ(pair.send_events.at(id).outcome, damaged ? SendOutcome::kAborted : SendOutcome::kDone);
    if (damaged) {
      EXPECT_EQ(pair.send_events.at(id).verdict->logical_page, kPages - 1);
    }
    pair.expect_balance();
  }
}

}  // namespace
}  // namespace tessera::kv_transfer
