// From logits to token ids (ops/sample.h), one block a row.
//
// Weights are computed in double and then held as integers, in units of 2^-52 of the largest: their sums are exact, so
// no result depends on the order in which threads add, and cumulative sums are compared with the random number exactly.
// Weights below 2^-53 of the largest count as zero.
#pragma once

#include <cstdint>

#include "tessera/backends/cuda/launch.h"
#include "tessera/ops/sample.h"

namespace tessera::backends::cuda {

// The vocabularies whose sums of weights, times a random number's 53 bits, fit 128 bits.
inline constexpr std::int64_t kSampleVocabularyMax = std::int64_t{1} << 21;

struct SampleKernel {
  const float* logits = nullptr;  // [num_rows, vocab]
  std::int64_t logits_stride = 0;
  std::int64_t vocab = 0;
  const ops::SampleRow* rows = nullptr;  // Device memory.
  std::int64_t num_rows = 0;
  std::int32_t top_width = 0;
  ops::SampledToken* out = nullptr;
  std::int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
};
void launch_sample_tokens(const SampleKernel& kernel, const Launch& launch);

}  // namespace tessera::backends::cuda
