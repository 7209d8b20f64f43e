// For tests: the configurations of configs/ and small ones made of text.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tessera/models/config.h"
#include "tessera/planner/model_facts.h"
#include "tessera/weights/mapped_file.h"

namespace tessera::planner {

inline models::ModelConfig config_of(std::string_view json) {
  auto config = models::parse_config(json);
  if (!config.has_value()) throw std::runtime_error(config.error().to_string());
  return *std::move(config);
}

// A file of configs/, with `from` replaced by `to` where one is named.
inline std::string config_text(std::string_view file, std::string_view from = {}, std::string_view to = {}) {
  const auto path = std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / file;
  auto text = weights::read_text_file(path, 1 << 20);
  if (!text.has_value()) throw std::runtime_error(text.error().to_string());
  if (!from.empty()) {
    const std::size_t place = text->find(from);
    if (place == std::string::npos) throw std::runtime_error("nothing to replace");
    text->replace(place, from.size(), to);
  }
  return *std::move(text);
}

inline models::ModelConfig full_config(std::string_view file) { return config_of(config_text(file)); }

inline ModelFacts full_facts(std::string_view file) { return facts_of(full_config(file)).value(); }

// A ratio's distance from 1.
inline double off_by(double value, double expected) { return std::abs(value / expected - 1.0); }

}  // namespace tessera::planner
