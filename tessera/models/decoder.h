// The model that all families are: an embedding, pre-norm layers of an attention block and a feed-forward block, a norm
// and a head. What the blocks are, the family's tensors say. Written in ops; no backend is named.
#pragma once

#include <memory>

#include "tessera/base/status.h"
#include "tessera/models/family.h"

namespace tessera::models {

// `loaded` holds the weights that `tensors` lists. Fails only where memory for the rotary frequencies cannot be had.
base::Result<std::unique_ptr<Model>> make_decoder(LoadedModel loaded, DecoderTensors tensors);

}  // namespace tessera::models
