#include "forced_scorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "forced_recording.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/clock.h"
#include "tessera/engine/engine.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/ops/kv_conversion.h"

namespace tessera::app {

namespace {

using quality::Passage;
using request::EngineRole;

constexpr request::EngineId kFirstEngine = 0;  // Prefill or unified.
constexpr request::EngineId kDecodeEngine = 1;
// Passages that are in the engines' queues at once, at most: what their copies of tokens take stays small, however many
// there are.
constexpr std::size_t kPassagesAtOnce = 256;
// One part in so many of the memory is not planned with.
constexpr std::int64_t kUnplannedShare = 16;
// One thread turns both engines, so each is silent while the other computes.
constexpr std::chrono::hours kHandoffTimeout{1};
// Longer than anything that an engine waits for between two turns.
constexpr std::chrono::seconds kStandstillMax{60};
// Two ways to sum one softmax differ by less, in any vocabulary.
constexpr float kSameLogprob = 1e-3f;

class ForcedScorer final : public quality::DistributionSource {
 public:
  ForcedScorer(const PlanSpec& plan, std::shared_ptr<ShelvedModel> model, const std::atomic<bool>* stop)
      : plan_(plan),
        stop_(stop),
        model_(std::move(model)),
        gathering_(*model_->backend),
        transport_(kv_transfer::LoopbackOptions{}) {}

  base::Status start() {
    if (plan_.split) {
      TESSERA_RETURN_IF_ERROR(ops::check_conversion(plan_.prefill_kv, plan_.decode_kv));
    }
    if (plan_.kv_rounding.has_value()) TESSERA_RETURN_IF_ERROR(make_rounder(*plan_.kv_rounding));
    TESSERA_ASSIGN_OR_RETURN(const base::MachineMemory memory, read_memory(plan_.backend));
    std::int64_t remaining = memory.available_bytes - memory.available_bytes / kUnplannedShare;
    TESSERA_RETURN_IF_ERROR(
        add_engine(plan_.split ? EngineRole::kPrefill : EngineRole::kUnified, plan_.prefill_kv, remaining));
    if (plan_.split) TESSERA_RETURN_IF_ERROR(add_engine(EngineRole::kDecode, plan_.decode_kv, remaining));

    const request::EngineInfo& prefill = engines_.front().engine->info();
    const request::EngineInfo& decode = engines_.back().engine->info();
    info_.model = std::filesystem::weakly_canonical(plan_.model).filename().string();
    info_.precision =
        fmt::format("prefill={}/{}; decode={}/{}", prefill.weight_format, ops::kv_format_name(prefill.kv_format),
                    decode.weight_format,
                    plan_.kv_rounding.has_value() ? fmt::format("simulated {}", kv_rounding_name(*plan_.kv_rounding))
                                                  : ops::kv_format_name(decode.kv_format));
    info_.digest = model_->model->digest();
    info_.context_tokens = context_tokens();
    return {};
  }

  const quality::RespondentInfo& info() const override { return info_; }
  std::int64_t vocab_size() const override { return model_->model->config().vocab_size; }

  base::Status prepare(std::span<const Passage> passages) override {
    TESSERA_RETURN_IF_ERROR(failure_);
    if (!must_calibrate_) return {};
    std::vector<Passage> first;
    first.reserve(kCalibrationPassages);
    for (const Passage& passage : passages) {
      if (first.size() == kCalibrationPassages) break;
      const base::Status status = check(passage);
      if (status.code() == base::StatusCode::kOutOfRange) continue;
      TESSERA_RETURN_IF_ERROR(status);
      first.push_back(passage);
    }
    failure_ = calibrate(first);
    return failure_;
  }

  base::Status distributions(std::span<const Passage> passages, const quality::DistributionSink& sink) override {
    TESSERA_RETURN_IF_ERROR(failure_);
    for (const Passage& passage : passages) TESSERA_RETURN_IF_ERROR(check(passage));
    if (must_calibrate_) {
      return base::internal_error(fmt::format(
          "plan '{}': expected prepare() first, which measures the constants of its KV format", plan_.name));
    }
    for (std::size_t first = 0; first < passages.size(); first += kPassagesAtOnce) {
      const std::size_t count = std::min(kPassagesAtOnce, passages.size() - first);
      failure_ = run(passages.subspan(first, count), first, sink);
      TESSERA_RETURN_IF_ERROR(failure_);
    }
    return {};
  }

