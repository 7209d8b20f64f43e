// Logging: spdlog, to standard error, one line an event, no request content ever. Use as
// `base::log().info("engine {}: {} pages", name, pages)`.
#pragma once

#include <spdlog/spdlog.h>

#include <memory>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::base {

// The process's logger. Thread-safe.
spdlog::logger& log();

// Level by name: "debug", "info", "warning", "error", "off".
Status set_log_level(std::string_view name);

}  // namespace tessera::base
