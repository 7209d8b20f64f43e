// What a split pair of real engines answers against one unified engine, on a real model: SmolLM2 through prefill
// engine, handoff with conversion to FP8 and decode engine, against BF16 pages throughout, over the same tokens. The
// printed line is quoted in the README. What the format alone costs, without engines, is precision_test's.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/engine/engine.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/models/model.h"

namespace tessera {
namespace {

using request::EngineRole;

constexpr int kAlternatives = 20;

struct Question {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> forced;  // Of transformers' greedy continuation, in FP32.
};

// Each prompt of the goldens, continued by few, some and many of its tokens.
std::vector<Question> read_questions() {
  std::vector<Question> questions;
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/goldens/smollm2/greedy.jsonl");
  for (std::string line; std::getline(file, line);) {
    const boost::json::value value = boost::json::parse(line);
    Question question;
    for (const auto& id : value.at("token_ids").as_array()) question.prompt.push_back(id.to_number<std::int32_t>());
    const auto& steps = value.at("steps").as_array();
    for (const std::size_t count : {1, 8, 24, 56}) {
      question.forced.clear();
      for (std::size_t i = 0; i < count; ++i) question.forced.push_back(steps.at(i).at(0).to_number<std::int32_t>());
      questions.push_back(question);
    }
  }
  return questions;
}

// The engines of one server, turned by hand: it says how each question goes on.
class Pools {
 public:
  enum class Kind : std::uint8_t { kUnified, kSplit };

  Pools(Kind kind, const models::Model& model, ops::Backend& backend) : transport_(kv_transfer::LoopbackOptions{}) {
    const auto add = [&](EngineRole role, ops::KvFormat format) {
      engine::EngineConfig config;
      config.id = static_cast<request::EngineId>(engines_.size());
      config.role = role;
      config.kv_format = format;
      config.page_size = 16;
      config.pages = 512;
      std::unique_ptr<kv_transfer::Endpoint> endpoint;
      if (role != EngineRole::kUnified) endpoint = transport_.make_endpoint(static_cast<std::uint32_t>(config.id));
      auto made = engine::Engine::create(config, {model, backend, events_, clock_, std::move(endpoint)});
      EXPECT_TRUE(made.has_value()) << made.error().message();
      engines_.push_back(std::move(*made));
    };
    add(kind == Kind::kUnified ? EngineRole::kUnified : EngineRole::kPrefill, ops::KvFormat::kBF16);
    if (kind == Kind::kSplit) add(EngineRole::kDecode, ops::KvFormat::kF8E4M3);
  }

  // The token after the forced ones, with the best alternatives, of every question.
  std::vector<request::TokenEvent> ask(const std::vector<Question>& questions) {
    std::map<request::SequenceId, request::TokenEvent> answers;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      request::StartSequence start;
      start.spec.id = i + 1;
      start.spec.tenant = "test";
      start.spec.prompt = questions[i].prompt;
      start.spec.sampling.temperature = 0.0f;
      start.spec.sampling.max_tokens = static_cast<std::int32_t>(questions[i].forced.size()) + 1;
      start.spec.sampling.logprobs = true;
      start.spec.sampling.top_logprobs = kAlternatives;
      start.generated = questions[i].forced;
      start.decode_engine = 1;
      EXPECT_TRUE(engines_[0]->try_send(std::move(start)));
    }
    std::size_t ended = 0;
    while (ended < questions.size() && !testing::Test::HasFailure()) {
      for (auto& engine : engines_) engine->loop().turn();
      while (std::optional<request::EngineEvent> event = events_.try_pop()) {
        if (auto* token = std::get_if<request::TokenEvent>(&event->body)) answers[token->id] = std::move(*token);
        if (std::holds_alternative<request::SequenceFinished>(event->body)) ++ended;
        if (const auto* failed = std::get_if<request::SequenceFailed>(&event->body)) {
          ADD_FAILURE() << failed->id << ": " << failed->status.to_string();
        }
      }
    }
    std::vector<request::TokenEvent> in_order;
    for (auto& [id, answer] : answers) in_order.push_back(std::move(answer));
    return in_order;
  }

  engine::EngineLoop& last() { return engines_.back()->loop(); }

 private:
  base::SystemClock clock_;
  request::EngineEventQueue events_{1 << 16};
  kv_transfer::LoopbackTransport transport_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
};

// KL divergence over the first answer's alternatives, which hold nearly all of its probability. What the second does
// not list counts as its least likely alternative: too little, if anything.
double divergence(const request::TokenEvent& a, const request::TokenEvent& b) {
  double sum = 0.0;
  for (const request::TokenLogprob& mine : a.top_logprobs) {
    const auto found = std::ranges::find(b.top_logprobs, mine.token, &request::TokenLogprob::token);
    const float theirs = found == b.top_logprobs.end() ? b.top_logprobs.back().logprob : found->logprob;
    sum += std::exp(static_cast<double>(mine.logprob)) * (static_cast<double>(mine.logprob) - theirs);
  }
  return sum;
}

TEST(HandoffPrecision, SplitEnginesWithFp8DecodeAgainstAUnifiedEngine) {
  auto backend = std::move(*backends::cpu::make_simd_backend({}));
  auto model = models::load_model(std::string(TESSERA_SOURCE_DIR) + "/build/models/smollm2", *backend);
  ASSERT_TRUE(model.has_value()) << model.error().message() << "\nscripts/model.sh smollm2 makes the folder";
  const std::vector<Question> questions = read_questions();
  ASSERT_EQ(questions.size(), 120u);

  const auto unified = Pools(Pools::Kind::kUnified, **model, *backend).ask(questions);
  Pools split(Pools::Kind::kSplit, **model, *backend);
  const auto moved = split.ask(questions);
  ASSERT_EQ(unified.size(), questions.size());
  ASSERT_EQ(moved.size(), questions.size());
  EXPECT_EQ(split.last().stats().handoffs_done, std::ssize(questions));
  EXPECT_GT(split.last().stats().handoff_wire_bytes, 0);

  std::int64_t same = 0;
  double sum = 0.0;
  double worst = 0.0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    ASSERT_EQ(unified[i].index, std::ssize(questions[i].forced));
    ASSERT_EQ(moved[i].index, unified[i].index);
    ASSERT_EQ(moved[i].top_logprobs.size(), static_cast<std::size_t>(kAlternatives));
    same += unified[i].token == moved[i].token ? 1 : 0;
    const double kl = divergence(unified[i], moved[i]);
    sum += kl;
    worst = std::max(worst, std::abs(kl));
  }
  const double agreement = static_cast<double>(same) / static_cast<double>(questions.size());
  const double mean = sum / static_cast<double>(questions.size());
  std::printf(
      "split engines, handed over bf16 -> fp8_e4m3, against a unified bf16 engine: %zu positions, top-1 agreement %.2f "
      "%%, KL divergence (20 best) mean %.2e, worst %.2e nats\n",
      questions.size(), agreement * 100.0, mean, worst);
  // Far above what was seen, far below what pages in the wrong place or without their scales give.
  EXPECT_GE(agreement, 0.9);
  EXPECT_LE(mean, 1e-2);
  EXPECT_GT(mean, 1e-7) << "FP8 pages that change nothing were not used";
}

}  // namespace
}  // namespace tessera
