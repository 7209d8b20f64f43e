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

// Prints to standard output. An error names what is wrong with the checkpoint.
base::Status run_inspect(const InspectOptions& options);

}  // namespace tessera::app
