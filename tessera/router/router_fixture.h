// The router over engines that do nothing, for tests that speak for them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/router/router.h"

namespace tessera::router {

using request::EngineRole;
using request::SequenceId;

// Takes commands and does nothing.
class Puppet final : public request::EngineEndpoint {
 public:
  Puppet(request::EngineId id, EngineRole role, std::int64_t context = 100) {
    facts.id = id;
    facts.role = role;
    facts.page_size = 4;
    facts.pages = 25;
    facts.context_tokens_max = context;
    facts.kv_format = role == EngineRole::kDecode ? ops::KvFormat::kF8E4M3 : ops::KvFormat::kBF16;
  }
  const request::EngineInfo& info() const override { return facts; }
  bool try_send(request::EngineCommand command) override {
    if (full) return false;
    if (auto* start = std::get_if<request::StartSequence>(&command)) started.push_back(std::move(*start));
    if (auto* abort = std::get_if<request::AbortSequence>(&command)) aborted.push_back(abort->id);
    if (std::holds_alternative<request::FlushPrefixCache>(command)) ++flushes;
    return true;
  }
  request::EngineInfo facts;
  bool full = false;
  std::vector<request::StartSequence> started;
  std::vector<SequenceId> aborted;
  int flushes = 0;
};

struct Heard {
  std::vector<std::int32_t> indices;
  std::vector<std::int32_t> prompt_indices;
  std::vector<float> prompt_logprobs;
  std::vector<SequenceEvent> terminals;
  const request::SequenceFinished& finished() const { return std::get<request::SequenceFinished>(terminals.at(0)); }
  const request::SequenceFailed& failed() const { return std::get<request::SequenceFailed>(terminals.at(0)); }
};

class RouterTest : public testing::Test {
 protected:
  void make(std::vector<Puppet*> puppets, RouterOptions options = {}) {
    std::vector<request::EngineEndpoint*> endpoints(puppets.begin(), puppets.end());
    auto made = Router::create(options, endpoints, events_, clock_);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    router_ = std::move(*made);
  }
  request::SequenceSpec spec(std::int64_t prompt, std::int32_t max_tokens = 10) {
    request::SequenceSpec out;
    out.id = router_->next_id();
    out.prompt.assign(static_cast<std::size_t>(prompt), 7);
    out.sampling.max_tokens = max_tokens;
    return out;
  }
  base::Status submit(request::SequenceSpec one) {
    const SequenceId id = one.id;
    return router_->submit(std::move(one), [this, id](SequenceEvent event) {
      if (auto* token = std::get_if<request::TokenEvent>(&event)) {
        heard_[id].indices.push_back(token->index);
        EXPECT_TRUE(heard_[id].terminals.empty()) << "a token after the end";
      } else if (auto* logprobs = std::get_if<request::PromptLogprobsEvent>(&event)) {
        for (std::size_t i = 0; i < logprobs->logprobs.size(); ++i) {
          heard_[id].prompt_indices.push_back(logprobs->first + static_cast<std::int32_t>(i));
          heard_[id].prompt_logprobs.push_back(logprobs->logprobs[i].logprob);
        }
        EXPECT_TRUE(heard_[id].terminals.empty()) << "log-probabilities after the end";
      } else {
        heard_[id].terminals.push_back(std::move(event));
      }
    });
  }
  SequenceId start(std::int64_t prompt = 5) {
    request::SequenceSpec one = spec(prompt);
    const SequenceId id = one.id;
    EXPECT_TRUE(submit(std::move(one)).ok());
    return id;
  }
  void say(const Puppet& puppet, request::EngineEventBody body) {
    ASSERT_TRUE(events_.try_push({puppet.facts.id, std::move(body)}));
  }
  void token(const Puppet& puppet, SequenceId id, std::int32_t index) {
    request::TokenEvent event;
    event.id = id;
    event.index = index;
    event.token = 100 + index;
    say(puppet, std::move(event));
  }
  // Of prompt tokens `first` and on; each number is that of its token.
  void score(const Puppet& puppet, SequenceId id, std::int32_t first, std::int32_t count) {
    request::PromptLogprobsEvent event;
    event.id = id;
    event.first = first;
    for (std::int32_t i = first; i < first + count; ++i) event.logprobs.push_back({-static_cast<float>(i), {}});
    say(puppet, std::move(event));
  }
  SequenceId start_scored(std::int64_t prompt) {
    request::SequenceSpec one = spec(prompt);
    one.sampling.prompt_logprobs = 0;
    const SequenceId id = one.id;
    EXPECT_TRUE(submit(std::move(one)).ok());
    return id;
  }
  void pump() {
    while (router_->pump(base::Nanoseconds(0)) > 0) {
    }
  }

  request::EngineEventQueue events_{10000};
  base::ManualClock clock_;
  Puppet unified_{0, EngineRole::kUnified};
  Puppet prefill_{1, EngineRole::kPrefill};
  Puppet prefill_two_{2, EngineRole::kPrefill};
  Puppet decode_{3, EngineRole::kDecode, 80};
  Puppet decode_two_{4, EngineRole::kDecode, 80};
  std::map<SequenceId, Heard> heard_;  // Before the router: its end is heard too.
  std::unique_ptr<Router> router_;
};

}  // namespace tessera::router