 private:
  // In the order in which they are made.
  struct TurnedEngine {
    std::unique_ptr<RoundingModel> rounding;
    std::unique_ptr<ForcedRecording> recording;
    std::unique_ptr<RecordingModel> model;
    std::unique_ptr<engine::Engine> engine;
  };
  // What is under way of one passage.
  struct Running {
    std::size_t passage = 0;     // Its index as the caller counts.
    std::int64_t delivered = 0;  // Positions so far.
    float best = 0.0f;           // Of the last of them, the largest logarithm.
    bool finished = false;
  };

  base::Status make_rounder(KvRounding rounding) {
    const models::Model& model = *model_->model;
    if (!plan_.split || plan_.prefill_kv != ops::KvFormat::kBF16 || plan_.decode_kv != ops::KvFormat::kBF16) {
      return base::invalid_argument("a simulated KV format: expected a split plan with BF16 pages in both pools");
    }
    const KvKind kind = model.config().mla.has_value() ? KvKind::kLatent : KvKind::kGrouped;
    if (rounding == KvRounding::kRopeBF16 && kind != KvKind::kLatent) {
      return base::invalid_argument(fmt::format("kv-rounding={} is of latent attention, which the model in {} has not",
                                                kv_rounding_name(rounding), plan_.model));
    }
    rounder_.emplace(rounding, model.kv_layout(ops::KvFormat::kBF16, engine::EngineConfig{}.page_size), kind);
    must_calibrate_ = is_calibrated(rounding);
    return {};
  }

  base::Status add_engine(EngineRole role, ops::KvFormat format, std::int64_t& remaining_bytes) {
    engine::EngineConfig config;
    config.id = role == EngineRole::kDecode ? kDecodeEngine : kFirstEngine;
    config.role = role;
    config.kv_format = format;
    const std::int64_t wanted =
        std::min(kForcedPoolTokens, plan_.batch * model_->model->config().max_position_embeddings);
    config.pages = base::ceil_div(wanted, std::int64_t{config.page_size});
    config.memory_budget_bytes = std::max<std::int64_t>(1, remaining_bytes);
    config.weight_memory = engine::WeightMemory::kCountedElsewhere;  // They are loaded already.
    config.running_max = plan_.batch;
    config.chunked_prefill_size = plan_.chunk;
    config.commands_max = kPassagesAtOnce;
    config.sequences_max = 2 * kPassagesAtOnce;  // A prefill engine may still be told of the end of earlier handoffs.
    config.handoff.timeout = kHandoffTimeout;

    TurnedEngine turned;
    turned.recording = std::make_unique<ForcedRecording>(
        spans_, vocab_size(), [this](request::SequenceId id, std::int64_t position, std::span<const float> logprobs) {
          deliver(id, position, logprobs);
        });
    turned.rounding = std::make_unique<RoundingModel>(*model_->model, *model_->backend);
    turned.model = std::make_unique<RecordingModel>(*turned.rounding, *model_->backend, *turned.recording);
    config.listener = turned.recording.get();
    if (rounder_.has_value() && role == EngineRole::kPrefill) gathering_.set_gather_treatment({.round = &*rounder_});
    if (rounder_.has_value() && role == EngineRole::kDecode) turned.rounding->set_treatment({.round = &*rounder_});
    engine::EngineParts parts{*turned.model, gathering_, events_, clock_, nullptr};
    if (role != EngineRole::kUnified) {
      parts.endpoint = transport_.make_endpoint(static_cast<kv_transfer::PeerId>(config.id));
    }
    auto made = engine::Engine::create(config, std::move(parts));
    if (!made.has_value()) return made.error().with_context(fmt::format("{} engine", engine_role_name(role)));
    turned.engine = std::move(*made);
    remaining_bytes -= turned.engine->memory_plan().total();
    engines_.push_back(std::move(turned));
    return {};
  }

  std::int64_t context_tokens() const {
    std::int64_t tokens = engines_.front().engine->info().context_tokens_max;
    for (const TurnedEngine& turned : engines_) tokens = std::min(tokens, turned.engine->info().context_tokens_max);
    return tokens;
  }

