#include "tests/conformance/mla_attention_test.h"

#include <cmath>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::conformance {

using ops::MlaForm;

MlaAttentionTest::Problem MlaAttentionTest::make(const ops::MlaShape& shape, const WeightCase& weight_case,
                                                 const ops::KvLayout& layout, int layer,
                                                 const std::vector<std::int32_t>& lengths, std::uint64_t seed) {
  Problem p;
  Random random(seed);
  p.shape = shape;
  p.layer = layer;
  const std::int64_t rows = std::int64_t{shape.heads} * (shape.qk_nope_head_dim + shape.v_head_dim);
  p.up = random_stored_weight(random, weight_case.format, rows, shape.kv_lora_rank, weight_case.group_size,
                              1.0 / std::sqrt(static_cast<double>(shape.kv_lora_rank)));
  p.prepared = prepare(p.up.source(), shape);
  p.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.qk_nope_head_dim + shape.qk_rope_head_dim));
  p.scene = random_mla_scene(device_, layout, layer, lengths, seed + 1);
  return p;
}

ops::MlaUpProjection MlaAttentionTest::prepare(const ops::WeightSource& source, const ops::MlaShape& shape) {
  auto prepared = backend().prepare_mla_up(source, shape);
  TESSERA_CHECK(prepared.has_value());
  return std::move(*prepared);
}

ops::KvLayout MlaAttentionTest::layout_of(const ops::MlaShape& shape, ops::KvFormat format, std::int32_t page_size) {
  ops::LayerSet index_layers;
  index_layers.insert(1);
  return ops::mla_kv_layout(format, 2, page_size, shape.kv_lora_rank, shape.qk_rope_head_dim, 12, index_layers);
}

HostMatrix MlaAttentionTest::run(Problem& p, std::span<const Window> windows, const std::vector<MlaForm>& forms,
                                 const HostMatrix& q, const std::optional<HostSelection>& selection,
                                 std::int64_t padding) {
  const kv_cache::CheckedPages checked = p.scene.kv->check(windows);
  const std::vector<std::int32_t> cu = cumulative(windows);
  const DeviceMatrix device_q = device_.upload_matrix(q, padding);
  const DeviceMatrix out = device_.output_matrix(q.rows, std::int64_t{p.shape.heads} * p.shape.v_head_dim, padding);
  ScratchSize size = p.scratch;
  size.tokens = std::max(size.tokens, q.rows);
  for (const Window& window : windows) size.context = std::max<std::int64_t>(size.context, window.kv_len);
  const GuardedScratch scratch(device_, backend().mla_attention_scratch_bytes(p.shape, size.tokens, size.context));
  ops::MlaAttentionParams params{.q = device_q.view(),
                                 .cu_seqlens_q = cu,
                                 .forms = forms,
                                 .pages = checked.pages,
                                 .cache = p.scene.kv->cache(),
                                 .layer = p.layer,
                                 .up = &p.prepared,
                                 .softmax_scale = p.softmax_scale,
                                 .out = out.view(),
                                 .scratch = scratch.data()};
  DeviceArray<std::int32_t> positions;
  DeviceArray<std::int32_t> counts;
  ops::TokenSelection device_selection;
  if (selection.has_value()) {
    // Entries past a token's count are out of every range.
    std::vector<std::int32_t> host(static_cast<std::size_t>(q.rows * selection->width), 1 << 30);
    std::vector<std::int32_t> host_counts;
    for (std::size_t t = 0; t < selection->positions.size(); ++t) {
      std::copy(selection->positions[t].begin(), selection->positions[t].end(),
                host.begin() + static_cast<std::int64_t>(t) * selection->width);
      host_counts.push_back(static_cast<std::int32_t>(selection->positions[t].size()));
    }
    positions = device_.upload(host);
    counts = device_.upload(host_counts);
    device_selection = {positions.data(), counts.data(), selection->width};
    params.selection = &device_selection;
  }
  backend().mla_attention(stream(), params);
  scratch.expect_guards_whole();
  return device_.download_matrix(out);
}

