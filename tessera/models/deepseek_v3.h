// DeepseekV3ForCausalLM (DeepSeek-V3 and R1, Kimi K2 and K2-Thinking): DeepSeek-AI 2024, arXiv:2412.19437. Latent
// attention with or without a query latent, YaRN, leading dense layers, then mixtures of experts chosen in groups.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

extern const FamilyEntry kDeepseekV3Family;

// What the family reads, for families that hold such a model inside.
base::Status read_deepseek_v3_fields(const ConfigFields& fields, ModelConfig& config);

}  // namespace tessera::models