  base::Status check(const Passage& passage) const {
    const auto wrong = [&](const std::string& what) {
      return base::invalid_argument(fmt::format("passage '{}': {}", passage.question, what));
    };
    if (passage.prompt.empty() || passage.continuation.empty()) {
      return wrong("a prompt and a continuation of at least one token each are expected");
    }
    for (const std::vector<quality::TokenId>& tokens : {std::cref(passage.prompt), std::cref(passage.continuation)}) {
      const auto outside =
          std::ranges::find_if(tokens, [&](std::int64_t token) { return token < 0 || token >= vocab_size(); });
      if (outside != tokens.end()) {
        return wrong(fmt::format("token {} is outside of the vocabulary of {}", *outside, vocab_size()));
      }
    }
    const std::int64_t length = std::ssize(passage.prompt) + std::ssize(passage.continuation);
    if (length > context_tokens()) {
      return base::out_of_range(fmt::format("passage '{}' has {} tokens; the engines of plan '{}' take {}",
                                            passage.question, length, plan_.name, context_tokens()));
    }
    return {};
  }

  // `first` is the index of the first of these passages as the caller counts.
  base::Status run(std::span<const Passage> passages, std::size_t first, const quality::DistributionSink& sink) {
    begin(sink, passages.size());
    for (const Passage& passage : passages) {
      request::StartSequence start;
      start.spec.prompt = passage.prompt;
      // The last token of the continuation is not computed with: its own distribution is the last that is wanted, and
      // the engine ends the sequence by drawing a token of its own there.
      start.generated.assign(passage.continuation.begin(), passage.continuation.end() - 1);
      TESSERA_RETURN_IF_ERROR(send(std::move(start), passage, first++));
    }
    return finish();
  }

  // Shows the rounder the rows of whole passages, as prefill computes them.
  base::Status calibrate(std::span<const Passage> passages) {
    const quality::DistributionSink discard = [](auto...) {};
    RoundingModel& prefill = *engines_.front().rounding;
    prefill.set_treatment({.observe = &*rounder_});
    begin(discard, passages.size());
    for (std::size_t i = 0; i < passages.size(); ++i) {
      request::StartSequence start;
      start.spec.prompt = passages[i].prompt;
      start.spec.prompt.insert(start.spec.prompt.end(), passages[i].continuation.begin(),
                               passages[i].continuation.end() - 1);
      TESSERA_RETURN_IF_ERROR(send(std::move(start), passages[i], i));
    }
    TESSERA_RETURN_IF_ERROR(finish());
    prefill.set_treatment({});
    rounder_->fix_scales();
    must_calibrate_ = false;
    return {};
  }

  void begin(const quality::DistributionSink& sink, std::size_t passages) {
    sink_ = &sink;
    first_id_ = last_id_ + 1;
    spans_.clear();
    running_.clear();
    running_.reserve(passages);
  }

  // The caller has put the tokens in: it wants the distributions of those that are forced, and of the one after them.
  base::Status send(request::StartSequence start, const Passage& passage, std::size_t index) {
    const std::int64_t positions = std::ssize(start.generated) + 1;
    start.spec.id = ++last_id_;
    start.spec.request_id = passage.question;
    start.spec.tenant = "evaluate";
    start.spec.sampling.temperature = 0.0f;
    start.spec.sampling.max_tokens = static_cast<std::int32_t>(positions);
    start.spec.sampling.ignore_eos = true;
    start.spec.sampling.logprobs = true;
    start.decode_engine = kDecodeEngine;
    spans_[last_id_] = {std::ssize(start.spec.prompt), positions};
    running_.push_back({.passage = index});
    if (engines_.front().engine->try_send(std::move(start))) return {};
    return base::internal_error("an idle engine does not take a passage");
  }

  // Until everything that was sent has ended, with all its distributions.
  base::Status finish() {
    unfinished_ = running_.size();
    TESSERA_RETURN_IF_ERROR(turn_until_finished());
    for (const auto& [id, span] : spans_) {
      const Running& running = running_[id - first_id_];
      if (running.delivered != span.positions) {
        return base::internal_error(
            fmt::format("sequence {} has distributions at {} of {} positions", id, running.delivered, span.positions));
      }
    }
    return {};
  }

