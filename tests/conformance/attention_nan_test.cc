// NaN in keys, values or latents that a token sees (damaged memory: kv_write stores none) makes its result NaN,
// wherever the run of damaged keys lies in the pieces that a backend cuts a context into. A result without it would be
// made of fewer keys than there are, and nobody would know.
#include <algorithm>
#include <cmath>

#include "tests/conformance/independent.h"
#include "tests/conformance/mla_attention_test.h"

namespace tessera::conformance {
namespace {

constexpr std::int32_t kLength = 1100;  // Three splits of the CUDA backend, which are of 512 keys.
constexpr std::int32_t kNeighbour = 70;

struct Damage {
  const char* what = "";
  std::vector<std::int32_t> at;
};

Damage run_of(const char* what, std::int32_t begin, std::int32_t end) {
  Damage damage{what, {}};
  for (std::int32_t p = begin; p < end; ++p) damage.at.push_back(p);
  return damage;
}

// The tiles that one of four warps reads, of tiles of so many keys.
Damage of_warp(const char* what, std::int32_t tile) {
  Damage damage{what, {}};
  for (std::int32_t p = 0; p < kLength; ++p) {
    if (p / tile % 4 == 1) damage.at.push_back(p);
  }
  return damage;
}

std::vector<Damage> damages() {
  return {run_of("a key", 37, 38),
          run_of("a page", 48, 64),
          run_of("a tile", 64, 128),
          of_warp("a warp's keys, tiles of 16", 16),
          of_warp("a warp's keys, tiles of 32", 32),
          run_of("the first split", 0, 512),
          run_of("the second split", 512, 1024),
          run_of("the last split", 1024, kLength),
          run_of("all", 0, kLength)};
}

std::vector<RowField> fields(ops::KvFormat format) {
  return format == ops::KvFormat::kF8E4M3 ? std::vector{RowField::kElements, RowField::kScales}
                                          : std::vector{RowField::kElements};
}

testing::AssertionResult all_nan(const HostMatrix& m) {
  const auto finite = std::ranges::count_if(m.values, [](float x) { return !std::isnan(x); });
  if (finite == 0 && !m.values.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << finite << " of " << m.values.size() << " are not NaN";
}

class AttentionNaNTest : public MlaAttentionTest {
 protected:
  static constexpr std::int32_t kHeads = 6;
  static constexpr std::int32_t kKvHeads = 2;
  static constexpr std::int32_t kHeadDim = 16;

  HostMatrix attend(PagedKv& kv, std::span<const Window> windows, const HostMatrix& q) {
    const kv_cache::CheckedPages checked = kv.check(windows);
    const std::vector<std::int32_t> cu = cumulative(windows);
    const DeviceMatrix device_q = device_.upload_matrix(q);
    const DeviceMatrix out = device_.output_matrix(q.rows, q.cols);
    backend().paged_attention(
        stream(), {device_q.view(), cu, checked.pages, kv.cache(), 0, kHeads, kKvHeads, kHeadDim, 0.25f, out.view()});
    return device_.download_matrix(out);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, AttentionNaNTest, all_backends(), backend_case_name);

TEST_P(AttentionNaNTest, DamagedKeysOrValuesReachTheResult) {
  constexpr std::uint64_t kSeed = 851;
  // Two queries after all that is damaged, and a neighbour.
  const std::vector<Window> windows = {{0, kLength, 2}, {1, kNeighbour, 1}};
  for (const ops::KvFormat format : kv_formats()) {
    Random random(kSeed);
    const ops::KvLayout layout = ops::gqa_kv_layout(format, 1, 16, kKvHeads, kHeadDim);
    PagedKv kv(device_, layout, {kLength, kNeighbour}, kSeed);
    for (int s = 0; s < 2; ++s) {
      const std::int32_t length = s == 0 ? kLength : kNeighbour;
      kv.write(0, std::vector<Window>{{s, length, length}}, random_matrix(random, length, kKvHeads * kHeadDim),
               random_matrix(random, length, kKvHeads * kHeadDim));
    }
    const HostMatrix q = random_matrix(random, 3, kHeads * kHeadDim);
    const std::vector<std::byte> sound = kv.bytes();
    const HostMatrix clean = attend(kv, windows, q);
    ASSERT_FALSE(std::ranges::any_of(clean.values, [](float x) { return std::isnan(x); }));
    for (const Damage& damage : damages()) {
      for (const int part : {ops::kPartK, ops::kPartV}) {
        for (const RowField field : fields(format)) {
          SCOPED_TRACE(testing::Message()
                       << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", " << damage.what << ", "
                       << (part == ops::kPartK ? "keys" : "values") << (field == RowField::kScales ? "' scales" : ""));
          kv.make_nan(0, part, field, 0, damage.at);
          const HostMatrix out = attend(kv, windows, q);
          EXPECT_TRUE(all_nan(out.slice(0, 2)));
          EXPECT_TRUE(same_bits(out.slice(2, 3), clean.slice(2, 3)));
          kv.set_bytes(sound);
        }
      }
    }
  }
}

TEST_P(AttentionNaNTest, DamagedLatentsReachTheResult) {
  constexpr std::uint64_t kSeed = 852;
  const ops::MlaShape shape{3, 32, 16, 16, 16};
  const std::vector<Window> windows = {{0, kLength, 2}, {1, kNeighbour, 1}};
  for (const ops::KvFormat format : kv_formats()) {
    Problem p =
        make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, format, 16), 0, {kLength, kNeighbour}, kSeed);
    Random random(kSeed);
    const HostMatrix q = random_matrix(random, 3, p.query_width());
    const std::vector<std::byte> sound = p.scene.kv->bytes();
    for (const ops::MlaForm form : {ops::MlaForm::kAbsorbed, ops::MlaForm::kExpanded}) {
      const std::vector<ops::MlaForm> forms = {form, form};
      const HostMatrix clean = run(p, windows, forms, q);
      ASSERT_FALSE(std::ranges::any_of(clean.values, [](float x) { return std::isnan(x); }));
      for (const Damage& damage : damages()) {
        for (const RowField field : fields(format)) {
          SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", "
                                          << damage.what << (field == RowField::kScales ? "' scales" : "")
                                          << (form == ops::MlaForm::kAbsorbed ? ", absorbed" : ", expanded"));
          p.scene.kv->make_nan(0, ops::kPartLatent, field, 0, damage.at);
          const HostMatrix out = run(p, windows, forms, q);
          EXPECT_TRUE(all_nan(out.slice(0, 2)));
          EXPECT_TRUE(same_bits(out.slice(2, 3), clean.slice(2, 3)));
          p.scene.kv->set_bytes(sound);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::conformance
