// Simulated KV formats: the rounding of rows against the ml_dtypes library (tools/oracles/make_kv_rounding_goldens.py),
// and whole plans with it: the simulation of FP8 pages against FP8 pages.
#include "kv_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forced_scorer.h"
#include "model_shelf.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace tessera {
namespace {

using app::KvKind;
using app::KvRounder;
using app::KvRounding;
using app::PlanSpec;

const std::string kPocket = std::string(TESSERA_SOURCE_DIR) + "/models/tessera-pocket";

std::vector<float> floats_of(std::string_view digits) {
  std::vector<float> values;
  values.reserve(digits.size() / 8);
  for (std::size_t i = 0; i + 8 <= digits.size(); i += 8) {
    std::uint32_t bits = 0;
    EXPECT_EQ(std::from_chars(digits.data() + i, digits.data() + i + 8, bits, 16).ec, std::errc{});
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

// Equal to the bit, but that zero has one sign: e4m3 keeps it and a test of values need not.
void expect_equal(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], expected[i]) << "element " << i;
}

TEST(KvRounding, IsThatOfMlDtypes) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/goldens/kv_rounding/rows.json");
  const boost::json::value golden = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  const auto latent = golden.at("latent").to_number<std::int32_t>();
  const auto rope = golden.at("rope").to_number<std::int32_t>();
  const auto observed = golden.at("observed").to_number<std::size_t>();
  std::vector<std::vector<float>> rows;
  for (const auto& row : golden.at("rows").as_array()) rows.push_back(floats_of(row.as_string()));
  ASSERT_EQ(rows.size(), 8u);
  // Two layers, of which one sees nothing but the rows in question, so that layers' constants are apart.
  const ops::KvLayout layout = ops::mla_kv_layout(ops::KvFormat::kBF16, 2, 64, latent, rope);
  for (const std::string_view name : app::kKvRoundingNames) {
    SCOPED_TRACE(name);
    const std::optional<KvRounding> rounding = app::kv_rounding_of(name);
    ASSERT_TRUE(rounding.has_value());
    EXPECT_EQ(app::kv_rounding_name(*rounding), name);
    KvRounder rounder(*rounding, layout, KvKind::kLatent);
    for (std::size_t i = 0; i < observed; ++i) rounder.observe(1, 0, rows[i]);
    rounder.observe(0, 0, std::vector<float>(rows[0].size(), 1e6f));
    rounder.fix_scales();
    const auto& expected = golden.at("formats").at(name).as_array();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(i);
      std::vector<float> row = rows[i];
      rounder.round(1, 0, row);
      expect_equal(row, floats_of(expected.at(i).as_string()));
    }
  }
  EXPECT_FALSE(app::kv_rounding_of("fp4").has_value());
}

TEST(KvRounding, OfGroupedQueriesHasATensorForKeysAndOneForValues) {
  const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, 1, 64, 2, 2);
  KvRounder per_tensor(KvRounding::kPerTensor, layout, KvKind::kGrouped);
  per_tensor.observe(0, ops::kPartK, std::vector{448.0f, 1.0f, -896.0f, 1.0f});
  per_tensor.observe(0, ops::kPartV, std::vector{1.0f, 1.0f, 1.0f, 448.0f * 4.0f});
  per_tensor.fix_scales();
  // By scales 2 and 4, in both heads: 17 and 34 lie in the middle of two neighbours, 448 * scale is the largest.
  std::vector keys = {17.0f, 2000.0f, 34.0f, -1.0f};
  per_tensor.round(0, ops::kPartK, keys);
  expect_equal(keys, {17.0f - 1.0f, 896.0f, 34.0f - 2.0f, -1.0f});
  std::vector values = {68.0f, 2000.0f, 4.0f, -1e30f};
  per_tensor.round(0, ops::kPartV, values);
  expect_equal(values, {64.0f, 1792.0f, 4.0f, -1792.0f});
}

