// Faults of which one check of the handoff alone stands in the way: what lasts only between two checks, what comes
// after the last page, and peers that keep to the wire format but not to what was agreed.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/ops/forwarding_backend.h"
#include "tests/support/fault_access.h"
#include "tests/support/handoff_pair.h"

namespace tessera::kv_transfer {
namespace {

using base::StatusCode;
using fault_injection::Access;
using tests::HandoffPair;
using tests::HandoffPairOptions;
using tests::kPrefillPeer;
using tests::Lease;
using wire::MessageType;

using Bytes = std::vector<std::byte>;

// Damages the owner of a page in the device's records after the last layer was gathered, or scattered, and mends it
// when the verdict of the check before was read: only a second check in between can notice.
class BrieflyDamaging final : public ops::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  kv_cache::PagePool* pool = nullptr;
  kv_cache::PageId page = 0;
  int layers_left = tests::kHandoffLayers;
  int copies_left = 0;  // To the host, until it is mended.

  void gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) override {
    ForwardingBackend::gather_pages(stream, params);
    damage_after_last(3);  // Images, digests, verdicts.
  }
  void scatter_pages(ops::Stream& stream, const ops::ScatterPagesParams& params) override {
    ForwardingBackend::scatter_pages(stream, params);
    damage_after_last(2);  // Digests, verdicts.
  }
  void copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) override {
    ForwardingBackend::copy_to_host(stream, host, device, bytes);
    if (copies_left > 0 && --copies_left == 0) Access::owners(*pool)[page] ^= 1;
  }

 private:
  void damage_after_last(int copies) {
    if (--layers_left != 0) return;
    Access::owners(*pool)[page] ^= 1;
    copies_left = copies;
  }
};

class HandoffChecks : public ::testing::Test {
 protected:
  static HandoffPairOptions options() {
    HandoffPairOptions options;
    options.sender.chunks_per_tick = 16;
    options.receiver.messages_per_tick = 1;
    return options;
  }
  void begin(std::int32_t tokens) {
    id_ = pair_.offer(pair_.prefill(tokens), tokens);
    key_ = {kPrefillPeer, id_};
  }
  // Instead of the first message of this type, others are delivered.
  void replace_first(MessageType type, const std::function<std::vector<Bytes>(const wire::Header&, Bytes)>& others) {
    pair_.transport->set_filter([this, type, others](PeerId from, PeerId to, Bytes message) {
      const wire::Header header = wire::parse(message)->header;
      if (header.type != type || reached_) {
        pair_.transport->deliver(from, to, std::move(message));
        return;
      }
      reached_ = true;
      for (Bytes& other : others(header, std::move(message))) pair_.transport->deliver(from, to, std::move(other));
    });
  }
  void expect_aborted(StatusCode code) {
    EXPECT_TRUE(reached_);
    EXPECT_FALSE(pair_.committed.contains(key_));
    ASSERT_TRUE(pair_.aborted.contains(key_));
    EXPECT_EQ(pair_.aborted.at(key_).status.code(), code) << pair_.aborted.at(key_).status.to_string();
  }

  HandoffPair pair_{options()};
  HandoffId id_ = 0;
  HandoffKey key_;
  bool reached_ = false;
};

TEST_F(HandoffChecks, PageThatWasAnothersWhileItWasGatheredIsNotSent) {
  BrieflyDamaging backend(*pair_.backend);
  pair_.sender = std::move(*Sender::create(backend, *pair_.stream, *pair_.prefill_pool, *pair_.prefill_endpoint,
                                           pair_.clock, options().sender));
  begin(100);  // Two pages: one chunk a layer, all gathered in one tick.
  backend.pool = pair_.prefill_pool.get();
  backend.page = pair_.sending.at(id_).back().page;
  pair_.run_out();
  reached_ = backend.layers_left == 0 && backend.copies_left == 0;
  EXPECT_TRUE(reached_);
  EXPECT_FALSE(pair_.committed.contains(key_));
  const SendEvent& event = pair_.send_events.at(id_);
  EXPECT_EQ(event.outcome, SendOutcome::kAborted);
  EXPECT_EQ(event.status.code(), StatusCode::kCorruption) << event.status.to_string();
  ASSERT_TRUE(event.verdict.has_value());
  EXPECT_EQ(event.verdict->failed_checks, ops::kCheckOwner);
  pair_.sender.reset();  // Before its backend.
}

