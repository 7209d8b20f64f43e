// Qwen2ForCausalLM (Qwen2, Qwen2.5): Yang et al. 2024, arXiv:2407.10671. Llama with biases of q, k and v. Sliding
// windows, which no released text model of the family turns on, are refused.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

extern const FamilyEntry kQwen2Family;

}  // namespace tessera::models
