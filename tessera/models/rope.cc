#include "tessera/models/rope.h"

#include <cmath>

namespace tessera::models {

std::vector<float> rope_inverse_frequencies(double theta, std::int64_t rotary_dim) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < rotary_dim; i += 2) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(rotary_dim);
    frequencies.push_back(static_cast<float>(std::pow(theta, exponent)));
  }
  return frequencies;
}

}  // namespace tessera::models
