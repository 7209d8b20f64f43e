// Routed experts at a large model's shapes, drawn uniformly. bytes/s counts the experts that a batch touches.
#include <algorithm>
#include <numeric>
#include <set>

#include "bench/large_weights.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::bench {
namespace {

// As many as fit in a test machine's memory.
constexpr std::int64_t kExperts = 32;
constexpr std::int32_t kTaken = 8;
constexpr int kDraws = 16;

ops::ExpertStack random_experts(ops::WeightFormat format, std::int32_t group_size) {
  const HostWeight in = random_host_weight(format, group_size, kExpertWidth, kLargeHidden, 1);
  const HostWeight out = random_host_weight(format, group_size, kLargeHidden, kExpertWidth, 2);
  const std::vector<ops::WeightSource> gate(kExperts, in.source);
  const std::vector<ops::WeightSource> down(kExperts, out.source);
  auto stack = backend().prepare_experts({gate, gate, down});
  TESSERA_CHECK(stack.has_value(), stack.error().to_string());
  return std::move(*stack);
}

// The experts of every token of one batch, ascending in each.
std::vector<std::int32_t> draw(std::int64_t tokens, std::uint64_t seed) {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> all(kExperts);
  std::uint64_t state = base::mix64(seed);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t j = 0; j < kTaken; ++j) {
      state = base::mix64(state + base::kMix64Step);
      std::swap(all[j], all[j + state % (all.size() - j)]);
    }
    std::sort(all.begin(), all.begin() + kTaken);
    ids.insert(ids.end(), all.begin(), all.begin() + kTaken);
  }
  return ids;
}

void moe_experts(benchmark::State& state, ops::WeightFormat format, std::int32_t group_size) {
  const std::int64_t tokens = state.range(0);
  const ops::ExpertStack stack = random_experts(format, group_size);
  std::vector<std::vector<std::int32_t>> draws;
  double touched = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    draws.push_back(draw(tokens, static_cast<std::uint64_t>(i)));
    touched += static_cast<double>(std::set<std::int32_t>(draws.back().begin(), draws.back().end()).size()) / kDraws;
  }
  const std::vector<float> weights(static_cast<std::size_t>(tokens * kTaken), 0.125f);
  std::vector<float> in = random_floats(tokens * kLargeHidden, 3);
  std::vector<float> out(in.size());
  auto scratch = backend().allocate(backend().moe_experts_scratch_bytes(stack, kTaken, tokens), "benchmark scratch");
  TESSERA_CHECK(scratch.has_value(), scratch.error().to_string());
  const auto stream = backend().make_stream();
  ops::MoeExpertsParams params;
  params.in = ops::f32_matrix(in.data(), tokens, kLargeHidden);
  params.experts = &stack;
  params.num_experts_per_tok = kTaken;
  params.expert_weights = weights.data();
  params.out = ops::f32_matrix(out.data(), tokens, kLargeHidden);
  params.scratch = scratch->data();
  std::size_t next = 0;
  const double bytes = touched * static_cast<double>(stack.bytes()) / kExperts;
  const double flops = 6.0 * static_cast<double>(tokens * kTaken * kLargeHidden * kExpertWidth);
  run_op(state, bytes, flops, [&] {
    params.expert_ids = draws[next].data();
    backend().moe_experts(*stream, params);
    next = (next + 1) % draws.size();
  });
  state.counters["experts_touched"] = touched;
}

void batches(benchmark::internal::Benchmark* b) {
  b->ArgName("tokens")->UseManualTime()->Unit(benchmark::kMicrosecond)->Arg(1)->Arg(8)->Arg(32);
}
BENCHMARK_CAPTURE(moe_experts, int4_group32, ops::WeightFormat::kInt4Group, 32)->Apply(batches);
BENCHMARK_CAPTURE(moe_experts, f8_block128, ops::WeightFormat::kF8Block128, 0)->Apply(batches);

void moe_route(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  constexpr std::int64_t kRouted = 384;
  std::vector<float> logits = random_floats(tokens * kRouted, 4);
  const ops::Weight bias = random_weight(ops::WeightFormat::kF32, ops::WeightUsage::kVector, 1, kRouted, 5);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * kTaken));
  std::vector<float> weights(ids.size());
  const auto stream = backend().make_stream();
  ops::MoeRouteParams params;
  params.logits = ops::f32_matrix(logits.data(), tokens, kRouted);
  params.correction_bias = &bias;
  params.num_experts_per_tok = kTaken;
  params.expert_ids = ids.data();
  params.expert_weights = weights.data();
  run_op(state, 4.0 * static_cast<double>(tokens * kRouted), 0.0, [&] { backend().moe_route(*stream, params); });
}
BENCHMARK(moe_route)->Apply(batches);

}  // namespace
}  // namespace tessera::bench