std::vector<double> MlaAttentionTest::formula(const Problem& p, std::span<const Window> windows, const HostMatrix& q,
                                              const std::optional<HostSelection>& selection) {
  const ops::MlaShape& s = p.shape;
  std::vector<double> out;
  std::int64_t t = 0;
  for (const Window& window : windows) {
    const HostMatrix& stored = p.scene.latents[static_cast<std::size_t>(window.sequence)];
    for (std::int32_t position = window.kv_len - window.new_tokens; position < window.kv_len; ++position, ++t) {
      std::vector<std::int32_t> seen;
      for (std::int32_t j = 0; j <= position; ++j) seen.push_back(j);
      if (selection.has_value()) {
        seen.clear();
        for (const std::int32_t j : selection->positions[static_cast<std::size_t>(t)]) {
          if (j <= position) seen.push_back(j);
        }
      }
      for (std::int64_t h = 0; h < s.heads; ++h) {
        const std::int64_t first_row = h * (s.qk_nope_head_dim + s.v_head_dim);
        const std::int64_t first_q = h * (s.qk_nope_head_dim + s.qk_rope_head_dim);
        // Row `row` of the head's up projection times the latent of position j.
        const auto up_times = [&](std::int64_t row, std::int32_t j) {
          double sum = 0.0;
          for (std::int64_t i = 0; i < s.kv_lora_rank; ++i) {
            sum += static_cast<double>(p.up.values.at(first_row + row, i)) * static_cast<double>(stored.at(j, i));
          }
          return sum;
        };
        std::vector<long double> weights;
        for (const std::int32_t j : seen) {
          double score = 0.0;
          for (std::int64_t d = 0; d < s.qk_nope_head_dim; ++d) {
            score += static_cast<double>(q.at(t, first_q + d)) * up_times(d, j);
          }
          for (std::int64_t d = 0; d < s.qk_rope_head_dim; ++d) {
            score += static_cast<double>(q.at(t, first_q + s.qk_nope_head_dim + d)) *
                     static_cast<double>(stored.at(j, s.kv_lora_rank + d));
          }
          weights.push_back(std::exp(static_cast<long double>(score) * static_cast<long double>(p.softmax_scale)));
        }
        long double total = 0.0L;
        for (const long double weight : weights) total += weight;
        for (std::int64_t d = 0; d < s.v_head_dim; ++d) {
          long double sum = 0.0L;
          for (std::size_t j = 0; j < seen.size(); ++j) {
            sum += weights[j] * static_cast<long double>(up_times(s.qk_nope_head_dim + d, seen[j]));
          }
          out.push_back(seen.empty() ? 0.0 : static_cast<double>(sum / total));
        }
      }
    }
  }
  return out;
}

namespace {

INSTANTIATE_TEST_SUITE_P(Backends, MlaAttentionTest, all_backends(), backend_case_name);

// Odd ones; TheLargeModelsHead has the usual one.
const std::vector<ops::MlaShape>& shapes() {
  static const std::vector<ops::MlaShape> all = {
      {1, 32, 8, 12, 10}, {3, 64, 16, 24, 20}, {2, 40, 2, 7, 5}, {5, 96, 10, 16, 33}};
  return all;
}

const char* form_name(MlaForm form) { return form == MlaForm::kExpanded ? "expanded" : "absorbed"; }

TEST_P(MlaAttentionTest, BothFormsMatchTheFormula) {
  std::uint64_t seed = 1801;
  for (const ops::KvFormat format : kv_formats()) {
    for (const std::int32_t page_size : {16, 64}) {
      for (const ops::MlaShape& shape : shapes()) {
        const int layer = static_cast<int>(++seed % 2);  // Without index keys, and with.
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ops::kv_format_name(format) << ", page size "
                                        << page_size << ", " << shape.heads << " heads, rank " << shape.kv_lora_rank);
        Problem p = make(shape, {ops::WeightFormat::kF32, 0}, layout_of(shape, format, page_size), layer,
                         {1, 15, 17, 64, 65, 129}, seed);
        Random random(seed + 7);
        // Whole prompts, last chunks, single tokens, and a row without queries.
        const std::vector<Window> windows = {{0, 1, 1}, {1, 15, 15}, {2, 17, 3}, {3, 64, 1}, {4, 65, 2}, {5, 129, 0}};
        const HostMatrix q = random_matrix(random, new_tokens(windows), p.query_width());
        const std::vector<double> expected = formula(p, windows, q);
        const HostMatrix expanded = run(p, windows, std::vector(6, MlaForm::kExpanded), q);
        const HostMatrix absorbed = run(p, windows, std::vector(6, MlaForm::kAbsorbed), q, std::nullopt, 3);
        EXPECT_TRUE(near(expanded, expected, allowed()));
        EXPECT_TRUE(near(absorbed, expected, allowed()));
        EXPECT_TRUE(near(absorbed, expanded, allowed()));
      }
    }
  }
}

