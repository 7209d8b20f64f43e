// What transformers computed on the tiny checkpoints (tests/goldens/README.md, "tiny").
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::test_support {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<std::int32_t> integers(const boost::json::value& list) {
  std::vector<std::int32_t> out;
  for (const boost::json::value& item : list.as_array()) out.push_back(item.to_number<std::int32_t>());
  return out;
}

struct GoldenStep {
  std::int32_t best = 0;
  double best_logit = 0.0;
};

struct Golden {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> positions;  // Of the prompt, ascending; the last token's is among them.
  std::vector<float> logits;            // [positions, vocab]
  std::vector<GoldenStep> steps;
  // By layer: rows of the prompt, and the experts that each of them takes.
  std::vector<std::int32_t> expert_rows;
  std::map<int, std::vector<std::vector<std::int32_t>>> experts;
  // By layer and query: the positions that sparse attention may see.
  std::map<int, std::map<std::int32_t, std::vector<std::int32_t>>> selected;

  std::span<const float> row(std::size_t i) const {
    const std::size_t vocab = logits.size() / positions.size();
    return std::span(logits).subspan(i * vocab, vocab);
  }
};

// Of the tiny checkpoint whose folder it is.
inline Golden read_golden(const std::filesystem::path& folder) {
  const boost::json::value root = boost::json::parse(read_file(folder / "goldens.json"));
  const boost::json::object& object = root.as_object();
  Golden g;
  g.prompt = integers(root.at("token_ids"));
  g.positions = integers(root.at("positions"));
  const std::string bytes = read_file(folder / "logits.f32");
  g.logits.resize(bytes.size() / sizeof(float));
  std::memcpy(g.logits.data(), bytes.data(), bytes.size());
  EXPECT_EQ(std::ssize(g.logits), std::ssize(g.positions) * root.at("vocab_size").to_number<std::int64_t>());
  for (const boost::json::value& step : root.at("steps").as_array()) {
    g.steps.push_back({step.at(0).to_number<std::int32_t>(), step.at(1).to_number<double>()});
  }
  if (object.contains("experts")) {
    g.expert_rows = integers(root.at("expert_rows"));
    for (const auto& [layer, rows] : root.at("experts").as_object()) {
      for (const boost::json::value& row : rows.as_array())
        g.experts[std::stoi(std::string(layer))].push_back(integers(row));
    }
  }
  for (const char* field : {"selected", "left_out"}) {
    if (!object.contains(field)) continue;
    for (const auto& [layer, queries] : root.at(field).as_object()) {
      for (const auto& [key, list] : queries.as_object()) {
        const std::int32_t query = std::stoi(std::string(key));
        std::vector<std::int32_t> positions = integers(list);
        if (std::string_view(field) == "left_out") {
          const std::set<std::int32_t> left_out(positions.begin(), positions.end());
          positions.clear();
          for (std::int32_t p = 0; p <= query; ++p) {
            if (!left_out.contains(p)) positions.push_back(p);
          }
        }
        g.selected[std::stoi(std::string(layer))][query] = std::move(positions);
      }
    }
  }
  return g;
}

}  // namespace tessera::test_support
