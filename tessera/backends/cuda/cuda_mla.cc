// Latent attention and the selection of its tokens.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/backends/cuda/cuda_ops.h"
#include "tessera/backends/cuda/cuda_weights.h"
#include "tessera/backends/cuda/kernels/dsa_select.h"
#include "tessera/backends/cuda/kernels/linear.h"
#include "tessera/backends/cuda/kernels/mla_absorbed.h"
#include "tessera/backends/cuda/kernels/mla_expanded.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cuda {

namespace {

// Scratch memory of absorbed rows with `tokens` tokens, as offsets.
struct AbsorbedScratch {
  std::int64_t latent_queries = 0;
  std::int64_t sums = 0;
  std::int64_t partials = 0;
  std::int64_t bytes = 0;
  AbsorbedScratch(const ops::MlaShape& shape, std::int64_t tokens) {
    const std::int64_t vectors = base::round_up(tokens * shape.heads * shape.kv_lora_rank * 4, kBufferAlignment);
    sums = vectors;
    partials = 2 * vectors;
    bytes = partials + latent_partials_floats(shape.heads, shape.kv_lora_rank, tokens) * 4;
  }
};

// Scratch memory of an expanded row with q_len queries: what they wait with between chunks, then a chunk.
std::int64_t expanded_rows_at(const ExpandedShape& shape, std::int64_t q_len) {
  return base::round_up(q_len * shape.heads * expanded_sum_floats(shape) * 4, kBufferAlignment);
}

ExpandedShape expanded_shape(const ops::MlaShape& shape) {
  return {.heads = shape.heads,
          .rank = shape.kv_lora_rank,
          .rope = shape.qk_rope_head_dim,
          .nope = shape.qk_nope_head_dim,
          .value = shape.v_head_dim};
}

base::Status check_shape_limits(const ops::MlaShape& shape, std::string_view backend) {
  const std::int64_t query = base::round_up(shape.qk_nope_head_dim, 16) + base::round_up(shape.qk_rope_head_dim, 16);
  if (shape.kv_lora_rank <= kLatentRankMax && shape.qk_rope_head_dim <= kLatentRopeMax && query <= kExpandedQueryMax &&
      shape.v_head_dim <= kExpandedValueMax) {
    return base::ok_status();
  }
  return base::unimplemented(fmt::format(
      "latent attention of kv_lora_rank {}, qk_rope_head_dim {}, qk_nope_head_dim {}, v_head_dim {}: backend "
      "{} takes up to {}, {}, {} (with rope) and {}",
      shape.kv_lora_rank, shape.qk_rope_head_dim, shape.qk_nope_head_dim, shape.v_head_dim, backend, kLatentRankMax,
      kLatentRopeMax, kExpandedQueryMax, kExpandedValueMax));
}

SelectedPositions selected(const ops::TokenSelection* selection) {
  if (selection == nullptr) return {};
  return {.positions = selection->positions, .counts = selection->counts, .width = selection->width};
}

}  // namespace

