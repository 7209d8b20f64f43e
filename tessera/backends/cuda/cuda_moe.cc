// Routing and routed experts.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/backends/cuda/cuda_ops.h"
#include "tessera/backends/cuda/cuda_weights.h"
#include "tessera/backends/cuda/kernels/moe_experts.h"
#include "tessera/backends/cuda/kernels/moe_route.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cuda {

namespace {

// Places (a token and one of its experts) that are computed at a time: a bound on scratch memory, not on results.
constexpr std::int64_t kPlacesAtOnce = 32768;

std::int64_t tokens_at_once(std::int32_t taken) { return std::max<std::int64_t>(1, kPlacesAtOnce / taken); }

// Scratch memory of a call, as offsets.
struct ExpertScratch {
  std::int64_t tile_count = 0;
  std::int64_t tiles = 0;
  std::int64_t places = 0;
  std::int64_t middle = 0;
  std::int64_t outputs = 0;
  std::int64_t bytes = 0;
  ExpertScratch(const ops::ExpertStack& experts, std::int64_t count) {
    const auto take = [this](std::int64_t size) {
      const std::int64_t at = bytes;
      bytes += base::round_up(size, kBufferAlignment);
      return at;
    };
    tile_count = take(sizeof(std::int32_t));
    tiles = take(expert_tiles_max(experts.experts, count) * static_cast<std::int64_t>(sizeof(ExpertTile)));
    places = take(count * static_cast<std::int64_t>(sizeof(std::int32_t)));
    middle = take(count * experts.intermediate * 4);
    outputs = take(count * experts.hidden * 4);
  }
};

ExpertWeights expert_weights(const ops::ExpertStack& stack, const ExpertLayout::Part& part) {
  return {.first = {.format = stack.format,
                    .data = stack.storage.data() + part.data_offset,
                    .scales = stack.storage.data() + part.scale_offset,
                    .n = part.n,
                    .k = part.k,
                    .pitch = part.pitch},
          .data_stride = part.data_stride,
          .scale_stride = part.scale_stride};
}

}  // namespace

void CudaBackend::moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(params.logits.cols <= kRouteExpertsMax, fmt::format("{} experts", params.logits.cols));
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_moe_route(
      {.logits = params.logits.f32(),
       .logits_stride = params.logits.row_stride,
       .tokens = params.logits.rows,
       .experts = static_cast<std::int32_t>(params.logits.cols),
       .bias = params.correction_bias == nullptr ? nullptr : static_cast<const float*>(params.correction_bias->data),
       .n_group = params.n_group,
       .topk_group = params.topk_group,
       .taken = params.num_experts_per_tok,
       .norm_topk_prob = params.norm_topk_prob,
       .factor = params.routed_scaling_factor,
       .expert_ids = params.expert_ids,
       .expert_weights = params.expert_weights},
      s.launch());
  s.launched("moe_route");
}

std::int64_t CudaBackend::moe_experts_scratch_bytes(const ops::ExpertStack& experts, std::int32_t num_experts_per_tok,
                                                    std::int64_t tokens) const {
  return ExpertScratch(experts, std::min(tokens, tokens_at_once(num_experts_per_tok)) * num_experts_per_tok).bytes;
}

void CudaBackend::moe_experts(ops::Stream& stream, const ops::MoeExpertsParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(params.in.rows == 0 || params.scratch != nullptr, "no scratch memory");
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  const ops::ExpertStack& stack = *params.experts;
  const ExpertLayout layout = expert_layout(stack.format, stack.experts, stack.hidden, stack.intermediate);
  const std::int32_t taken = params.num_experts_per_tok;
  const std::int64_t step = tokens_at_once(taken);
  for (std::int64_t begin = 0; begin < params.in.rows; begin += step) {
    const std::int64_t tokens = std::min(step, params.in.rows - begin);
    const ExpertScratch scratch(stack, tokens * taken);
    launch_moe_experts({.in = params.in.f32() + begin * params.in.row_stride,
                        .in_stride = params.in.row_stride,
                        .tokens = tokens,
                        .taken = taken,
                        .experts = static_cast<std::int32_t>(stack.experts),
                        .gate = expert_weights(stack, layout.gate),
                        .up = expert_weights(stack, layout.up),
                        .down = expert_weights(stack, layout.down),
                        .expert_ids = params.expert_ids + begin * taken,
                        .expert_weights = params.expert_weights + begin * taken,
                        .out = params.out.f32() + begin * params.out.row_stride,
                        .out_stride = params.out.row_stride,
                        .tile_count = reinterpret_cast<std::int32_t*>(params.scratch + scratch.tile_count),
                        .tiles = reinterpret_cast<ExpertTile*>(params.scratch + scratch.tiles),
                        .places = reinterpret_cast<std::int32_t*>(params.scratch + scratch.places),
                        .middle = reinterpret_cast<float*>(params.scratch + scratch.middle),
                        .outputs = reinterpret_cast<float*>(params.scratch + scratch.outputs)},
                       s.launch());
    s.launched("moe_experts");
  }
}

}  // namespace tessera::backends::cuda
