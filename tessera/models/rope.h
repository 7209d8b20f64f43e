// Rotary frequencies. Su et al. 2021, arXiv:2104.09864.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::models {

// inverse_frequencies[i] = theta^(-2i / rotary_dim), i < rotary_dim / 2, each rounded once to F32.
std::vector<float> rope_inverse_frequencies(double theta, std::int64_t rotary_dim);

}  // namespace tessera::models