TEST_P(MlaAttentionTest, TheLargeModelsHead) {
  constexpr std::uint64_t kSeed = 1850;
  const ops::MlaShape shape{2, 512, 64, 128, 128};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Problem p = make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, format, 64), 0, {80}, kSeed);
    Random random(kSeed + 7);
    const std::vector<Window> windows = {{0, 80, 2}};
    const HostMatrix q = random_matrix(random, 2, p.query_width());
    const std::vector<double> expected = formula(p, windows, q);
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      EXPECT_TRUE(near(run(p, windows, {form}, q), expected, allowed())) << form_name(form);
    }
  }
}

TEST_P(MlaAttentionTest, TakesUpProjectionsOfEveryFormat) {
  std::uint64_t seed = 1860;
  // 3 * (24 + 30) = 162 rows: more than one block, and heads that begin inside one.
  const ops::MlaShape shape{3, 128, 8, 24, 30};
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Problem p = make(shape, c, layout_of(shape, ops::KvFormat::kBF16, 16), 1, {40}, seed);
    EXPECT_EQ(p.prepared.shape, shape);
    EXPECT_EQ(p.prepared.format, c.format);
    EXPECT_GT(p.prepared.bytes(), 0);
    Random random(seed + 7);
    const std::vector<Window> windows = {{0, 40, 4}};
    const HostMatrix q = random_matrix(random, 4, p.query_width());
    const std::vector<double> expected = formula(p, windows, q);
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      EXPECT_TRUE(near(run(p, windows, {form}, q), expected, allowed())) << form_name(form);
    }
  }
}

TEST_P(MlaAttentionTest, TakesUpProjectionsInPlaceWhereverTheyLie) {
  std::uint64_t seed = 1865;
  const ops::MlaShape shape{3, 128, 8, 24, 30};
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Problem p = make(shape, c, layout_of(shape, ops::KvFormat::kBF16, 16), 0, {40}, seed);
    Random random(seed + 7);
    const std::vector<Window> windows = {{0, 40, 4}};
    const HostMatrix q = random_matrix(random, 4, p.query_width());
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      p.prepared = prepare(p.up.source(), shape);
      const HostMatrix expected = run(p, windows, {form}, q);
      for (const std::size_t offset : {0, 1, 2, 3, 5}) {
        std::vector<std::byte> file(p.up.data.size() + p.up.scales.size() + 64);
        std::copy(p.up.data.begin(), p.up.data.end(), file.begin() + static_cast<std::int64_t>(offset));
        std::byte* scales = file.data() + offset + p.up.data.size() + 3;
        std::copy(p.up.scales.begin(), p.up.scales.end(), scales);
        ops::WeightSource source = p.up.source();
        source.data = file.data() + offset;
        source.scales = p.up.scales.empty() ? nullptr : scales;
        source.outlives_backend = true;
        source.scales_outlive_backend = true;
        p.prepared = prepare(source, shape);
        EXPECT_TRUE(same_bits(run(p, windows, {form}, q), expected)) << form_name(form) << ", offset " << offset;
      }
    }
  }
}

TEST_P(MlaAttentionTest, KeepsNoPointerIntoUpProjectionsThatDie) {
  std::uint64_t seed = 1875;
  const ops::MlaShape shape{3, 128, 8, 24, 30};
  for (const WeightCase& c : weight_cases()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << case_text(c));
    Problem p = make(shape, c, layout_of(shape, ops::KvFormat::kBF16, 16), 0, {40}, seed);
    Random random(seed + 7);
    const std::vector<Window> windows = {{0, 40, 4}};
    const HostMatrix q = random_matrix(random, 4, p.query_width());
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      p.prepared = prepare(p.up.source(), shape);
      const HostMatrix expected = run(p, windows, {form}, q);
      // All of it dies, or only the scales, which had been converted.
      for (const bool mapped : {false, true}) {
        StoredWeight dying = p.up;
        ops::WeightSource source = dying.source();
        source.outlives_backend = mapped;
        p.prepared = prepare(source, shape);
        if (!mapped) std::fill(dying.data.begin(), dying.data.end(), std::byte{0x7f});
        std::fill(dying.scales.begin(), dying.scales.end(), std::byte{0x7f});
        EXPECT_TRUE(same_bits(run(p, windows, {form}, q), expected))
            << form_name(form) << (mapped ? ", scales died" : "");
      }
    }
  }
}

