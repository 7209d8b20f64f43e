// From logits to token ids (op sample_tokens).
//
// For each row: log-probabilities are log softmax of the raw logits. temperature 0 takes the largest logit, the lowest
// id among equals. Otherwise weights are exp((logit - largest) / temperature), restricted to the top_k largest (0, or
// the vocabulary's size and more: all), then to the shortest non-empty prefix, in the order (logit descending, id
// ascending), whose sum reaches top_p of their total (top_p >= 1: all). The token is the first one, walking in that
// order (in the order of ids when neither restricts), at which the cumulative sum exceeds uniform(seed, position) times
// the kept weights' total; all in double. So a row's token depends only on its logits, its parameters, its seed and its
// position.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/base/arithmetic.h"
#include "tessera/ops/buffer.h"

namespace tessera::ops {

// In [0, 1): the random number of one position of one sequence. Every backend uses this function.
constexpr double sampling_uniform(std::uint64_t seed, std::uint64_t position) {
  return static_cast<double>(base::mix64(seed + base::kMix64Step * (position + 1)) >> 11) * 0x1.0p-53;
}

struct SampleRow {
  float temperature = 0.0f;
  float top_p = 1.0f;
  std::int32_t top_k = 0;
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  // Index in its sequence of the token being sampled.
  std::int32_t forced_token =
      -1;  // >= 0: this token is taken whatever the logits (replay); its logprob is still reported.
  std::int32_t top_logprobs = 0;  // How many best alternatives to report, at most SampleTokensParams::top_width.
};

struct SampledToken {
  // -1: the row's logits held NaN, +infinity or no finite value (-infinity is a mask); an error of that sequence, also
  // where a token is forced.
  std::int32_t token = -1;
  float logprob = 0.0f;
};

struct SampleTokensParams {
  ConstMatrix logits;               // [rows, vocab], F32
  std::span<const SampleRow> rows;  // host, [rows]
  std::int32_t top_width = 0;
  SampledToken* out = nullptr;  // [rows]
  std::int32_t* top_ids =
      nullptr;  // [rows, top_width]: by logit descending, id ascending; -1 past a row's top_logprobs or the vocabulary.
  float* top_logprobs = nullptr;  // [rows, top_width]; 0 where the id is -1.
};

}  // namespace tessera::ops