// Held in BF16 whatever the source's format: as a weight of products, row-major, for values and expanded keys, and the
// keys' rows transposed, [heads, kv_lora_rank, qk_nope_head_dim], for absorbed queries.
base::Result<ops::MlaUpProjection> CudaBackend::prepare_mla_up(const ops::WeightSource& source,
                                                               const ops::MlaShape& shape) {
  ops::check_sources(source, shape);
  TESSERA_RETURN_IF_ERROR(ops::check_source(source, name_, kElementBytesMax));
  TESSERA_RETURN_IF_ERROR(check_shape_limits(shape, name_));
  const std::vector<float> values = decode_weight(source);
  std::vector<base::BF16> rounded(values.size());
  std::ranges::transform(values, rounded.begin(), [](float value) { return base::to_bf16(value); });
  ops::MlaUpProjection up;
  up.shape = shape;
  up.format = source.format;
  ops::WeightSource plain;
  plain.format = ops::WeightFormat::kBF16;
  plain.rows = source.rows;
  plain.cols = source.cols;
  plain.data = rounded.data();
  TESSERA_ASSIGN_OR_RETURN(up.weight, prepare_weight(plain));

  const std::int64_t pitch = base::round_up(shape.qk_nope_head_dim, kLinearPitch);
  std::vector<base::BF16> transposed(static_cast<std::size_t>(std::int64_t{shape.heads} * shape.kv_lora_rank * pitch));
  const std::int64_t head_rows = shape.qk_nope_head_dim + shape.v_head_dim;
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    for (std::int64_t d = 0; d < shape.qk_nope_head_dim; ++d) {
      for (std::int64_t i = 0; i < shape.kv_lora_rank; ++i) {
        transposed[static_cast<std::size_t>((h * shape.kv_lora_rank + i) * pitch + d)] =
            rounded[static_cast<std::size_t>((h * head_rows + d) * shape.kv_lora_rank + i)];
      }
    }
  }
  const std::int64_t bytes = std::ssize(transposed) * 2;
  TESSERA_ASSIGN_OR_RETURN(up.storage, allocate(bytes, "keys of an up projection"));
  if (!health_->check(
          cudaMemcpy(up.storage.data(), transposed.data(), static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice),
          "copying a weight") ||
      !health_->check(cudaStreamSynchronize(nullptr), "copying a weight")) {
    return base::failure(health_->status());
  }
  return up;
}

std::int64_t CudaBackend::mla_attention_scratch_bytes(const ops::MlaShape& shape, std::int64_t tokens,
                                                      std::int64_t context_tokens_max) const {
  const ExpandedShape expanded = expanded_shape(shape);
  const std::int64_t positions = std::min(context_tokens_max, expanded_chunk(expanded));
  return std::max(AbsorbedScratch(shape, tokens).bytes,
                  expanded_rows_at(expanded, tokens) + positions * expanded_width(expanded) * 2);
}

void CudaBackend::mla_attention(ops::Stream& stream, const ops::MlaAttentionParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  TESSERA_CHECK(params.q.rows == 0 || params.scratch != nullptr, "no scratch memory");
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  // Runs of rows of one form share their kernels, but expanded rows have the scratch memory to themselves in turn.
  const std::int64_t rows = params.pages.rows();
  for (std::int64_t begin = 0; begin < rows;) {
    std::int64_t end = begin + 1;
    if (params.forms[static_cast<std::size_t>(begin)] == ops::MlaForm::kExpanded) {
      attend_expanded(s, params, begin);
    } else {
      while (end < rows && params.forms[static_cast<std::size_t>(end)] == ops::MlaForm::kAbsorbed) ++end;
      attend_absorbed(s, params, begin, end);
    }
    begin = end;
  }
}

void CudaBackend::attend_expanded(CudaStream& s, const ops::MlaAttentionParams& params, std::int64_t row) {
  const std::int32_t token = params.cu_seqlens_q[static_cast<std::size_t>(row)];
  const std::int32_t q_len = params.cu_seqlens_q[static_cast<std::size_t>(row) + 1] - token;
  if (q_len == 0) return;
  const ExpandedShape shape = expanded_shape(params.up->shape);
  auto* expanded = reinterpret_cast<__nv_bfloat16*>(params.scratch + expanded_rows_at(shape, q_len));
  const std::int64_t length_max = params.pages.max_pages_per_row() * params.cache.layout.page_size;
  const std::int64_t chunk = expanded_chunk(shape);
  for (std::int64_t first = 0; first < length_max; first += chunk) {
    const std::int64_t positions = std::min(chunk, length_max - first);
    launch_expand_latents({.shape = shape,
                           .weight = static_cast<const __nv_bfloat16*>(params.up->weight.data),
                           .pitch = base::round_up(shape.rank, kLinearPitch),
                           .table = params.pages.table() + row * params.pages.max_pages_per_row(),
                           .kv_len = params.pages.kv_lens() + row,
                           .page_size = params.cache.layout.page_size,
                           .first_position = first,
                           .positions = positions,
                           .rows = rows_of_cache(params.cache, params.layer).parts[ops::kPartLatent],
                           .expanded = expanded},
                          s.launch());
    launch_mla_expanded({.shape = shape,
                         .row = static_cast<std::int32_t>(row),
                         .q_len = q_len,
                         .first_token = token,
                         .q = params.q.f32(),
                         .q_stride = params.q.row_stride,
                         .kv_len = params.pages.kv_lens() + row,
                         .length_max = length_max,
                         .first_position = first,
                         .positions = positions,
                         .expanded = expanded,
                         .sums_so_far = reinterpret_cast<float*>(params.scratch),
                         .selection = selected(params.selection),
                         .softmax_scale = params.softmax_scale,
                         .out = params.out.f32(),
                         .out_stride = params.out.row_stride},
                        s.launch());
  }
  s.launched("mla_attention");
}

