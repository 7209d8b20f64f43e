// `tessera inspect DIR`: what is in a checkpoint, and whether it is sound.
#pragma once

#include <filesystem>

#include "tessera/base/status.h"

namespace tessera::app {

struct InspectOptions {
  std::filesystem::path dir;
  bool list_tensors = false;
  bool json = false;
};

// Prints to standard output. An error names what is wrong with the checkpoint: the first thing for which `serve` would
// refuse it. Only a folder without tokenizer.json, which cannot be served, may still be sound.
base::Status run_inspect(const InspectOptions& options);

}  // namespace tessera::app
