#include "tessera/sampling/token_sampler.h"

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::sampling {

namespace {

std::int64_t token_bytes(const SamplerLimits& limits) {
  return base::round_up(limits.rows_max * static_cast<std::int64_t>(sizeof(ops::SampledToken)), 256);
}
std::int64_t top_bytes(const SamplerLimits& limits) {
  return base::round_up(limits.rows_max * limits.top_logprobs_max * 4, 256);
}

}  // namespace

std::int64_t TokenSampler::device_bytes(const SamplerLimits& limits) {
  return token_bytes(limits) + 2 * top_bytes(limits);
}

base::Result<std::unique_ptr<TokenSampler>> TokenSampler::create(ops::Backend& backend, const SamplerLimits& limits) {
  TESSERA_CHECK(limits.rows_max > 0 && limits.top_logprobs_max >= 0);
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer storage, backend.allocate(device_bytes(limits), "sampled tokens"));
  return std::unique_ptr<TokenSampler>(new TokenSampler(backend, limits, std::move(storage)));
}

TokenSampler::TokenSampler(ops::Backend& backend, const SamplerLimits& limits, ops::Buffer storage)
    : backend_(backend), limits_(limits), storage_(std::move(storage)) {}

ops::SampledToken* TokenSampler::device_tokens() const { return storage_.as<ops::SampledToken>(); }
std::int32_t* TokenSampler::device_top_ids() const {
  return reinterpret_cast<std::int32_t*>(storage_.data() + token_bytes(limits_));
}
float* TokenSampler::device_top_logprobs() const {
  return reinterpret_cast<float*>(storage_.data() + token_bytes(limits_) + top_bytes(limits_));
}

void TokenSampler::enqueue(ops::Stream& stream, ops::ConstMatrix logits, std::span<const ops::SampleRow> rows) {
  TESSERA_CHECK(std::ssize(rows) <= limits_.rows_max && logits.rows == std::ssize(rows));
  rows_.assign(rows.begin(), rows.end());
  top_width_ = 0;
  for (const ops::SampleRow& row : rows_) top_width_ = std::max(top_width_, row.top_logprobs);
  TESSERA_CHECK(top_width_ <= limits_.top_logprobs_max);
  if (rows_.empty()) return;
  ops::SampleTokensParams params;
  params.logits = logits;
  params.rows = rows_;
  params.top_width = top_width_;
  params.out = device_tokens();
  params.top_ids = device_top_ids();
  params.top_logprobs = device_top_logprobs();
  backend_.sample_tokens(stream, params);
}

void TokenSampler::enqueue_read(ops::Stream& stream) {
  const std::size_t count = rows_.size();
  tokens_.resize(count);
  top_ids_.resize(count * static_cast<std::size_t>(top_width_));
  top_logprobs_.resize(top_ids_.size());
  if (count == 0) return;
  backend_.copy_to_host(stream, tokens_.data(), device_tokens(),
                        static_cast<std::int64_t>(count * sizeof(ops::SampledToken)));
  if (top_ids_.empty()) return;
  const auto bytes = static_cast<std::int64_t>(top_ids_.size() * sizeof(float));
  backend_.copy_to_host(stream, top_ids_.data(), device_top_ids(), bytes);
  backend_.copy_to_host(stream, top_logprobs_.data(), device_top_logprobs(), bytes);
}

std::vector<TopToken> TokenSampler::top(std::int64_t row) const {
  std::vector<TopToken> top;
  const std::int32_t wanted = rows_[static_cast<std::size_t>(row)].top_logprobs;
  const std::int64_t first = row * top_width_;
  for (std::int64_t i = first; i < first + wanted; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (top_ids_[at] >= 0) top.push_back({top_ids_[at], top_logprobs_[at]});
  }
  return top;
}

}  // namespace tessera::sampling
