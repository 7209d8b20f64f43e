// For tests: the golden files of tests/goldens, which are described there.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/text/tokenizer.h"

namespace tessera::text {

inline std::filesystem::path goldens_dir() { return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests" / "goldens"; }

// The text of a file, unpacked if it is packed with gzip.
inline std::string golden_text(const std::string& name) {
  const gzFile file = gzopen((goldens_dir() / name).c_str(), "rb");
  EXPECT_NE(file, nullptr) << name;
  std::string text;
  std::array<char, 65536> buffer{};
  while (file != nullptr) {
    const int bytes = gzread(file, buffer.data(), buffer.size());
    EXPECT_GE(bytes, 0) << name;
    if (bytes <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  if (file != nullptr) gzclose(file);
  return text;
}

// One object a line.
inline std::vector<boost::json::object> golden_lines(const std::string& name) {
  std::istringstream text(golden_text(name));
  std::vector<boost::json::object> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(boost::json::parse(line).as_object());
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

inline std::string golden_string(const boost::json::object& line, const char* name) {
  return std::string(line.at(name).as_string());
}

inline std::vector<TokenId> golden_ids(const boost::json::object& line, const char* name) {
  std::vector<TokenId> ids;
  for (const boost::json::value& id : line.at(name).as_array()) ids.push_back(static_cast<TokenId>(id.as_int64()));
  return ids;
}

// The real SmolLM2, loaded once.
inline const Tokenizer& smollm2() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::load(goldens_dir() / "tokenizer" / "smollm2");
    if (!loaded.has_value()) {
      ADD_FAILURE() << loaded.error().to_string();
      std::abort();
    }
    return std::move(*loaded);
  }();
  return *tokenizer;
}

}  // namespace tessera::text
