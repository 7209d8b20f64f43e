// For tests: tests/goldens/quality/statistics.json (tools/oracles/make_statistics_goldens.py).
#pragma once

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::quality {

inline const boost::json::value& golden(std::string_view name) {
  static const boost::json::value all = [] {
    std::ifstream file(TESSERA_SOURCE_DIR "/tests/goldens/quality/statistics.json");
    return boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  }();
  return all.at(name);
}

template <typename T = double>
std::vector<T> golden_numbers(const boost::json::value& values) {
  std::vector<T> result;
  result.reserve(values.as_array().size());
  for (const boost::json::value& value : values.as_array()) result.push_back(static_cast<T>(value.to_number<double>()));
  return result;
}

}  // namespace tessera::quality
