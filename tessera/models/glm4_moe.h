// Glm4MoeForCausalLM (GLM-4.5, 4.6, 4.7 and the Air models): GLM-4.5 Team 2025, arXiv:2508.06471. Grouped-query
// attention with biases of q, k and v, of whose heads the first half is rotated, and norms of q and k in the larger
// models; leading dense layers, then mixtures of experts with a shared one.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

extern const FamilyEntry kGlm4MoeFamily;

}  // namespace tessera::models