TEST_P(MlaAttentionTest, TheLargeModelsSelectionAndALongContext) {
  std::uint64_t seed = 1910;
  const ops::MlaShape shape{2, 512, 64, 32, 24};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << ops::kv_format_name(format));
    Problem p = make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, format, 64), 1, {4100, 2060}, seed);
    Random random(seed + 7);
    const std::vector<Window> windows = {{0, 4100, 2}, {1, 2060, 1}};
    const HostMatrix q = random_matrix(random, 3, p.query_width());
    // Of the first two queries half of the context, of the third all but a few.
    HostSelection selection{2048, {}};
    for (const std::int64_t context : {4099, 4100, 2060}) {
      std::vector<std::int32_t> positions;
      for (std::int32_t j = 0; j < context; ++j) {
        const std::int64_t left = selection.width - std::ssize(positions);
        if (random.below(context - j) < left) positions.push_back(j);
      }
      selection.positions.push_back(positions);
    }
    const std::vector<double> expected = formula(p, windows, q, selection);
    const std::vector<Window> single = {{0, 4100, 1}};
    const HostMatrix single_q = q.slice(1, 2);
    const std::vector<double> expected_dense = formula(p, single, single_q);
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      SCOPED_TRACE(form_name(form));
      const HostMatrix got = run(p, windows, {form, form}, q, selection);
      EXPECT_TRUE(near(got, expected, allowed()));
      const HostMatrix alone = run(p, single, {form}, single_q, HostSelection{2048, {selection.positions[1]}});
      EXPECT_TRUE(same_bits(alone, got.slice(1, 2)));
      const HostMatrix dense = run(p, single, {form}, single_q);
      EXPECT_TRUE(near(dense, expected_dense, allowed()));
      EXPECT_TRUE(same_bits(run(p, std::vector<Window>{{0, 4100, 2}}, {form}, q.slice(0, 2)).slice(1, 2), dense));
    }
  }
}

TEST_P(MlaAttentionTest, ScratchMayBeForMoreTokensAndLongerContexts) {
  constexpr std::uint64_t kSeed = 1868;
  const ops::MlaShape shape{3, 64, 16, 24, 20};
  Problem p =
      make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, ops::KvFormat::kBF16, 16), 0, {70, 140}, kSeed);
  Random random(kSeed + 7);
  const std::vector<Window> windows = {{0, 70, 70}, {1, 140, 7}};
  const HostMatrix q = random_matrix(random, 77, p.query_width());
  HostSelection selection{16, {}};
  for (std::int32_t t = 0; t < 77; ++t) selection.positions.push_back({0, 3, 11, 40, 60, 61});
  for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << form_name(form));
    p.scratch = {};
    const HostMatrix dense = run(p, windows, {form, form}, q);
    const HostMatrix sparse = run(p, windows, {form, form}, q, selection);
    p.scratch = {300, 5000};
    EXPECT_TRUE(same_bits(run(p, windows, {form, form}, q), dense));
    EXPECT_TRUE(same_bits(run(p, windows, {form, form}, q, selection), sparse));
  }
}

TEST_P(MlaAttentionTest, ScratchIsBoundedOverTheWholeContext) {
  const ops::MlaShape shape{64, 512, 64, 192, 256};
  const auto bytes = [&](std::int64_t tokens, std::int64_t context) {
    return backend().mla_attention_scratch_bytes(shape, tokens, context);
  };
  for (const std::int64_t tokens : {1, 64, 576, 8192}) {
    EXPECT_LE(bytes(tokens, 1 << 20) - bytes(tokens, 64), kScratchBytesAContextToken << 20) << tokens << " tokens";
  }
}

