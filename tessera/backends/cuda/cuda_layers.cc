// The ops of a layer: parameters checked, flattened, launched.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tessera/backends/cuda/cuda_ops.h"
#include "tessera/backends/cuda/cuda_weights.h"
#include "tessera/backends/cuda/kernels/elementwise.h"
#include "tessera/backends/cuda/kernels/kv_write.h"
#include "tessera/backends/cuda/kernels/linear.h"
#include "tessera/backends/cuda/kernels/paged_attention.h"
#include "tessera/backends/cuda/kernels/quantized_linear.h"
#include "tessera/backends/cuda/kernels/sample_tokens.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cuda {

void CudaBackend::embedding(ops::Stream& stream, const ops::EmbeddingParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_embedding({.table = params.table->data,
                    .table_is_bf16 = params.table->format == ops::WeightFormat::kBF16,
                    .vocab = params.table->rows,
                    .hidden = params.table->cols,
                    .token_ids = params.token_ids.data(),
                    .tokens = std::ssize(params.token_ids),
                    .out = params.out.f32(),
                    .out_stride = params.out.row_stride},
                   s.launch());
  s.launched("embedding");
}

void CudaBackend::rms_norm(ops::Stream& stream, const ops::RmsNormParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_rms_norm({.in = params.in.f32(),
                   .in_stride = params.in.row_stride,
                   .weight = static_cast<const float*>(params.weight->data),
                   .epsilon = params.epsilon,
                   .tokens = params.in.rows,
                   .hidden = params.in.cols,
                   .out = params.out.f32(),
                   .out_stride = params.out.row_stride},
                  s.launch());
  s.launched("rms_norm");
}

void CudaBackend::layer_norm(ops::Stream& stream, const ops::LayerNormParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_layer_norm({.in = params.in.f32(),
                     .in_stride = params.in.row_stride,
                     .weight = static_cast<const float*>(params.weight->data),
                     .bias = static_cast<const float*>(params.bias->data),
                     .epsilon = params.epsilon,
                     .tokens = params.in.rows,
                     .width = params.in.cols,
                     .out = params.out.f32(),
                     .out_stride = params.out.row_stride},
                    s.launch());
  s.launched("layer_norm");
}

void CudaBackend::rope(ops::Stream& stream, const ops::RopeParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_rope({.x = params.x.f32(),
               .x_stride = params.x.row_stride,
               .positions = params.positions.data(),
               .inverse_frequencies = params.inverse_frequencies.data(),
               .tokens = params.x.rows,
               .heads = params.heads,
               .head_dim = params.head_dim,
               .rotary_dim = params.rotary_dim,
               .interleaved = params.style == ops::RopeStyle::kInterleaved,
               .magnitude = params.magnitude},
              s.launch());
  s.launched("rope");
}

void CudaBackend::linear(ops::Stream& stream, const ops::LinearParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  const ops::Weight& weight = *params.weight;
  const auto* bias = params.bias == nullptr ? nullptr : static_cast<const float*>(params.bias->data);
  if (is_quantized(weight.format)) {
    launch_quantized_linear({.in = params.in.f32(),
                             .in_stride = params.in.row_stride,
                             .tokens = params.in.rows,
                             .weight = product_weight(weight),
                             .bias = bias,
                             .out = params.out.f32(),
                             .out_stride = params.out.row_stride,
                             .add = params.mode == ops::OutputMode::kAdd},
                            s.launch());
    s.launched("linear");
    return;
  }
  launch_linear({.in = params.in.f32(),
                 .in_stride = params.in.row_stride,
                 .tokens = params.in.rows,
                 .k = params.in.cols,
                 .weight = weight.data,
                 .weight_is_bf16 = weight.format == ops::WeightFormat::kBF16,
                 .pitch = weight_pitch(weight.format, weight.usage, weight.cols),
                 .n = weight.rows,
                 .bias = bias,
                 .out = params.out.f32(),
                 .out_stride = params.out.row_stride,
                 .add = params.mode == ops::OutputMode::kAdd},
                s.launch());
  s.launched("linear");
}

void CudaBackend::swiglu(ops::Stream& stream, const ops::SwigluParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_swiglu({.gate = params.gate.f32(),
                 .gate_stride = params.gate.row_stride,
                 .up = params.up.f32(),
                 .up_stride = params.up.row_stride,
                 .tokens = params.gate.rows,
                 .width = params.gate.cols,
                 .out = params.out.f32(),
                 .out_stride = params.out.row_stride},
                s.launch());
  s.launched("swiglu");
}

