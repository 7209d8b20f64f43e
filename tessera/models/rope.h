// Rotary frequencies: Su et al. 2021, arXiv:2104.09864; YaRN: Peng et al. 2023, arXiv:2309.00071.
//
// Every step is rounded to F32, as the implementation rounds that the models were trained and are evaluated with: at
// positions in the thousands, a frequency that is one unit in the last place better turns queries by another angle.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/models/config.h"

namespace tessera::models {

// inverse_frequencies[i] = 1 / theta^(2i / rotary_dim), i < rotary_dim / 2. With YaRN, frequencies that turn more than
// beta_fast times in original_max_position_embeddings stay, those that turn less than beta_slow times are divided by
// factor, and those between are interpolated linearly in i.
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t rotary_dim);

// 0.1 * mscale * ln(factor) + 1, and 1 where factor <= 1.
double yarn_mscale(double factor, double mscale);

// What rotated queries and keys are multiplied with.
float rope_magnitude(const RopeConfig& rope);

}  // namespace tessera::models