  base::Status turn_until_finished() {
    base::Nanoseconds moved_at = clock_.now();
    while (unfinished_ > 0) {
      if (stop_ != nullptr && *stop_) return {base::StatusCode::kCancelled, "interrupted"};
      bool moved = false;
      for (const TurnedEngine& turned : engines_) {
        moved |= turned.engine->loop().turn() == engine::Turn::kMoved;
        TESSERA_RETURN_IF_ERROR(turned.recording->status());
      }
      while (const std::optional<request::EngineEvent> event = events_.try_pop()) {
        TESSERA_RETURN_IF_ERROR(take(event->body));
      }
      TESSERA_RETURN_IF_ERROR(disorder_);
      if (moved) {
        moved_at = clock_.now();
      } else if (clock_.now() - moved_at > kStandstillMax) {
        return base::internal_error(fmt::format("the engines stand still with {} passages unfinished", unfinished_));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return {};
  }

  base::Status take(const request::EngineEventBody& event) {
    if (const auto* token = std::get_if<request::TokenEvent>(&event)) {
      // The engine draws the likeliest token and says how likely it is: so the record is of the logits it drew from.
      const float recorded = running_[token->id - first_id_].best;
      if (std::abs(token->logprob - recorded) <= kSameLogprob) return {};
      return base::internal_error(
          fmt::format("sequence {}: the engine drew a token of log-probability {}; the largest "
                      "one that was recorded is {}",
                      token->id, token->logprob, recorded));
    }
    if (const auto* finished = std::get_if<request::SequenceFinished>(&event)) {
      Running& running = running_[finished->id - first_id_];
      if (!running.finished) --unfinished_;
      running.finished = true;
      return {};
    }
    if (const auto* failed = std::get_if<request::SequenceFailed>(&event)) return failed->status;
    if (const auto* preempted = std::get_if<request::SequencePreempted>(&event)) {
      // Every sequence is given all its pages when it is admitted.
      return base::internal_error(fmt::format("sequence {} was preempted, although it cannot grow", preempted->id));
    }
    return {};  // Statistics, and handoffs that are done.
  }

  void deliver(request::SequenceId id, std::int64_t position, std::span<const float> logprobs) {
    Running& running = running_[id - first_id_];
    if (position != running.delivered) {
      if (disorder_.ok()) {
        disorder_ = base::internal_error(
            fmt::format("sequence {}: position {} was computed after {} others", id, position, running.delivered));
      }
      return;
    }
    ++running.delivered;
    running.best = std::ranges::max(logprobs);
    (*sink_)(running.passage, static_cast<std::size_t>(position), logprobs);
  }

  const PlanSpec plan_;
  const std::atomic<bool>* const stop_;
  const std::shared_ptr<ShelvedModel> model_;
  RoundingBackend gathering_;  // What the engines move pages with; only a prefill engine gathers.
  std::optional<KvRounder> rounder_;
  bool must_calibrate_ = false;
  quality::RespondentInfo info_;
  base::SystemClock clock_;
  request::EngineEventQueue events_{1 << 12};
  kv_transfer::LoopbackTransport transport_;
  ForcedSpans spans_;
  std::vector<TurnedEngine> engines_;

  base::Status failure_;
  base::Status disorder_;
  const quality::DistributionSink* sink_ = nullptr;
  request::SequenceId last_id_ = 0;
  request::SequenceId first_id_ = 1;  // Of running_.
  std::vector<Running> running_;
  std::size_t unfinished_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<quality::DistributionSource>> make_forced_scorer(const PlanSpec& plan, ModelShelf* shelf,
                                                                              const std::atomic<bool>* stop) {
  TESSERA_CHECK(plan.is_own(), "a server elsewhere gives no full distributions");
  ModelShelf own_shelf;
  const std::string context = fmt::format("plan '{}'", plan.name);
  auto model = (shelf != nullptr ? *shelf : own_shelf).take(plan.model, plan.backend);
  if (!model.has_value()) return base::failure(model.error().with_context(context));
  auto scorer = std::make_unique<ForcedScorer>(plan, std::move(*model), stop);
  TESSERA_RETURN_IF_ERROR(scorer->start().with_context(context));
  return scorer;
}

}  // namespace tessera::app