TEST_P(MlaAttentionTest, ATokensResultDependsOnNeitherBatchNorChunks) {
  constexpr std::uint64_t kSeed = 1870;
  const ops::MlaShape shape{3, 64, 16, 24, 20};
  for (const ops::KvFormat format : kv_formats()) {
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", "
                                      << form_name(form));
      Problem p = make(shape, {ops::WeightFormat::kBF16, 0}, layout_of(shape, format, 16), 0, {70, 33, 140}, kSeed);
      Random random(kSeed + 7);
      const HostMatrix q = random_matrix(random, 70, p.query_width());
      const HostMatrix others = random_matrix(random, 40, p.query_width());
      const HostMatrix whole = run(p, std::vector<Window>{{0, 70, 70}}, {form}, q);
      for (const auto& [begin, end] : {std::pair{0, 1}, {0, 32}, {32, 70}, {69, 70}, {15, 17}}) {
        const HostMatrix chunk = run(p, std::vector<Window>{{0, end, end - begin}}, {form}, q.slice(begin, end));
        EXPECT_TRUE(same_bits(chunk, whole.slice(begin, end))) << begin << " to " << end;
      }
      // Between two other sequences, one of them in the other form.
      HostMatrix mixed(33 + 70 + 7, q.cols);
      std::copy_n(others.values.begin(), 33 * q.cols, mixed.values.begin());
      std::copy(q.values.begin(), q.values.end(), mixed.values.begin() + 33 * q.cols);
      std::copy_n(others.values.begin() + 33 * q.cols, 7 * q.cols, mixed.values.begin() + 103 * q.cols);
      const MlaForm other = form == MlaForm::kExpanded ? MlaForm::kAbsorbed : MlaForm::kExpanded;
      const HostMatrix batch =
          run(p, std::vector<Window>{{1, 33, 33}, {0, 70, 70}, {2, 140, 7}}, {other, form, form}, mixed);
      EXPECT_TRUE(same_bits(batch.slice(33, 103), whole));
    }
  }
}

TEST_P(MlaAttentionTest, AFailedRowGivesZerosAndDisturbsNobody) {
  constexpr std::uint64_t kSeed = 1880;
  const ops::MlaShape shape{2, 32, 8, 12, 10};
  for (const ops::KvFormat format : kv_formats()) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format));
    Problem p = make(shape, {ops::WeightFormat::kF32, 0}, layout_of(shape, format, 16), 1, {20, 40, 30}, kSeed);
    Random random(kSeed + 7);
    const std::vector<Window> windows = {{0, 20, 5}, {1, 40, 3}, {2, 30, 1}};
    const std::vector<MlaForm> forms = {MlaForm::kExpanded, MlaForm::kExpanded, MlaForm::kAbsorbed};
    const HostMatrix q = random_matrix(random, 9, p.query_width());
    const HostMatrix sound = run(p, windows, forms, q);
    p.scene.kv->toggle_tag(1, 1);
    const HostMatrix damaged = run(p, windows, forms, q);
    EXPECT_TRUE(same_bits(damaged.slice(0, 5), sound.slice(0, 5)));
    EXPECT_TRUE(same_bits(damaged.slice(5, 8), HostMatrix(3, sound.cols)));
    EXPECT_TRUE(same_bits(damaged.slice(8, 9), sound.slice(8, 9)));
    EXPECT_EQ(run(p, {}, {}, HostMatrix(0, q.cols)).rows, 0);
  }
}

TEST_P(MlaAttentionTest, SelectingEveryPositionIsDenseToTheBit) {
  constexpr std::uint64_t kSeed = 1890;
  const ops::MlaShape shape{3, 64, 16, 24, 20};
  for (const ops::KvFormat format : kv_formats()) {
    for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << ops::kv_format_name(format) << ", "
                                      << form_name(form));
      Problem p = make(shape, {ops::WeightFormat::kF32, 0}, layout_of(shape, format, 16), 1, {150, 33}, kSeed);
      Random random(kSeed + 7);
      const std::vector<Window> windows = {{0, 150, 9}, {1, 33, 33}};
      const HostMatrix q = random_matrix(random, 42, p.query_width());
      HostSelection all{160, {}};
      HostSelection whole_context{160, {}};  // Also what lies behind the query, which is left out.
      for (const Window& window : windows) {
        for (std::int32_t position = window.kv_len - window.new_tokens; position < window.kv_len; ++position) {
          std::vector<std::int32_t> seen;
          for (std::int32_t j = 0; j <= position; ++j) seen.push_back(j);
          all.positions.push_back(seen);
          for (std::int32_t j = position + 1; j < window.kv_len; ++j) seen.push_back(j);
          whole_context.positions.push_back(seen);
        }
      }
      const HostMatrix dense = run(p, windows, {form, form}, q);
      EXPECT_TRUE(same_bits(run(p, windows, {form, form}, q, all), dense));
      EXPECT_TRUE(same_bits(run(p, windows, {form, form}, q, whole_context), dense));
    }
  }
}

