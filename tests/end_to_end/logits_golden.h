// A served model against transformers in FP32: logits at some positions, and greedy continuations
// (tests/goldens/README.md, "smollm2" and "pocket", whose folders hold the same files).
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/models/model.h"
#include "tests/support/compare.h"
#include "tests/support/sequence_runner.h"

namespace tessera::test_support {

struct LogitsStep {
  std::int32_t best = 0;
  double best_logit = 0.0;
  std::int32_t second = 0;
  double second_logit = 0.0;
};

struct GreedyCase {
  std::string name;
  std::vector<std::int32_t> prompt;
  std::vector<LogitsStep> steps;
};

// What compare_greedy() counted.
struct GreedyCounts {
  std::int64_t cases = 0;
  std::int64_t equal = 0;
  std::int64_t excused = 0;
};

class LogitsTest : public testing::Test {
 protected:
  // `weights`: the model's files in the order in which the goldens' digest takes them.
  LogitsTest(std::filesystem::path model_dir, std::vector<std::string> weights, std::filesystem::path goldens)
      : model_dir_(std::move(model_dir)), weights_(std::move(weights)), goldens_(std::move(goldens)) {}

  void load(std::unique_ptr<ops::Backend> backend) {
    backend_ = std::move(backend);
    auto model = models::load_model(model_dir_, *backend_);
    ASSERT_TRUE(model.has_value()) << model.error().to_string();
    model_ = std::move(*model);
  }
  void load_reference() { load(backends::cpu::make_reference_backend()); }
  void load_simd() {
    auto backend = backends::cpu::make_simd_backend({});
    ASSERT_TRUE(backend.has_value()) << backend.error().to_string();
    load(std::move(*backend));
  }

  // Goldens and weights that differ do not belong together; every other failure here would only be a riddle.
  void compare_digest() const {
    std::string bytes;
    for (const std::string& name : weights_) bytes += read(model_dir_ / name);
    std::array<unsigned char, 32> sha{};
    ASSERT_EQ(EVP_Digest(bytes.data(), bytes.size(), sha.data(), nullptr, EVP_sha256(), nullptr), 1);
    std::string hex;
    for (const unsigned char byte : sha) hex += fmt::format("{:02x}", byte);
    EXPECT_EQ(hex, boost::json::parse(read(goldens_ / "logits.json")).at("model_sha256").as_string());
  }

  // Compares every golden row; the worst error is printed.
  void compare_logits(ops::KvFormat kv_format, double error_max) {
    const boost::json::value head = boost::json::parse(read(goldens_ / "logits.json"));
    const std::string bytes = read(goldens_ / "logits.f32");
    const std::size_t vocab = head.at("vocab_size").to_number<std::size_t>();
    ASSERT_EQ(model_->config().vocab_size, static_cast<std::int64_t>(vocab));
    std::vector<float> golden(bytes.size() / sizeof(float));
    std::memcpy(golden.data(), bytes.data(), golden.size() * sizeof(float));
    ASSERT_EQ(golden.size(), vocab * head.at("rows").to_number<std::size_t>());

    std::size_t row = 0;
    double worst = 0.0;
    for (const boost::json::value& c : head.at("cases").as_array()) {
      const std::vector<std::int32_t> tokens = integers(c.at("token_ids"));
      SequenceRunner runner(
          *model_, *backend_,
          RunnerOptions{.kv_format = kv_format, .tokens_max = std::ssize(tokens), .context_max = std::ssize(tokens)});
      std::size_t done = 0;
      // A step up to each golden position: its logits are those of the step's last token.
      for (const std::int32_t position : integers(c.at("positions"))) {
        const std::size_t count = static_cast<std::size_t>(position) + 1 - done;
        const std::vector<float> logits =
            runner.step(std::span(tokens).subspan(done, count), WantedLogits::kLastOfEachRow);
        done += count;
        const double error =
            relative_error(std::span<const float>(logits), std::span<const float>(golden).subspan(row * vocab, vocab));
        EXPECT_LT(error, error_max) << c.at("name") << " position " << position;
        worst = std::max(worst, error);
        ++row;
      }
    }
    EXPECT_EQ(row * vocab, golden.size());
    fmt::print("{} backend, {} KV: {} positions, worst relative error {:.2e} (allowed {:.0e})\n", backend_->name(),
               ops::kv_format_name(kv_format), row, worst, error_max);
  }

