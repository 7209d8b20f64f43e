// `tessera bench`: hands over to a program of its own, tessera_bench, which lies beside this one. What it does (running
// without checks, to measure them) is not in a server's executable.
#pragma once

#include <span>
#include <string>

#include "tessera/base/status.h"

namespace tessera::app {

// Becomes tessera_bench with these arguments. Returns only when it cannot: not_found when there is no such program.
base::Status run_bench(std::span<const std::string> arguments);

}  // namespace tessera::app
