// The command line of `tessera evaluate`.
#pragma once

#include "evaluate.h"

namespace tessera::app {

// Adds the command and its flags.
void add_evaluate(CLI::App& app, EvaluateOptions& options);

}  // namespace tessera::app
