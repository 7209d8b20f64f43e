// The families that chat_format.cc chooses from. To add one: a file chat_<family>.cc, a function here, an entry in
// chat_format.cc's list, and goldens of the family's own template (tools/oracles/make_chat_goldens.py).
#pragma once

#include <memory>
#include <string>

#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

// What a checkpoint says about itself.
struct ChatCheckpoint {
  const Tokenizer& tokenizer;
  std::string model_type;     // Of config.json.
  std::string chat_template;  // Empty if it has none, as base models do not.
};

// Each returns nullptr if the checkpoint is not of its family.
std::unique_ptr<const ChatFormat> smollm2_chat_format(const ChatCheckpoint& checkpoint);

}  // namespace tessera::text
