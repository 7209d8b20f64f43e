// GlmMoeDsaForCausalLM (GLM-5, 5.1, 5.2). Latent attention over the index_topk tokens that an indexer selects; layers
// without an indexer of their own take the selection of the nearest one before them. Leading dense layers, then
// mixtures of experts.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

extern const FamilyEntry kGlmMoeDsaFamily;

}  // namespace tessera::models