  // All prompts side by side; each step is fed transformers' own best token, so that one difference does not hide those
  // behind it. A different choice is excused only where transformers' two best logits are closer than the error that is
  // allowed here, `error_max` of the logits' root mean square.
  GreedyCounts compare_greedy(ops::KvFormat kv_format, double error_max) {
    const std::vector<GreedyCase> cases = greedy_cases();
    GreedyCounts counts{.cases = std::ssize(cases)};
    std::int64_t longest = 0, steps_max = 0, tokens = 0, steps = 0, excusable = 0;
    for (const GreedyCase& c : cases) {
      longest = std::max(longest, std::ssize(c.prompt));
      steps_max = std::max(steps_max, std::ssize(c.steps));
      tokens += std::ssize(c.prompt);
      steps += std::ssize(c.steps);
    }
    SequenceRunner runner(*model_, *backend_,
                          RunnerOptions{.kv_format = kv_format,
                                        .rows = std::ssize(cases),
                                        .tokens_max = std::max(longest, std::ssize(cases)),
                                        .context_max = longest + steps_max});
    const std::size_t vocab = static_cast<std::size_t>(model_->config().vocab_size);
    double difference_square = 0.0, logit_square = 0.0;
    std::vector<std::vector<float>> logits(cases.size());
    for (std::size_t r = 0; r < cases.size(); ++r) {
      logits[r] = runner.step(cases[r].prompt, WantedLogits::kLastOfEachRow, static_cast<std::int64_t>(r));
    }
    for (std::size_t s = 0; std::ssize(cases) > 0 && s < static_cast<std::size_t>(steps_max); ++s) {
      std::vector<std::size_t> going_on;
      going_on.reserve(cases.size());
      for (std::size_t r = 0; r < cases.size(); ++r) {
        if (s >= cases[r].steps.size()) continue;
        const LogitsStep& golden = cases[r].steps[s];
        const std::vector<float>& row = logits[r];
        const std::int64_t chosen = std::max_element(row.begin(), row.end()) - row.begin();
        const double margin = golden.best_logit - golden.second_logit;
        const double allowed = error_max * root_mean_square(row);
        excusable += margin <= allowed ? 1 : 0;
        if (chosen == golden.best) {
          ++counts.equal;
        } else if (margin <= allowed) {
          ++counts.excused;
          fmt::print("excused: {} step {}: {} instead of {}, margin {:.4f} within {:.4f}\n", cases[r].name, s, chosen,
                     golden.best, margin, allowed);
        } else {
          ADD_FAILURE() << cases[r].name << " step " << s << ": " << chosen << " instead of " << golden.best
                        << ", margin " << margin << ", allowed " << allowed;
        }
        for (const auto& [id, expected] :
             {std::pair{golden.best, golden.best_logit}, {golden.second, golden.second_logit}}) {
          const double difference = static_cast<double>(row[static_cast<std::size_t>(id)]) - expected;
          difference_square += difference * difference;
          logit_square += expected * expected;
        }
        if (s + 1 < cases[r].steps.size()) going_on.push_back(r);
      }
      if (going_on.empty()) break;
      std::vector<RunnerRow> rows;
      rows.reserve(going_on.size());
      for (const std::size_t r : going_on) {
        rows.push_back(
            {static_cast<std::int64_t>(r), std::span(&cases[r].steps[s].best, 1), models::RowPhase::kGenerated});
      }
      const std::vector<float> all = runner.step(rows, WantedLogits::kLastOfEachRow);
      for (std::size_t i = 0; i < going_on.size(); ++i) {
        logits[going_on[i]].assign(all.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                                   all.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
      }
    }
    const double error = std::sqrt(difference_square / logit_square);
    fmt::print(
        "greedy on the {} backend, {} KV: {} prompts ({} tokens), {} steps: {} equal to transformers FP32, {} excused "
        "({} were within the allowed error), relative error of the two best logits {:.2e}\n",
        backend_->name(), ops::kv_format_name(kv_format), cases.size(), tokens, steps, counts.equal, counts.excused,
        excusable, error);
    EXPECT_LT(error, error_max);
    EXPECT_EQ(counts.equal + counts.excused, steps);
    return counts;
  }

  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::filesystem::path model_dir_;
  const std::vector<std::string> weights_;
  const std::filesystem::path goldens_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<models::Model> model_;

 private:
  static std::vector<std::int32_t> integers(const boost::json::value& list) {
    std::vector<std::int32_t> out;
    for (const boost::json::value& item : list.as_array()) out.push_back(item.to_number<std::int32_t>());
    return out;
  }
  static double root_mean_square(std::span<const float> values) {
    double sum = 0.0;
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(sum / static_cast<double>(values.size()));
  }
  std::vector<GreedyCase> greedy_cases() const {
    std::vector<GreedyCase> cases;
    std::ifstream file(goldens_ / "greedy.jsonl");
    for (std::string line; std::getline(file, line);) {
      const boost::json::value root = boost::json::parse(line);
      GreedyCase c{root.at("name").as_string().c_str(), integers(root.at("token_ids")), {}};
      for (const boost::json::value& step : root.at("steps").as_array()) {
        c.steps.push_back({step.at(0).to_number<std::int32_t>(), step.at(1).to_number<double>(),
                           step.at(2).to_number<std::int32_t>(), step.at(3).to_number<double>()});
      }
      cases.push_back(std::move(c));
    }
    return cases;
  }
};

}  // namespace tessera::test_support
