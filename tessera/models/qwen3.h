// Qwen3ForCausalLM: Yang et al. 2025, arXiv:2505.09388. Llama with an RMS norm of every head of q and k.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

extern const FamilyEntry kQwen3Family;

}  // namespace tessera::models