TEST_F(HandoffChecks, PageThatWasAnothersWhileItWasStoredIsNotCommitted) {
  BrieflyDamaging backend(*pair_.backend);
  pair_.receiver = std::move(*Receiver::create(backend, *pair_.stream, *pair_.decode_pool, *pair_.decode_endpoint,
                                               pair_.clock, options().receiver));
  begin(100);
  while (!pair_.receiving.contains(key_)) pair_.step();
  ASSERT_EQ(backend.layers_left, tests::kHandoffLayers);
  backend.pool = pair_.decode_pool.get();
  backend.page = pair_.receiving.at(key_).back().page;
  pair_.run_out();
  reached_ = backend.layers_left == 0 && backend.copies_left == 0;
  expect_aborted(StatusCode::kCorruption);
  ASSERT_TRUE(pair_.aborted.at(key_).verdict.has_value());
  EXPECT_EQ(pair_.aborted.at(key_).verdict->failed_checks, ops::kCheckOwner | ops::kCheckSlot);
  pair_.receiver.reset();
}

TEST_F(HandoffChecks, CachedPageThatIsNoLongerItsOwnIsFoundAtTheCommit) {
  // All pages are the decode side's already: nothing is sent, and nothing but the last check looks at them.
  pair_.on_offer = tests::OnOffer::kWait;
  begin(128);
  while (pair_.offers.empty()) pair_.step();
  std::vector<Lease> cached;
  for (std::int32_t j = 0; j < 2; ++j) {
    cached.push_back(*pair_.decode_pool->allocate(*pair_.stream, kv_cache::owner_of_sequence(77), j));
  }
  pair_.written(*pair_.decode_pool, cached, 128);
  pair_.accept(key_, cached);
  Access::tags(*pair_.decode_pool)[cached[1].page] ^= 1;
  reached_ = true;
  pair_.run_out();
  expect_aborted(StatusCode::kCorruption);
  ASSERT_TRUE(pair_.aborted.at(key_).verdict.has_value());
  EXPECT_EQ(pair_.aborted.at(key_).verdict->failed_checks, ops::kCheckTag);
  EXPECT_EQ(pair_.aborted.at(key_).verdict->logical_page, 1);
  pair_.expect_balance(1);
}

TEST_F(HandoffChecks, TwoCommitsThatDifferEndIt) {
  begin(200);
  replace_first(MessageType::kPageData, [](const wire::Header& header, Bytes data) {
    return std::vector<Bytes>{std::move(data), wire::encode(header.session, header.handoff, wire::Commit{1}),
                              wire::encode(header.session, header.handoff, wire::Commit{2})};
  });
  pair_.run_out();
  expect_aborted(StatusCode::kInternal);
  pair_.expect_balance();
}

TEST_F(HandoffChecks, ImagesOfAnotherSizeAndTooManyAtOnceEndIt) {
  const std::int64_t page_bytes = pair_.decode_pool->layout().page_layer_bytes(0);
  const std::vector<std::pair<std::int32_t, std::int64_t>> shapes = {
      {2, page_bytes - 1}, {2, page_bytes + 1}, {options().receiver.chunk_pages_max + 1, page_bytes}};
  for (const auto& [pages, bytes] : shapes) {
    SCOPED_TRACE(testing::Message() << pages << " pages of " << bytes << " bytes");
    reached_ = false;
    begin(200);
    replace_first(MessageType::kPageData, [&](const wire::Header& header, const Bytes&) {
      Bytes other = wire::make_page_data(header.session, header.handoff, 0, 0, pages, bytes);
      wire::seal(other);
      return std::vector<Bytes>{std::move(other)};
    });
    pair_.run_out();
    expect_aborted(StatusCode::kInternal);
    pair_.transport->set_filter({});
  }
  pair_.expect_balance();
}

}  // namespace
}  // namespace tessera::kv_transfer