void CudaBackend::attend_absorbed(CudaStream& s, const ops::MlaAttentionParams& params, std::int64_t begin,
                                  std::int64_t end) {
  const ops::MlaShape& shape = params.up->shape;
  const auto first_token_of = [&](std::int64_t row) { return params.cu_seqlens_q[static_cast<std::size_t>(row)]; };
  const std::int32_t first_token = first_token_of(begin);
  const std::int64_t tokens = first_token_of(end) - first_token;
  if (tokens == 0) return;
  const AbsorbedScratch scratch(shape, tokens);
  auto* latent_queries = reinterpret_cast<float*>(params.scratch + scratch.latent_queries);
  auto* sums = reinterpret_cast<float*>(params.scratch + scratch.sums);
  const std::int64_t latent_width = std::int64_t{shape.heads} * shape.kv_lora_rank;

  // Queries into latent space, a head at a time.
  const std::int64_t key_pitch = base::round_up(shape.qk_nope_head_dim, kLinearPitch);
  launch_linear({.in = params.q.f32() + first_token * params.q.row_stride,
                 .in_stride = params.q.row_stride,
                 .tokens = tokens,
                 .k = shape.qk_nope_head_dim,
                 .weight = params.up->storage.data(),
                 .weight_is_bf16 = true,
                 .pitch = key_pitch,
                 .n = shape.kv_lora_rank,
                 .out = latent_queries,
                 .out_stride = latent_width,
                 .batches = shape.heads,
                 .in_batch = shape.qk_nope_head_dim + shape.qk_rope_head_dim,
                 .weight_batch = shape.kv_lora_rank * key_pitch,
                 .out_batch = shape.kv_lora_rank},
                s.launch());

  // Which token of which row; the device is told only where rows have other than one.
  bool one_each = true;
  std::vector<LatentToken> places;
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int32_t q_len = first_token_of(r + 1) - first_token_of(r);
    one_each = one_each && q_len == 1;
    for (std::int32_t i = 0; i < q_len; ++i) {
      places.push_back({static_cast<std::int32_t>(r), q_len, i, first_token_of(r) + i});
    }
  }
  MlaAbsorbedKernel kernel{.latent_queries = latent_queries,
                           .first_token = first_token,
                           .q = params.q.f32(),
                           .q_stride = params.q.row_stride,
                           .heads = shape.heads,
                           .rank = shape.kv_lora_rank,
                           .rope = shape.qk_rope_head_dim,
                           .nope = shape.qk_nope_head_dim,
                           .table = params.pages.table(),
                           .max_pages_per_row = params.pages.max_pages_per_row(),
                           .kv_lens = params.pages.kv_lens(),
                           .page_size = params.cache.layout.page_size,
                           .rows = rows_of_cache(params.cache, params.layer).parts[ops::kPartLatent],
                           .selection = selected(params.selection),
                           .softmax_scale = params.softmax_scale,
                           .sums = sums,
                           .partials = reinterpret_cast<float*>(params.scratch + scratch.partials)};
  const std::int64_t tokens_at_once = latent_tokens_at_once(shape.heads);
  for (std::int64_t at = 0; at < tokens; at += tokens_at_once) {
    kernel.num_tokens = std::min(tokens - at, tokens_at_once);
    kernel.first = places[static_cast<std::size_t>(at)];
    if (!one_each) {
      kernel.tokens = s.stage(std::span<const LatentToken>(places).subspan(
          static_cast<std::size_t>(at), static_cast<std::size_t>(kernel.num_tokens)));
      if (kernel.tokens == nullptr) return;
    }
    launch_mla_absorbed(kernel, s.launch());
  }

  // Values out of it, likewise.
  const std::int64_t value_pitch = base::round_up(shape.kv_lora_rank, kLinearPitch);
  launch_linear(
      {.in = sums,
       .in_stride = latent_width,
       .tokens = tokens,
       .k = shape.kv_lora_rank,
       .weight = static_cast<const __nv_bfloat16*>(params.up->weight.data) + shape.qk_nope_head_dim * value_pitch,
       .weight_is_bf16 = true,
       .pitch = value_pitch,
       .n = shape.v_head_dim,
       .out = params.out.f32() + first_token * params.out.row_stride,
       .out_stride = params.out.row_stride,
       .batches = shape.heads,
       .in_batch = shape.kv_lora_rank,
       .weight_batch = (shape.qk_nope_head_dim + shape.v_head_dim) * value_pitch,
       .out_batch = shape.v_head_dim},
      s.launch());
  s.launched("mla_attention");
}

