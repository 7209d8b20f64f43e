// LlamaForCausalLM (Llama 2 and 3 without rope scaling, SmolLM2, ...): Touvron et al. 2023, arXiv:2302.13971. Pre-norm
// layers of grouped-query attention with half-rotary embedding and a SwiGLU block, no biases, head tied or not.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

extern const FamilyEntry kLlamaFamily;

}  // namespace tessera::models