void CudaBackend::kv_write(ops::Stream& stream, const ops::KvWriteParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  KvWriteKernel kernel{.slots = params.slots.slots(),
                       .tokens = params.slots.tokens(),
                       .cache = rows_of_cache(params.cache, params.layer),
                       .num_pages = params.cache.num_pages,
                       .nonfinite_rows = params.nonfinite_rows};
  for (std::size_t p = 0; p < params.parts.size(); ++p) {
    kernel.x[p] = params.parts[p].f32();
    kernel.x_stride[p] = params.parts[p].row_stride;
  }
  launch_kv_write(kernel, s.launch());
  s.launched("kv_write");
}

void CudaBackend::paged_attention(ops::Stream& stream, const ops::PagedAttentionParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  TESSERA_CHECK(params.head_dim <= kHeadDimMax, fmt::format("head dim {} of {}", params.head_dim, kHeadDimMax));
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  const std::int32_t group = params.heads / params.kv_heads;
  const std::int64_t rows = params.pages.rows();
  const auto q_len = [&](std::int64_t r) {
    return params.cu_seqlens_q[static_cast<std::size_t>(r) + 1] - params.cu_seqlens_q[static_cast<std::size_t>(r)];
  };
  std::vector<AttentionTile> tiles;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int32_t query_rows = q_len(r) * group;
    for (std::int32_t first = 0; first < query_rows; first += kTileRows) {
      tiles.push_back({static_cast<std::int32_t>(r), q_len(r), params.cu_seqlens_q[static_cast<std::size_t>(r)], first,
                       std::min(kTileRows, query_rows - first)});
    }
  }

  PagedAttentionKernel kernel{.q = params.q.f32(),
                              .q_stride = params.q.row_stride,
                              .out = params.out.f32(),
                              .out_stride = params.out.row_stride,
                              .table = params.pages.table(),
                              .max_pages_per_row = params.pages.max_pages_per_row(),
                              .kv_lens = params.pages.kv_lens(),
                              .cache = rows_of_cache(params.cache, params.layer),
                              .kv_heads = params.kv_heads,
                              .group = group,
                              .head_dim = params.head_dim,
                              .softmax_scale = params.softmax_scale};
  // Splits are worth blocks of their own while tiles alone leave multiprocessors idle. How long the rows are only the
  // device knows; how long they may be, the table's width says.
  const std::int64_t length_max = params.pages.max_pages_per_row() * params.cache.layout.page_size;
  const std::int64_t split_blocks = std::min<std::int64_t>(base::ceil_div(length_max, kSplitKeysMin), kSplitsMax);
  const std::int64_t partials_bytes = params.q.rows * params.heads * split_blocks * partial_floats(params.head_dim) * 4;
  if (std::ssize(tiles) * params.kv_heads < 4 * s.launch().multiprocessors && split_blocks > 1 &&
      partials_bytes <= s.workspace_bytes()) {
    kernel.split_blocks = static_cast<std::int32_t>(split_blocks);
    kernel.partials = reinterpret_cast<float*>(s.workspace());
  }
  // Staged in parts, should the tiles of a large prefill not fit at once.
  constexpr std::int64_t kTilesAtOnce = CudaStream::kStageBytesMax / static_cast<std::int64_t>(sizeof(AttentionTile));
  for (std::int64_t begin = 0; begin < std::ssize(tiles); begin += kTilesAtOnce) {
    kernel.num_tiles = std::min(std::ssize(tiles) - begin, kTilesAtOnce);
    kernel.tiles = s.stage(std::span<const AttentionTile>(tiles).subspan(static_cast<std::size_t>(begin),
                                                                         static_cast<std::size_t>(kernel.num_tiles)));
    if (kernel.tiles == nullptr) return;
    launch_paged_attention(kernel, s.launch());
    s.launched("paged_attention");
  }
}

void CudaBackend::sample_tokens(ops::Stream& stream, const ops::SampleTokensParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(params.logits.cols <= kSampleVocabularyMax, fmt::format("vocabulary of {}", params.logits.cols));
  CudaStream& s = cuda_stream(stream);
  if (params.rows.empty() || !s.begin()) return;
  const ops::SampleRow* rows = s.stage(params.rows);
  if (rows == nullptr) return;
  launch_sample_tokens({.logits = params.logits.f32(),
                        .logits_stride = params.logits.row_stride,
                        .vocab = params.logits.cols,
                        .rows = rows,
                        .num_rows = params.logits.rows,
                        .top_width = params.top_width,
                        .out = params.out,
                        .top_ids = params.top_ids,
                        .top_logprobs = params.top_logprobs},
                       s.launch());
  s.launched("sample_tokens");
}

}  // namespace tessera::backends::cuda
