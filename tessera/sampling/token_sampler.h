// Draws the tokens of a step: owns the sampling op's output buffers, sized once. Used from the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/backend.h"

namespace tessera::sampling {

struct TopToken {
  std::int32_t token = 0;
  float logprob = 0.0f;
};

struct SamplerLimits {
  std::int64_t rows_max = 0;
  std::int32_t top_logprobs_max = 0;
};

class TokenSampler {
 public:
  static base::Result<std::unique_ptr<TokenSampler>> create(ops::Backend& backend, const SamplerLimits& limits);
  // What create allocates on the device.
  static std::int64_t device_bytes(const SamplerLimits& limits);

  // Enqueues the drawing of one token for each row of logits [rows, vocab]. More rows or top_logprobs than the limits
  // are a programmer's error.
  void enqueue(ops::Stream& stream, ops::ConstMatrix logits, std::span<const ops::SampleRow> rows);
  // Enqueues the copies to the host. The results below are valid once the stream has been synchronized, until the next
  // enqueue.
  void enqueue_read(ops::Stream& stream);
  const ops::SampledToken& token(std::int64_t row) const { return tokens_[static_cast<std::size_t>(row)]; }
  // As many as the row asked for (fewer in a vocabulary that is smaller), best first.
  std::vector<TopToken> top(std::int64_t row) const;

 private:
  TokenSampler(ops::Backend& backend, const SamplerLimits& limits, ops::Buffer storage);
  ops::SampledToken* device_tokens() const;
  std::int32_t* device_top_ids() const;
  float* device_top_logprobs() const;

  ops::Backend& backend_;
  const SamplerLimits limits_;
  ops::Buffer storage_;
  std::vector<ops::SampleRow> rows_;  // The op reads them until the stream has run it.
  std::int32_t top_width_ = 0;        // Of the last enqueue.
  std::vector<ops::SampledToken> tokens_;
  std::vector<std::int32_t> top_ids_;
  std::vector<float> top_logprobs_;
};

}  // namespace tessera::sampling
