#include "tessera/models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::models {

namespace {

// The (fractional) index of the frequency that turns `rotations` times in the original context.
double correction_index(const RopeConfig& rope, double rotations, std::int64_t rotary_dim) {
  const double context = static_cast<double>(rope.yarn->original_max_position_embeddings);
  return static_cast<double>(rotary_dim) * std::log(context / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.rope_theta));
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t rotary_dim) {
  std::vector<float> frequencies;
  const float theta = static_cast<float>(rope.rope_theta);
  float low = 0.0f, width = 1.0f, factor = 1.0f;
  if (rope.yarn.has_value()) {
    const double first = std::max(std::floor(correction_index(rope, rope.yarn->beta_fast, rotary_dim)), 0.0);
    const double last = std::min(std::ceil(correction_index(rope, rope.yarn->beta_slow, rotary_dim)),
                                 static_cast<double>(rotary_dim - 1));
    low = static_cast<float>(first);
    width = static_cast<float>(first == last ? 0.001 : last - first);
    factor = static_cast<float>(rope.yarn->factor);
  }
  for (std::int64_t i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    // The power correctly rounded to F32, nearly always what a good powf gives.
    const float power = static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
    const float unscaled = 1.0f / power;
    if (!rope.yarn.has_value()) {
      frequencies.push_back(unscaled);
      continue;
    }
    const float scaled_power = factor * power;
    const float scaled = 1.0f / scaled_power;
    const std::int64_t pair = i / 2;
    const float ramp = std::clamp((static_cast<float>(pair) - low) / width, 0.0f, 1.0f);
    const float kept = 1.0f - ramp;
    const float scaled_share = scaled * (1.0f - kept);
    const float kept_share = unscaled * kept;
    frequencies.push_back(scaled_share + kept_share);
  }
  return frequencies;
}

double yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

float rope_magnitude(const RopeConfig& rope) {
  return rope.yarn.has_value() ? static_cast<float>(rope.yarn->attention_factor) : 1.0f;
}

}  // namespace tessera::models