TEST(KvRounding, LeavesWhatIsNotFiniteAndIndexKeys) {
  ops::LayerSet all;
  all.insert(0);
  const ops::KvLayout layout = ops::mla_kv_layout(ops::KvFormat::kBF16, 1, 64, 2, 2, 2, all);
  const KvRounder rounder(KvRounding::kFp8, layout, KvKind::kLatent);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector row = {1.03f, nan, 1.03f, 448.0f};
  rounder.round(0, ops::kPartLatent, row);
  EXPECT_EQ(row[0], 1.03f);
  EXPECT_TRUE(std::isnan(row[1]));
  EXPECT_EQ(row[2], 1.0f) << "the other group of the row";
  std::vector index_keys = {1.03f, 448.0f};
  rounder.round(0, ops::kPartIndexKeys, index_keys);
  EXPECT_EQ(index_keys[0], 1.03f);
}

// ---- Whole plans ----

using Distribution = std::vector<float>;
using Distributions = std::vector<std::vector<Distribution>>;

// Drawn tokens of a model with `vocab_size` of them.
std::vector<quality::Passage> make_passages(std::int32_t vocab_size, std::size_t count, int prompt, int continuation) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int32_t> token(0, vocab_size - 1);
  std::vector<quality::Passage> passages(count);
  for (quality::Passage& passage : passages) {
    for (int i = 0; i < prompt; ++i) passage.prompt.push_back(token(random));
    for (int i = 0; i < continuation; ++i) passage.continuation.push_back(token(random));
  }
  return passages;
}

PlanSpec plan_of(const std::string& model, std::optional<KvRounding> rounding, ops::KvFormat decode) {
  PlanSpec plan;
  plan.name = rounding.has_value() ? app::kv_rounding_name(*rounding) : ops::kv_format_name(decode);
  plan.model = model;
  plan.decode_kv = decode;
  plan.kv_rounding = rounding;
  return plan;
}
PlanSpec simulated(const std::string& model, KvRounding rounding) {
  return plan_of(model, rounding, ops::KvFormat::kBF16);
}

Distributions ask(const PlanSpec& plan, const std::vector<quality::Passage>& passages, app::ModelShelf& shelf) {
  Distributions all;
  auto source = app::make_forced_scorer(plan, &shelf);
  EXPECT_TRUE(source.has_value()) << source.error().to_string();
  if (!source.has_value()) return all;
  EXPECT_TRUE((*source)->prepare(passages).ok());
  for (const quality::Passage& passage : passages) all.emplace_back(passage.continuation.size());
  const base::Status status = (*source)->distributions(
      passages, [&](std::size_t passage, std::size_t position, std::span<const float> logprobs) {
        all.at(passage).at(position).assign(logprobs.begin(), logprobs.end());
      });
  EXPECT_TRUE(status.ok()) << status.to_string();
  return all;
}

// KL(p || q) in nats over all positions but the first ones, which are prefill's.
struct Divergence {
  double mean = 0.0;
  double median = 0.0;
};

Divergence divergence(const Distributions& p, const Distributions& q) {
  std::vector<double> all;
  for (std::size_t passage = 0; passage < p.size(); ++passage) {
    for (std::size_t i = 1; i < p[passage].size(); ++i) {
      const Distribution& a = p[passage][i];
      const Distribution& b = q[passage][i];
      double& sum = all.emplace_back(0.0);
      for (std::size_t t = 0; t < a.size(); ++t) sum += std::exp(double{a[t]}) * (double{a[t]} - double{b[t]});
    }
  }
  std::ranges::sort(all);
  return {std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()), all[all.size() / 2]};
}

void expect_same_first_positions(const Distributions& a, const Distributions& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i][0], b[i][0]) << "passage " << i;
}