TEST_P(MlaAttentionTest, AttendsToSelectedPositionsOnly) {
  std::uint64_t seed = 1900;
  for (const ops::KvFormat format : kv_formats()) {
    for (const ops::MlaShape& shape : shapes()) {
      SCOPED_TRACE(testing::Message() << "seed " << ++seed << ", " << ops::kv_format_name(format) << ", " << shape.heads
                                      << " heads, rank " << shape.kv_lora_rank);
      Problem p = make(shape, {ops::WeightFormat::kF32, 0}, layout_of(shape, format, 16), 0, {140, 30}, seed);
      Random random(seed + 7);
      const std::vector<Window> windows = {{0, 140, 6}, {1, 30, 2}};
      const HostMatrix q = random_matrix(random, 8, p.query_width());
      HostSelection selection{48, {}};
      for (std::int64_t t = 0; t < 8; ++t) {
        const std::int32_t context = t < 6 ? 140 : 30;  // May reach behind the query.
        std::vector<std::int32_t> positions;
        for (std::int32_t j = 0; j < context && std::ssize(positions) < 48; ++j) {
          if (random.below(4) == 0) positions.push_back(j);
        }
        selection.positions.push_back(positions);
      }
      selection.positions[1] = {7};         // One position is the mean of itself.
      selection.positions[2] = {138, 139};  // Only behind the query, at 136: nothing is left.
      selection.positions[3] = {};
      const std::vector<double> expected = formula(p, windows, q, selection);
      for (const MlaForm form : {MlaForm::kExpanded, MlaForm::kAbsorbed}) {
        const HostMatrix got = run(p, windows, {form, form}, q, selection, 3);
        EXPECT_TRUE(near(got, expected, allowed())) << form_name(form);
        // Alone as in the batch.
        HostSelection one{48, {selection.positions[5]}};
        const HostMatrix alone = run(p, std::vector<Window>{{0, 140, 1}}, {form}, q.slice(5, 6), one);
        EXPECT_TRUE(same_bits(alone, got.slice(5, 6))) << form_name(form);
      }
    }
  }
}

using MlaAttentionDeathTest = MlaAttentionTest;
INSTANTIATE_TEST_SUITE_P(Backends, MlaAttentionDeathTest, all_backends(), backend_case_name);

TEST_P(MlaAttentionDeathTest, RefusesWhatDoesNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ops::MlaShape shape{2, 32, 8, 12, 10};
  Problem p = make(shape, {ops::WeightFormat::kF32, 0}, layout_of(shape, ops::KvFormat::kBF16, 16), 0, {20}, 1950);
  const std::vector<Window> windows = {{0, 20, 2}};
  const HostMatrix q(2, p.query_width());
  EXPECT_DEATH(run(p, windows, {}, q), "0 forms of 1 rows");
  EXPECT_DEATH(run(p, windows, {MlaForm::kAbsorbed}, HostMatrix(2, 7)), "expected \\[2, 40\\]");
  EXPECT_DEATH(run(p, windows, {MlaForm::kAbsorbed}, HostMatrix(3, q.cols)), "expected \\[2, 40\\]");
  for (const float scale : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem unscaled =
        make(shape, {ops::WeightFormat::kF32, 0}, layout_of(shape, ops::KvFormat::kBF16, 16), 0, {20}, 1951);
    unscaled.softmax_scale = scale;
    EXPECT_DEATH(run(unscaled, windows, {MlaForm::kAbsorbed}, q), "softmax_scale -?(nan|inf)");
  }
  // Scale groups that divide a row, but not as kernels take it.
  ops::KvLayout three_groups = layout_of(shape, ops::KvFormat::kF8E4M3, 16);
  three_groups.parts[ops::kPartLatent].scales = 3;
  three_groups.parts[ops::kPartLatent].other_groups = 4;
  Problem grouped = make(shape, {ops::WeightFormat::kF32, 0}, three_groups, 0, {20}, 1952);
  EXPECT_DEATH(run(grouped, windows, {MlaForm::kAbsorbed}, q), "3 scales, the second for groups of 4");
  p.layer = 2;
  EXPECT_DEATH(run(p, windows, {MlaForm::kAbsorbed}, q), "layer 2 of 2");
  p.layer = 0;
  p.prepared.shape.kv_lora_rank = 36;
  p.prepared.shape.qk_rope_head_dim = 4;
  EXPECT_DEATH(run(p, windows, {MlaForm::kAbsorbed}, HostMatrix(2, 32)), "expected \\[36 \\| 4\\]");
  EXPECT_DEATH(static_cast<void>(backend().prepare_mla_up(p.up.source(), {3, 32, 8, 12, 10})),
               "kv_b_proj is \\[44, 32\\], expected \\[66, 32\\]");
}

}  // namespace
}  // namespace tessera::conformance
