// KimiK25ForConditionalGeneration (Kimi K2.5, K2.6): the text model of the checkpoint, a DeepSeek-V3 under the prefix
// "language_model.", its fields in `text_config`. The vision tower and its projector are skipped.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

extern const FamilyEntry kKimiK25Family;

}  // namespace tessera::models
