// Handoffs that nothing disturbs: what arrives is, to the bit, what quantizing the source directly gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/handoff_pair.h"

namespace tessera::kv_transfer {
namespace {

using tests::HandoffPair;
using tests::HandoffPairOptions;
using tests::kDecodePeer;
using tests::kHandoffHeadDim;
using tests::kHandoffKvHeads;
using tests::kHandoffLayers;
using tests::kHandoffPageSize;
using tests::kPrefillPeer;
using tests::Lease;

// The formula of KvWriteParams, written again.
void quantize(const ops::KvPart& part, const std::byte* source, std::vector<std::uint8_t>& data,
              std::vector<std::uint8_t>& scales) {
  data.clear();
  scales.clear();
  int first = 0;
  for (int group = 0; group < part.scales; ++group) {
    const int elements = group == 0 ? part.first_group : part.other_groups;
    std::vector<float> x;
    float largest = 0.0f;
    for (int e = first; e < first + elements; ++e) {
      base::BF16 value;
      std::memcpy(&value, source + 2 * e, 2);
      x.push_back(base::to_float(value));
      largest = std::max(largest, std::abs(x.back()));
    }
    first += elements;
    const base::BF16 scale = largest == 0.0f ? base::to_bf16(1.0f) : base::to_bf16_round_up(largest / base::kF8E4M3Max);
    scales.push_back(static_cast<std::uint8_t>(scale.bits & 0xff));
    scales.push_back(static_cast<std::uint8_t>(scale.bits >> 8));
    for (const float value : x) data.push_back(base::to_f8e4m3(value / base::to_float(scale)).bits);
  }
}

// The decode pages hold the quantized source from token `first` on (its index keys as they were), and their unused
// slots are untouched.
void expect_quantized(HandoffPair& pair, const std::vector<Lease>& from, const std::vector<Lease>& to,
                      std::int32_t kv_len, std::int32_t first = 0) {
  const ops::KvCacheView& cache = pair.decode_pool->cache();
  const ops::KvLayout& layout = cache.layout;
  std::vector<std::uint8_t> data;
  std::vector<std::uint8_t> scales;
  for (int layer = 0; layer < kHandoffLayers; ++layer) {
    for (int part = 0; part < layout.layer_parts(layer); ++part) {
      const auto row_bytes = static_cast<std::size_t>(layout.row_bytes(part));
      const auto scale_bytes = static_cast<std::size_t>(layout.row_scale_bytes(part));
      for (std::int32_t p = first; p < std::ssize(to) * kHandoffPageSize; ++p) {
        const kv_cache::PageId page = to[static_cast<std::size_t>(p / kHandoffPageSize)].page;
        const std::int64_t slot = p % kHandoffPageSize;
        const std::byte* found = cache.page_data(layer, part, page) + slot * layout.row_bytes(part);
        const std::byte* found_scales = cache.page_scales(layer, part, page) + slot * layout.row_scale_bytes(part);
        const ops::KvPart& shape = layout.parts[static_cast<std::size_t>(part)];
        if (p >= kv_len) {
          data.assign(row_bytes, 0x7f);
          scales.assign(scale_bytes, 0xff);
        } else if (shape.kind == ops::KvPartKind::kIndexKeys) {
          const auto* row = reinterpret_cast<const std::uint8_t*>(pair.source_row(from, layer, part, p));
          const auto* scale = reinterpret_cast<const std::uint8_t*>(pair.source_scales(from, layer, part, p));
          data.assign(row, row + row_bytes);
          scales.assign(scale, scale + scale_bytes);
        } else {
          quantize(shape, pair.source_row(from, layer, part, p), data, scales);
        }
        ASSERT_EQ(data.size(), row_bytes);
        ASSERT_EQ(scales.size(), scale_bytes);
        ASSERT_EQ(std::memcmp(found, data.data(), row_bytes), 0)
            << "layer " << layer << " part " << part << " token " << p;
        ASSERT_EQ(std::memcmp(found_scales, scales.data(), scale_bytes), 0)
            << "layer " << layer << " part " << part << " token " << p;
      }
    }
  }
}

struct RoundTripCase {
  std::int32_t kv_len = 0;
  bool latent = false;
};

class RoundTrip : public ::testing::TestWithParam<RoundTripCase> {};

TEST_P(RoundTrip, EqualsDirectQuantization) {
  const std::int32_t kv_len = GetParam().kv_len;
  HandoffPairOptions options;
  if (GetParam().latent) {
    options.prefill_layout = tests::handoff_latent_layout(ops::KvFormat::kBF16);
    options.decode_layout = tests::handoff_latent_layout(ops::KvFormat::kF8E4M3);
  }
  HandoffPair pair(options);
  const std::vector<Lease> source = pair.prefill(kv_len);
  // The sender's engine keeps its pages beyond the handoff here, so that they can be compared.
  for (const Lease& lease : source) pair.prefill_pool->share(*pair.stream, lease);
  const HandoffId id = pair.offer(source, kv_len);
  pair.run_out();
  const HandoffKey key{kPrefillPeer, id};
  ASSERT_TRUE(pair.committed.contains(key)) << pair.send_events[id].status.to_string();
  ASSERT_EQ(pair.send_events.at(id).outcome, SendOutcome::kDone);
  EXPECT_EQ(pair.offers.at(key).kv_len, kv_len);
  EXPECT_EQ(pair.offers.at(key).blob, (std::vector<std::byte>{std::byte{1}, std::byte{2}, std::byte{1}}));
  expect_quantized(pair, source, pair.receiving.at(key), kv_len);

  const std::int64_t pages = (kv_len + 63) / 64;
  for (const HandoffStatistics& s : {pair.send_events.at(id).statistics, pair.committed.at(key).statistics}) {
    EXPECT_EQ(s.pages, pages);
    EXPECT_EQ(s.pages_cached, 0);
    EXPECT_EQ(s.bytes_before, pages * pair.prefill_pool->layout().page_bytes());
    EXPECT_EQ(s.bytes_after, pages * pair.decode_pool->layout().page_bytes());
  }
  for (const Lease& lease : source) EXPECT_TRUE(pair.prefill_pool->release(*pair.stream, lease).ok());
  pair.expect_balance();
}

INSTANTIATE_TEST_SUITE_P(KeysAndValues, RoundTrip,
                         ::testing::Values(RoundTripCase{1}, RoundTripCase{63}, RoundTripCase{64}, RoundTripCase{65},
                                           RoundTripCase{200}));
INSTANTIATE_TEST_SUITE_P(LatentsAndIndexKeys, RoundTrip,
                         ::testing::Values(RoundTripCase{1, true}, RoundTripCase{64, true}, RoundTripCase{65, true},
                                           RoundTripCase{200, true}));

// A layer that claims index keys where the receiver has none, or the other way round, is another shape.
TEST(LatentHandoff, OtherIndexLayersAreRefusedAtTheHandshake) {
  HandoffPairOptions options;
  options.prefill_layout = tests::handoff_latent_layout(ops::KvFormat::kBF16);
  options.decode_layout = tests::handoff_latent_layout(ops::KvFormat::kF8E4M3);
  options.decode_layout.index_layers.insert(0);
  HandoffPair pair(options);
  const std::vector<Lease> source = pair.prefill(65);
  const HandoffId id = pair.offer(source, 65);
  pair.run_out();
  ASSERT_EQ(pair.send_events.count(id), 1u);
  EXPECT_EQ(pair.send_events.at(id).outcome, SendOutcome::kAborted);
  EXPECT_NE(pair.send_events.at(id).status.message().find("index keys"), std::string::npos)
      << pair.send_events.at(id).status.to_string();
  EXPECT_TRUE(pair.committed.empty());
  pair.expect_balance();
}

TEST(PartialRoundTrip, OnlyWhatTheReceiverDoesNotHaveIsSent) {
  for (const std::int32_t kv_len : {200, 192}) {
    for (const std::size_t cached_pages : {1u, 2u, 3u}) {
      HandoffPair pair;
      pair.on_offer = tests::OnOffer::kWait;
      const std::vector<Lease> source = pair.prefill(kv_len);
      for (const Lease& lease : source) pair.prefill_pool->share(*pair.stream, lease);
      const HandoffId id = pair.offer(source, kv_len);
      pair.steps(5);
      const HandoffKey key{kPrefillPeer, id};
      std::vector<Lease> cached;
      for (std::size_t j = 0; j < cached_pages; ++j) {
        cached.push_back(
            *pair.decode_pool->allocate(*pair.stream, kv_cache::owner_of_chain(77), static_cast<std::int32_t>(j)));
        pair.written(*pair.decode_pool, {cached.back()}, kHandoffPageSize);
        pair.decode_pool->share(*pair.stream, cached.back());  // Somebody else's too: not to be written.
        pair.poison(cached.back().page);
      }
      pair.accept(key, cached);
      pair.run_out();
      ASSERT_TRUE(pair.committed.contains(key)) << pair.aborted[key].status.to_string();
      EXPECT_EQ(pair.committed.at(key).statistics.pages, (kv_len + 63) / 64 - static_cast<int>(cached_pages));
      EXPECT_EQ(pair.send_events.at(id).statistics.pages_cached, static_cast<std::int64_t>(cached_pages));
      expect_quantized(pair, source, pair.receiving.at(key), kv_len,
                       static_cast<std::int32_t>(cached_pages) * kHandoffPageSize);
      for (const Lease& lease : cached) {  // Still as it was.
        EXPECT_EQ(*pair.decode_pool->cache().page_data(0, 0, lease.page), std::byte{0x7f});
        EXPECT_TRUE(pair.decode_pool->release(*pair.stream, lease).ok());
      }
      for (const Lease& lease : source) EXPECT_TRUE(pair.prefill_pool->release(*pair.stream, lease).ok());
      pair.expect_balance();
    }
  }
}

}  // namespace
}  // namespace tessera::kv_transfer
