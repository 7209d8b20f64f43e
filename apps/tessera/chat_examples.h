// What a model folder suggests to whoever begins to chat with the model (docs/checkpoints.md).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::app {

// The prompts in `dir`/examples.txt, in order, none where there is no such file. Prompts are separated by empty lines
// and may have several lines themselves; lines that begin with '#' are comments. Refused, naming the file: more than 16
// KiB, text that is not UTF-8, more than nine prompts.
base::Result<std::vector<std::string>> read_chat_examples(const std::filesystem::path& dir);

}  // namespace tessera::app
