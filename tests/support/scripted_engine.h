// An engine that computes nothing: it emits the token ids that a script gives. For tests of everything that drives
// engines.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/request/messages.h"

namespace tessera::test_support {

// What the engine does with one sequence.
struct Script {
  std::vector<std::int32_t> tokens = {};  // As many of them as the sequence may have.
  base::Status failure = {};              // Not ok: after the tokens the sequence fails with it.
  bool hold = false;                      // After the tokens nothing more comes until an abort.
  std::int32_t cached_tokens = 0;         // For the report.
  std::int32_t integrity_recomputes = 0;  // Likewise.
};

// A unified engine. Emits everything inside try_send, so the event queue must have room for a whole script.
class ScriptedEngine final : public request::EngineEndpoint {
 public:
  using Playwright = std::function<Script(const request::SequenceSpec&)>;

  ScriptedEngine(request::EngineEventQueue& events, Playwright playwright, std::int64_t context_tokens_max = 256)
      : events_(events), playwright_(std::move(playwright)) {
    info_.id = 0;
    info_.role = request::EngineRole::kUnified;
    info_.weight_format = "bf16";
    info_.kv_format = ops::KvFormat::kBF16;
    info_.backend = "scripted";
    info_.model_digest = "d1ge57";
    info_.page_size = 16;
    info_.pages = 64;
    info_.context_tokens_max = context_tokens_max;
    info_.running_max = 64;
    request::EngineStats stats;
    stats.pages_total = 64;
    stats.pages_free = 64;
    emit(stats);
  }

  const request::EngineInfo& info() const override { return info_; }

  [[nodiscard]] bool try_send(request::EngineCommand command) override {
    if (auto* start = std::get_if<request::StartSequence>(&command)) play(start->spec);
    if (auto* abort = std::get_if<request::AbortSequence>(&command)) {
      std::lock_guard lock(mutex_);
      aborted_.insert(abort->id);
    }
    if (std::holds_alternative<request::AuditQuarantinedPages>(command)) ++audits_;
    return true;
  }

  std::set<request::SequenceId> aborted() const {
    std::lock_guard lock(mutex_);
    return aborted_;
  }
  int audits() const { return audits_; }
  std::vector<request::SequenceSpec> started() const {
    std::lock_guard lock(mutex_);
    return started_;
  }

 private:
  void emit(request::EngineEventBody body) {
    TESSERA_CHECK(events_.try_push({info_.id, std::move(body)}), "the test's event queue is too small");
  }

  // Of token i of the prompt -i/4, three tokens at a time; of its alternatives, tokens 200, 201, ..., -1, -2, ...
  void score(const request::SequenceSpec& spec) {
    for (std::size_t first = 1; first < spec.prompt.size(); first += 3) {
      request::PromptLogprobsEvent event;
      event.id = spec.id;
      event.first = static_cast<std::int32_t>(first);
      for (std::size_t i = first; i < std::min(first + 3, spec.prompt.size()); ++i) {
        request::PromptLogprob& one = event.logprobs.emplace_back();
        one.logprob = -0.25f * static_cast<float>(i);
        for (std::int32_t t = 0; t < *spec.sampling.prompt_logprobs; ++t)
          one.top.push_back({200 + t, -1.0f - static_cast<float>(t)});
      }
      emit(std::move(event));
    }
  }

  void play(const request::SequenceSpec& spec) {
    {
      std::lock_guard lock(mutex_);
      started_.push_back(spec);
    }
    Script script = playwright_(spec);
    const auto tokens_max = static_cast<std::size_t>(spec.sampling.max_tokens);
    if (script.tokens.size() > tokens_max) script.tokens.resize(tokens_max);
    request::SequenceReport report;
    report.prompt_tokens = static_cast<std::int32_t>(spec.prompt.size());
    report.cached_tokens = script.cached_tokens;
    report.integrity_recomputes = script.integrity_recomputes;
    report.generated_tokens = static_cast<std::int32_t>(script.tokens.size());
    if (spec.sampling.prompt_logprobs.has_value()) score(spec);
    for (std::size_t i = 0; i < script.tokens.size(); ++i) {
      request::TokenEvent token;
      token.id = spec.id;
      token.index = static_cast<std::int32_t>(i);
      token.token = script.tokens[i];
      if (spec.sampling.logprobs) {
        token.logprob = -0.5f;
        for (std::int32_t t = 0; t < spec.sampling.top_logprobs; ++t)
          token.top_logprobs.push_back({t, -1.0f - static_cast<float>(t)});
      }
      emit(std::move(token));
    }
    if (script.hold) return;
    if (!script.failure.ok()) return emit(request::SequenceFailed{spec.id, script.failure, report});
    const bool full = static_cast<std::int32_t>(script.tokens.size()) == spec.sampling.max_tokens;
    emit(request::SequenceFinished{spec.id, full ? request::FinishReason::kLength : request::FinishReason::kStop,
                                   report});
  }

  request::EngineEventQueue& events_;
  const Playwright playwright_;
  request::EngineInfo info_;
  std::atomic<int> audits_{0};
  mutable std::mutex mutex_;
  std::set<request::SequenceId> aborted_;
  std::vector<request::SequenceSpec> started_;
};

}  // namespace tessera::test_support
