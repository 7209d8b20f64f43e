// Embedding, RMSNorm, LayerNorm, RoPE, linear and SwiGLU, as ops/transformer.h writes them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/backends/cpu/reference/double_dot.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/backends/cpu/reference/weight_rows.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

void ReferenceBackend::embedding(ops::Stream&, const ops::EmbeddingParams& params) {
  ops::check_params(params);
  ops::check_token_ids(params);
  std::vector<float> scratch;
  for (std::int64_t t = 0; t < params.out.rows; ++t) {
    const float* row = weight_row(*params.table, params.token_ids[t], scratch);
    std::copy_n(row, params.out.cols, params.out.f32() + t * params.out.row_stride);
  }
}

void ReferenceBackend::rms_norm(ops::Stream&, const ops::RmsNormParams& params) {
  ops::check_params(params);
  const auto* weight = static_cast<const float*>(params.weight->data);
  for (std::int64_t t = 0; t < params.in.rows; ++t) {
    const float* in = params.in.f32() + t * params.in.row_stride;
    float* out = params.out.f32() + t * params.out.row_stride;
    const double mean = double_dot(in, in, params.in.cols) / static_cast<double>(params.in.cols);
    const double inverse = 1.0 / std::sqrt(mean + static_cast<double>(params.epsilon));
    for (std::int64_t i = 0; i < params.in.cols; ++i) {
      out[i] = static_cast<float>(static_cast<double>(in[i]) * inverse * static_cast<double>(weight[i]));
    }
  }
}

void ReferenceBackend::layer_norm(ops::Stream&, const ops::LayerNormParams& params) {
  ops::check_params(params);
  const auto* weight = static_cast<const float*>(params.weight->data);
  const auto* bias = static_cast<const float*>(params.bias->data);
  const std::int64_t width = params.in.cols;
  for (std::int64_t t = 0; t < params.in.rows; ++t) {
    const float* in = params.in.f32() + t * params.in.row_stride;
    float* out = params.out.f32() + t * params.out.row_stride;
    double mean = 0.0;
    for (std::int64_t i = 0; i < width; ++i) mean += static_cast<double>(in[i]);
    mean /= static_cast<double>(width);
    double variance = 0.0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double off = static_cast<double>(in[i]) - mean;
      variance += off * off;
    }
    variance /= static_cast<double>(width);
    const double inverse = 1.0 / std::sqrt(variance + static_cast<double>(params.epsilon));
    for (std::int64_t i = 0; i < width; ++i) {
      out[i] = static_cast<float>((static_cast<double>(in[i]) - mean) * inverse * static_cast<double>(weight[i]) +
                                  static_cast<double>(bias[i]));
    }
  }
}

void ReferenceBackend::rope(ops::Stream&, const ops::RopeParams& params) {
  ops::check_params(params);
  const std::int32_t half = params.rotary_dim / 2;
  const bool interleaved = params.style == ops::RopeStyle::kInterleaved;
  for (std::int64_t t = 0; t < params.x.rows; ++t) {
    for (std::int32_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(params.positions[t]) * params.inverse_frequencies[i];
      const double cosine = std::cos(static_cast<double>(angle)) * static_cast<double>(params.magnitude);
      const double sine = std::sin(static_cast<double>(angle)) * static_cast<double>(params.magnitude);
      for (std::int32_t h = 0; h < params.heads; ++h) {
        float* head = params.x.f32() + t * params.x.row_stride + static_cast<std::int64_t>(h) * params.head_dim;
        float& first = head[interleaved ? 2 * i : i];
        float& second = head[interleaved ? 2 * i + 1 : i + half];
        const double a = first;
        const double b = second;
        first = static_cast<float>(a * cosine - b * sine);
        second = static_cast<float>(a * sine + b * cosine);
      }
    }
  }
}

void ReferenceBackend::linear(ops::Stream&, const ops::LinearParams& params) {
  ops::check_params(params);
  const float* bias = params.bias == nullptr ? nullptr : static_cast<const float*>(params.bias->data);
  std::vector<float> scratch;
  // The weight's rows outside, so that each is read once however many tokens there are.
  for (std::int64_t n = 0; n < params.out.cols; ++n) {
    const float* row = weight_row(*params.weight, n, scratch);
    for (std::int64_t t = 0; t < params.in.rows; ++t) {
      double sum = double_dot(params.in.f32() + t * params.in.row_stride, row, params.weight->cols);
      float& out = params.out.f32()[t * params.out.row_stride + n];
      if (bias != nullptr) sum += static_cast<double>(bias[n]);
      if (params.mode == ops::OutputMode::kAdd) sum += static_cast<double>(out);
      out = static_cast<float>(sum);
    }
  }
}

void ReferenceBackend::swiglu(ops::Stream&, const ops::SwigluParams& params) {
  ops::check_params(params);
  for (std::int64_t t = 0; t < params.gate.rows; ++t) {
    const float* gate = params.gate.f32() + t * params.gate.row_stride;
    const float* up = params.up.f32() + t * params.up.row_stride;
    float* out = params.out.f32() + t * params.out.row_stride;
    for (std::int64_t i = 0; i < params.gate.cols; ++i) {
      const double g = gate[i];
      out[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]));
    }
  }
}

}  // namespace tessera::backends::cpu
