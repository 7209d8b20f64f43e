#include "tessera/base/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <string>

namespace tessera::base {

spdlog::logger& log() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    auto made = std::make_shared<spdlog::logger>("tessera", std::move(sink));
    made->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

Status set_log_level(std::string_view name) {
  for (const auto& [known, level] :
       {std::pair<std::string_view, spdlog::level::level_enum>{"debug", spdlog::level::debug},
        {"info", spdlog::level::info},
        {"warning", spdlog::level::warn},
        {"error", spdlog::level::err},
        {"off", spdlog::level::off}}) {
    if (known == name) {
      log().set_level(level);
      return ok_status();
    }
  }
  return invalid_argument("log level '" + std::string(name) + "': expected debug, info, warning, error or off");
}

}  // namespace tessera::base