TEST(SimulatedKv, Fp8IsThatOfFp8Pages) {
  app::ModelShelf shelf;
  const test_support::TemporaryFolder folder("kv_rounding");
  ASSERT_TRUE(test_support::write_tiny_llama(folder.path(), {}).ok());
  for (const auto& [dir, vocab_size] : {std::pair(kPocket, 1024), std::pair(folder.path().string(), 256)}) {
    const auto shelved = shelf.take(dir, {});
    ASSERT_TRUE(shelved.has_value()) << shelved.error().to_string();
    const auto passages = make_passages(vocab_size, 4, 100, 40);
    const Distributions bf16 = ask(plan_of(dir, std::nullopt, ops::KvFormat::kBF16), passages, shelf);
    const Distributions fp8 = ask(plan_of(dir, std::nullopt, ops::KvFormat::kF8E4M3), passages, shelf);
    const Distributions simulation = ask(simulated(dir, KvRounding::kFp8), passages, shelf);
    expect_same_first_positions(simulation, bf16);
    const Divergence cost = divergence(bf16, fp8);
    const Divergence simulated_cost = divergence(bf16, simulation);
    const Divergence error = divergence(fp8, simulation);
    std::printf(
        "%s, drawn tokens: median (mean) KL divergence from bf16 of fp8_e4m3 %.2e (%.2e), of its simulation "
        "%.2e (%.2e), of the second from the first %.2e (%.2e) nats\n",
        dir == kPocket ? "pocket" : "llama", cost.median, cost.mean, simulated_cost.median, simulated_cost.mean,
        error.median, error.mean);
    // What is left is one rounding to BF16 with an error 16 times smaller, which counts by its square. Where that makes
    // a token take another expert, though, the difference is that of any other cause: so not the mean is judged.
    EXPECT_GT(error.median, 0.0);
    EXPECT_LT(error.median, cost.median / 4.0);
    EXPECT_NEAR(simulated_cost.median, cost.median, cost.median / 3.0);
  }
}

TEST(SimulatedKv, FormatsDifferAndTouchDecodeOnly) {
  app::ModelShelf shelf;
  const auto shelved = shelf.take(kPocket, {});
  ASSERT_TRUE(shelved.has_value());
  const auto passages = make_passages(1024, 17, 66, 8);  // More than the constants are made of.
  const Distributions bf16 = ask(plan_of(kPocket, std::nullopt, ops::KvFormat::kBF16), passages, shelf);
  std::map<KvRounding, Distributions> results;
  for (const std::string_view name : app::kKvRoundingNames) {
    const KvRounding rounding = *app::kv_rounding_of(name);
    Distributions& result = results[rounding] = ask(simulated(kPocket, rounding), passages, shelf);
    expect_same_first_positions(result, bf16);
    const Divergence cost = divergence(bf16, result);
    std::printf("pocket, drawn tokens: median (mean) KL divergence of %s from bf16 %.2e (%.2e) nats\n",
                std::string(name).c_str(), cost.median, cost.mean);
    EXPECT_GT(cost.median, 0.0) << name;
    for (const auto& [other, theirs] : results) {
      if (other == rounding) continue;
      EXPECT_NE(theirs, result) << name << " does what " << app::kv_rounding_name(other) << " does";
    }
    if (!app::is_calibrated(rounding)) continue;
    // The same again, in other company: so the constants are the same.
    PlanSpec again = simulated(kPocket, rounding);
    again.batch = 3;
    again.chunk = 33;
    EXPECT_EQ(ask(again, passages, shelf), result) << name;
  }
  // A model that is shared with a simulation is left as it was.
  EXPECT_EQ(ask(plan_of(kPocket, std::nullopt, ops::KvFormat::kBF16), passages, shelf), bf16);
}

