// Embedding, RMSNorm, RoPE, linear and SwiGLU, as ops/transformer.h writes them.
#include <fmt/format.h>

#include <cmath>

#include "tessera/backends/cpu/reference/double_dot.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

namespace {

// Calls `use` with the weight's elements in their own type.
template <typename Use>
void with_elements(const ops::Weight& weight, Use use) {
  switch (weight.format) {
    case ops::WeightFormat::kF32:
      use(static_cast<const float*>(weight.data));
      return;
    case ops::WeightFormat::kBF16:
      use(static_cast<const base::BF16*>(weight.data));
      return;
    case ops::WeightFormat::kF8Block128:
    case ops::WeightFormat::kF8Channel:
    case ops::WeightFormat::kInt4Group32:
      break;
  }
  TESSERA_CHECK(false, fmt::format("weight format {}", ops::weight_format_name(weight.format)));
}

}  // namespace

void ReferenceBackend::embedding(ops::Stream&, const ops::EmbeddingParams& params) {
  ops::check_params(params);
  with_elements(*params.table, [&](const auto* table) {
    for (std::int64_t t = 0; t < params.out.rows; ++t) {
      const auto* row = table + params.token_ids[t] * params.table->cols;
      float* out = params.out.f32() + t * params.out.row_stride;
      for (std::int64_t i = 0; i < params.out.cols; ++i) out[i] = static_cast<float>(widen(row[i]));
    }
  });
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
  with_elements(*params.weight, [&](const auto* weight) {
    // The weight's rows outside, so that each is read once however many tokens there are.
    for (std::int64_t n = 0; n < params.out.cols; ++n) {
      const auto* row = weight + n * params.weight->cols;
      for (std::int64_t t = 0; t < params.in.rows; ++t) {
        double sum = double_dot(params.in.f32() + t * params.in.row_stride, row, params.weight->cols);
        float& out = params.out.f32()[t * params.out.row_stride + n];
        if (bias != nullptr) sum += static_cast<double>(bias[n]);
        if (params.mode == ops::OutputMode::kAdd) sum += static_cast<double>(out);
        out = static_cast<float>(sum);
      }
    }
  });
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
