// Ops at the sizes of a real model (SmolLM2's), for comparisons between backends: the cases of the ops' own files are
// small and odd.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {

inline constexpr std::int64_t kHidden = 576;
inline constexpr std::int64_t kIntermediate = 1536;

HostMatrix linear(Device& device, const HostMatrix& in, const HostMatrix& weight_values, ops::WeightFormat format);
HostMatrix rms_norm(Device& device, const HostMatrix& in, const HostMatrix& weight_values);
// Prompts of several lengths are written and attended to: one in the middle of its prefill, the others decoding.
HostMatrix attention(Device& device, ops::KvFormat format, std::uint64_t seed);

struct Sampled {
  std::vector<std::int32_t> tokens;
  std::vector<float> logprobs;
};
Sampled sample(Device& device, const HostMatrix& logits, const std::vector<ops::SampleRow>& rows);
// Greedy rows and random ones, restricted and not.
std::vector<ops::SampleRow> sample_rows(Random& random, std::int64_t count);

}  // namespace tessera::conformance