// What an evaluation that goes on asks for is a part of its passages, and all are what constants are measured of.
TEST(SimulatedKv, ConstantsAreThoseOfTheFirstPassagesWhateverIsAskedFor) {
  app::ModelShelf shelf;
  const test_support::TemporaryFolder folder("kv_rounding");
  ASSERT_TRUE(test_support::write_tiny_llama(folder.path(), {.max_position_embeddings = 128}).ok());
  const std::string dir = folder.path().string();
  std::vector<quality::Passage> passages = make_passages(256, app::kCalibrationPassages + 1, 20, 4);
  const PlanSpec plan = simulated(dir, KvRounding::kPerTensor);
  const Distributions all = ask(plan, passages, shelf);
  const auto last_alone = [&](std::span<const quality::Passage> prepared) {
    auto source = app::make_forced_scorer(plan, &shelf);
    EXPECT_TRUE(source.has_value()) << source.error().to_string();
    EXPECT_TRUE((*source)->prepare(prepared).ok());
    std::vector<Distribution> last(passages.back().continuation.size());
    const base::Status status = (*source)->distributions(
        std::span(passages).last(1), [&](std::size_t, std::size_t position, std::span<const float> logprobs) {
          last.at(position).assign(logprobs.begin(), logprobs.end());
        });
    EXPECT_TRUE(status.ok()) << status.to_string();
    return last;
  };
  EXPECT_EQ(last_alone(passages), all.back());
  EXPECT_NE(last_alone(std::span(passages).last(1)), all.back()) << "the constants do not matter here";
  // One that fits no engine is passed over.
  std::vector<quality::Passage> with_long = make_passages(256, 1, 200, 1);
  with_long.insert(with_long.end(), passages.begin(), passages.end());
  EXPECT_EQ(last_alone(with_long), all.back());

  auto unprepared = app::make_forced_scorer(plan, &shelf);
  ASSERT_TRUE(unprepared.has_value());
  EXPECT_NE((*unprepared)->distributions(passages, [](auto...) {}).message().find("expected prepare() first"),
            std::string::npos);
}

TEST(SimulatedKv, IsAKeyOfAPlan) {
  const app::PlanDefaults defaults{.model = kPocket, .backend = {}};
  const auto plan = app::parse_plan("rope:kv-rounding=rope-bf16,chunk=64", defaults);
  ASSERT_TRUE(plan.has_value()) << plan.error().to_string();
  EXPECT_EQ(plan->kv_rounding, KvRounding::kRopeBF16);
  EXPECT_EQ(plan->decode_kv, ops::KvFormat::kBF16);
  EXPECT_NE(app::describe(*plan).find(" kv-rounding=rope-bf16 "), std::string::npos) << app::describe(*plan);
  const auto plain = app::parse_plan("plain", defaults);
  ASSERT_TRUE(plain.has_value()) << plain.error().to_string();
  EXPECT_FALSE(plain->kv_rounding.has_value());
  EXPECT_EQ(app::describe(*plain).find("kv-rounding"), std::string::npos) << app::describe(*plain);

  for (const std::string_view wrong : {"x:kv-rounding=fp8,decode-kv=bf16", "x:kv-rounding=fp8,kv=bf16",
                                       "x:prefill-kv=bf16,kv-rounding=fp8", "x:role=unified,kv-rounding=fp8"}) {
    const auto refused = app::parse_plan(wrong, defaults);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_NE(refused.error().message().find("kv-rounding= simulates"), std::string::npos) << refused.error().message();
  }
  const auto unknown = app::parse_plan("x:kv-rounding=fp4", defaults);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message().find("fp8, rope-bf16, one-scale, per-tensor, scale-1"), std::string::npos)
      << unknown.error().message();
}

TEST(SimulatedKv, RefusesRopeWhereThereIsNone) {
  const test_support::TemporaryFolder folder("kv_rounding");
  ASSERT_TRUE(test_support::write_tiny_llama(folder.path(), {}).ok());
  const auto refused = app::make_forced_scorer(simulated(folder.path().string(), KvRounding::kRopeBF16));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), base::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.error().message().find("latent attention"), std::string::npos) << refused.error().message();
}

}  // namespace
}  // namespace tessera