std::int64_t CudaBackend::dsa_select_scratch_bytes(std::int32_t, std::int32_t, std::int64_t tokens,
                                                   std::int64_t context_tokens_max) const {
  return std::min(tokens, kSelectTokens) * context_tokens_max * 4;
}

void CudaBackend::dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  TESSERA_CHECK(params.index_head_dim <= kIndexHeadDimMax && params.index_n_heads <= kIndexHeadsMax,
                fmt::format("{} index heads of {}", params.index_n_heads, params.index_head_dim));
  TESSERA_CHECK(params.q.rows == 0 || params.scratch != nullptr, "no scratch memory");
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  std::vector<SelectToken> tokens;
  for (std::int64_t r = 0; r < params.pages.rows(); ++r) {
    const std::int32_t q_len =
        params.cu_seqlens_q[static_cast<std::size_t>(r) + 1] - params.cu_seqlens_q[static_cast<std::size_t>(r)];
    for (std::int32_t i = 0; i < q_len; ++i) tokens.push_back({static_cast<std::int32_t>(r), q_len, i});
  }
  for (std::int64_t begin = 0; begin < std::ssize(tokens); begin += kSelectTokens) {
    const std::int64_t count = std::min(kSelectTokens, std::ssize(tokens) - begin);
    const SelectToken* staged = s.stage(
        std::span<const SelectToken>(tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
    if (staged == nullptr) return;
    launch_dsa_select({.tokens = staged,
                       .num_tokens = count,
                       .rows = params.pages.rows(),
                       .q = params.q.f32() + begin * params.q.row_stride,
                       .q_stride = params.q.row_stride,
                       .weights = params.weights.f32() + begin * params.weights.row_stride,
                       .weights_stride = params.weights.row_stride,
                       .heads = params.index_n_heads,
                       .head_dim = params.index_head_dim,
                       .table = params.pages.table(),
                       .max_pages_per_row = params.pages.max_pages_per_row(),
                       .kv_lens = params.pages.kv_lens(),
                       .page_size = params.cache.layout.page_size,
                       .keys = rows_of_cache(params.cache, params.layer).parts[ops::kPartIndexKeys],
                       .softmax_scale = params.softmax_scale,
                       .width = params.selection.width,
                       .positions = params.selection.positions + begin * params.selection.width,
                       .counts = params.selection.counts + begin,
                       .scores = reinterpret_cast<float*>(params.scratch)},
                      s.launch());
    s.launched("dsa_select");
  }
}

}  // namespace tessera::backends::cuda
