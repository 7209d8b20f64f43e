// Embedding, RMSNorm, LayerNorm, RoPE and SwiGLU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

// Elements of elementwise work that are worth another thread.
constexpr std::int64_t kElementsAChunk = 16 << 10;

std::int64_t rows_a_chunk(std::int64_t cols) { return std::max<std::int64_t>(1, kElementsAChunk / cols); }

}  // namespace

void SimdBackend::embedding(ops::Stream&, const ops::EmbeddingParams& params) {
  ops::check_params(params);
  ops::check_token_ids(params);
  const std::int64_t cols = params.out.cols;
  threads_.parallel_for(params.out.rows, rows_a_chunk(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t at = params.token_ids[static_cast<std::size_t>(t)] * cols;
      float* out = params.out.f32() + t * params.out.row_stride;
      if (params.table->format == ops::WeightFormat::kBF16) {
        kernels_.bf16_to_f32(static_cast<const std::uint16_t*>(params.table->data) + at, cols, out);
      } else {
        std::copy_n(static_cast<const float*>(params.table->data) + at, cols, out);
      }
    }
  });
}

void SimdBackend::rms_norm(ops::Stream&, const ops::RmsNormParams& params) {
  ops::check_params(params);
  const auto* weight = static_cast<const float*>(params.weight->data);
  threads_.parallel_for(params.in.rows, rows_a_chunk(params.in.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.rms_norm(params.in.f32() + t * params.in.row_stride, weight, params.epsilon, params.in.cols,
                        params.out.f32() + t * params.out.row_stride);
    }
  });
}

void SimdBackend::layer_norm(ops::Stream&, const ops::LayerNormParams& params) {
  ops::check_params(params);
  const auto* weight = static_cast<const float*>(params.weight->data);
  const auto* bias = static_cast<const float*>(params.bias->data);
  threads_.parallel_for(params.in.rows, rows_a_chunk(params.in.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.layer_norm(params.in.f32() + t * params.in.row_stride, weight, bias, params.epsilon, params.in.cols,
                          params.out.f32() + t * params.out.row_stride);
    }
  });
}

void SimdBackend::rope(ops::Stream&, const ops::RopeParams& params) {
  ops::check_params(params);
  const std::int64_t half = params.rotary_dim / 2;
  // A sine costs as much as some ten elements.
  const std::int64_t chunk = rows_a_chunk(params.x.cols + 20 * half);
  threads_.parallel_for(params.x.rows, chunk, [&](std::int64_t begin, std::int64_t end) {
    const ScratchPool::Loan loan = scratch_.borrow(2 * half * static_cast<std::int64_t>(sizeof(float)));
    float* cosines = loan.as<float>();
    float* sines = cosines + half;
    for (std::int64_t t = begin; t < end; ++t) {
      const auto position = static_cast<float>(params.positions[static_cast<std::size_t>(t)]);
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = position * params.inverse_frequencies[static_cast<std::size_t>(i)];
        cosines[i] = static_cast<float>(std::cos(angle) * static_cast<double>(params.magnitude));
        sines[i] = static_cast<float>(std::sin(angle) * static_cast<double>(params.magnitude));
      }
      for (std::int64_t h = 0; h < params.heads; ++h) {
        float* head = params.x.f32() + t * params.x.row_stride + h * params.head_dim;
        if (params.style == ops::RopeStyle::kHalf) {
          kernels_.rope_half(head, cosines, sines, half);
          continue;
        }
        for (std::int64_t i = 0; i < half; ++i) {
          const float a = head[2 * i];
          const float b = head[2 * i + 1];
          head[2 * i] = a * cosines[i] - b * sines[i];
          head[2 * i + 1] = a * sines[i] + b * cosines[i];
        }
      }
    }
  });
}

void SimdBackend::swiglu(ops::Stream&, const ops::SwigluParams& params) {
  ops::check_params(params);
  const std::int64_t chunk = rows_a_chunk(4 * params.gate.cols);
  threads_.parallel_for(params.gate.rows, chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.swiglu(params.gate.f32() + t * params.gate.row_stride, params.up.f32() + t * params.up.row_stride,
                      params.gate.cols, params.out.f32() + t * params.out.row_stride);
    }
  });
}

}  // namespace tessera::backends::cpu::simd
