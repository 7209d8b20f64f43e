#include "tests/simulation/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::simulation {

using base::StatusCode;

namespace {

// How long the router waits for an engine to say that it has let go of a sequence that ended.
constexpr base::Nanoseconds kRouterPatience = std::chrono::seconds(1);

}  // namespace

Judge::Judge(ops::Backend& backend, const Rules& rules, const base::Clock& clock, Trace& trace)
    : backend_(backend),
      rules_(rules),
      clock_(clock),
      trace_(trace),
      stream_(backend.make_stream()),
      logits_(static_cast<std::size_t>(test_support::ContextOracleModel::kVocab)) {}

Judge::Sequence* Judge::find(SequenceId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second;
}

void Judge::object(std::string complaint) {
  if (!complaint_.has_value()) complaint_ = std::move(complaint);
}

// ---- What is known beforehand ----

std::uint64_t Judge::prefix_hash(const request::SequenceSpec& spec, std::int64_t tokens) {
  std::uint64_t hash = 0;
  for (const char letter : spec.tenant)
    hash = base::mix64((hash ^ static_cast<std::uint64_t>(letter)) + base::kMix64Step);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto token = static_cast<std::uint64_t>(spec.prompt[static_cast<std::size_t>(i)]);
    hash = base::mix64((hash ^ token) + base::kMix64Step);
  }
  return hash;
}

void Judge::expect(const request::SequenceSpec& spec, std::int64_t context_tokens_max) {
  Sequence sequence(spec, rules_.flavors);
  const std::int64_t room = context_tokens_max - std::ssize(spec.prompt);
  std::int32_t& tokens_max = sequence.spec.sampling.max_tokens;
  tokens_max = static_cast<std::int32_t>(std::min<std::int64_t>(tokens_max, room));
  sequence.last_event = clock_.now();
  for (std::int64_t tokens = rules_.page_size; tokens <= std::ssize(spec.prompt); tokens += rules_.page_size) {
    ++prefixes_[prefix_hash(spec, tokens)];
  }
  last_event_ = clock_.now();
  live_.push_back(spec.id);
  ++counts_.submitted;
  trace_.add("submit", spec.id, spec.prompt.size(), static_cast<std::uint64_t>(tokens_max));
  sequences_.emplace(spec.id, std::move(sequence));
}

void Judge::refused(SequenceId id, const base::Status& status) {
  trace_.add("refused", id, static_cast<std::uint64_t>(status.code()));
  ++counts_.turned_away;
  std::erase(live_, id);
  sequences_.erase(id);
  --counts_.submitted;
}

void Judge::client_left(SequenceId id) {
  trace_.add("abort", id);
  find(id)->left = true;
}

std::int32_t Judge::next_token(const Sequence& sequence) {
  const request::SamplingParams& sampling = sequence.spec.sampling;
  sequence.oracle.logits(logits_);
  if (sampling.temperature == 0.0f) return sequence.oracle.greedy_token();
  ops::SampleRow row;
  row.temperature = sampling.temperature;
  row.top_p = sampling.top_p;
  row.top_k = sampling.top_k;
  row.seed = sampling.seed;
  row.position = static_cast<std::uint64_t>(sequence.oracle.position());
  ops::SampledToken drawn;
  ops::SampleTokensParams params;
  params.logits = ops::f32_matrix(logits_.data(), 1, std::ssize(logits_));
  params.rows = {&row, 1};
  params.out = &drawn;
  backend_.sample_tokens(*stream_, params);
  stream_->synchronize();
  return drawn.token;
}

// Log softmax of the raw logits, of which the best come with it, by logit and then by id.
void Judge::check_logprobs(const Sequence& sequence, const request::TokenEvent& token) {
  const request::SamplingParams& sampling = sequence.spec.sampling;
  const SequenceId id = sequence.spec.id;
  if (!sampling.logprobs) {
    if (!token.top_logprobs.empty()) object(fmt::format("sequence {}: log-probabilities nobody asked for", id));
    return;
  }
  ++counts_.logprobs;
  if (!is_right(token.token, token.logprob, token.top_logprobs, sampling.top_logprobs)) {
    object(fmt::format("sequence {}: wrong log-probabilities of token {}", id, token.index));
  }
}

bool Judge::is_right(std::int32_t token, float told, std::span<const request::TokenLogprob> tops,
                     std::int32_t alternatives) const {
  constexpr double kTolerance = 1e-4;
  double sum = 0.0;
  for (const float logit : logits_) sum += std::exp(static_cast<double>(logit));
  const double total = std::log(sum);
  const auto logprob = [&](std::int32_t of) { return logits_.at(static_cast<std::size_t>(of)) - total; };
  bool right = std::abs(told - logprob(token)) < kTolerance && std::ssize(tops) == alternatives;
  std::vector<std::int32_t> best(logits_.size());
  std::iota(best.begin(), best.end(), 0);
  std::ranges::sort(best, {}, [&](std::int32_t of) { return std::pair(-logprob(of), of); });
  for (std::size_t i = 0; right && i < tops.size(); ++i) {
    const request::TokenLogprob& top = tops[i];
    right = top.token == best[i] && std::abs(top.logprob - logprob(top.token)) < kTolerance;
  }
  return right;
}

void Judge::hear_prompt_logprobs(Sequence& sequence, const request::PromptLogprobsEvent& event) {
  const SequenceId id = sequence.spec.id;
  const std::vector<std::int32_t>& prompt = sequence.spec.prompt;
  const std::optional<std::int32_t> alternatives = sequence.spec.sampling.prompt_logprobs;
  trace_.add("prompt logprobs", id, static_cast<std::uint64_t>(event.first), event.logprobs.size());
  const std::int64_t end = event.first + std::ssize(event.logprobs);
  if (!alternatives.has_value() || event.first != sequence.prompt_told + 1 || end > std::ssize(prompt) ||
      !sequence.told.empty() || sequence.due.has_value()) {
    object(
        fmt::format("sequence {}: {} log-probabilities of its prompt from token {} on, after {} of them and {} "
                    "tokens",
                    id, event.logprobs.size(), event.first, sequence.prompt_told, sequence.told.size()));
    return;
  }
  for (const request::PromptLogprob& one : event.logprobs) {
    const auto at = static_cast<std::size_t>(++sequence.prompt_told);
    ++counts_.prompt_logprobs;
    if (sequence.wrong_from.has_value()) continue;
    test_support::ContextOracle(std::span(prompt).first(at), rules_.flavors).logits(logits_);
    if (!is_right(prompt[at], one.logprob, one.top, *alternatives)) {
      object(fmt::format("sequence {}: wrong log-probabilities of prompt token {}", id, at));
    }
  }
}

// ---- What clients hear ----

void Judge::hear(SequenceId id, const router::SequenceEvent& event) {
  last_event_ = clock_.now();
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->ended) {
    object(fmt::format("sequence {}: an event after its end", id));
    return;
  }
  if (!sequence->left) counts_.longest_wait = std::max(counts_.longest_wait, clock_.now() - sequence->last_event);
  sequence->last_event = clock_.now();
  if (const auto* token = std::get_if<request::TokenEvent>(&event)) {
    hear_token(*sequence, *token);
  } else if (const auto* logprobs = std::get_if<request::PromptLogprobsEvent>(&event)) {
    hear_prompt_logprobs(*sequence, *logprobs);
  } else if (const auto* finished = std::get_if<request::SequenceFinished>(&event)) {
    hear_finish(*sequence, *finished);
  } else {
    hear_failure(*sequence, std::get<request::SequenceFailed>(event));
  }
}

void Judge::hear_token(Sequence& sequence, const request::TokenEvent& token) {
  const SequenceId id = sequence.spec.id;
  trace_.add("token", id, static_cast<std::uint64_t>(token.index), static_cast<std::uint64_t>(token.token));
  ++counts_.tokens;
  const std::int64_t told = std::ssize(sequence.told);
  if (token.index != told) {
    object(fmt::format("sequence {}: token {} came as number {}", id, token.index, told));
    return;
  }
  if (sequence.due.has_value()) object(fmt::format("sequence {}: token {} after its last one", id, token.index));
  if (sequence.told_max.has_value() && told >= *sequence.told_max) {
    object(fmt::format("sequence {}: token {} was emitted although a check must have failed", id, token.index));
  }
  const std::int32_t expected = next_token(sequence);
  if (sequence.wrong_from.has_value() && told >= *sequence.wrong_from) {
    if (token.token != expected) ++counts_.tokens_wrong;
  } else {
    check_logprobs(sequence, token);
    if (token.token != expected) {
      object(fmt::format("sequence {}: token {} is {}; an undisturbed run says {}", id, token.index, token.token,
                         expected));
    }
  }
  sequence.oracle.take(token.token);
  sequence.told.push_back(token.token);
  const request::SamplingParams& sampling = sequence.spec.sampling;
  if (!sampling.ignore_eos &&
      std::ranges::find(sampling.stop_token_ids, token.token) != sampling.stop_token_ids.end()) {
    sequence.due = request::FinishReason::kStop;
  } else if (told + 1 >= sampling.max_tokens) {
    sequence.due = request::FinishReason::kLength;
  }
}

void Judge::end(Sequence& sequence, const request::SequenceReport& report) {
  sequence.ended = true;
  counts_.recomputes += report.integrity_recomputes;
  std::erase(live_, sequence.spec.id);
}

void Judge::hear_finish(Sequence& sequence, const request::SequenceFinished& finished) {
  const SequenceId id = sequence.spec.id;
  trace_.add("finish", id, static_cast<std::uint64_t>(finished.reason), sequence.told.size());
  ++counts_.finished;
  if (sequence.due != finished.reason) {
    object(fmt::format("sequence {}: finished after {} tokens ({}), which is not its end", id, sequence.told.size(),
                       request::finish_reason_name(finished.reason)));
  }
  if (sequence.told_max.has_value() || sequence.must_start_again) {
    object(fmt::format("sequence {}: finished although a check must have failed", id));
  }
  if (sequence.spec.sampling.prompt_logprobs.has_value() &&
      sequence.prompt_told + 1 < std::ssize(sequence.spec.prompt)) {
    object(fmt::format("sequence {}: finished after {} log-probabilities of its prompt", id, sequence.prompt_told));
  }
  if (finished.report.generated_tokens != std::ssize(sequence.told)) {
    object(fmt::format("sequence {}: reports {} tokens of {}", id, finished.report.generated_tokens,
                       sequence.told.size()));
  }
  check_prefix_hit(sequence, finished.report.cached_tokens);
  end(sequence, finished.report);
}

// What a prompt was given from the cache, somebody of the same tenant must have brought.
void Judge::check_prefix_hit(const Sequence& sequence, std::int64_t cached_tokens) {
  if (cached_tokens == 0) return;
  if (cached_tokens % rules_.page_size != 0 || cached_tokens >= std::ssize(sequence.spec.prompt)) {
    object(fmt::format("sequence {}: {} tokens from the cache", sequence.spec.id, cached_tokens));
  } else if (prefixes_[prefix_hash(sequence.spec, cached_tokens)] < 2) {
    object(fmt::format("sequence {}: {} tokens from the cache, which nobody of its tenant brought", sequence.spec.id,
                       cached_tokens));
  }
}

void Judge::hear_failure(Sequence& sequence, const request::SequenceFailed& failed) {
  const SequenceId id = sequence.spec.id;
  const StatusCode code = failed.status.code();
  trace_.add("fail", id, static_cast<std::uint64_t>(code), sequence.told.size());
  bool explained = sequence.may_be_lost;
  switch (code) {
    case StatusCode::kCancelled:
      ++counts_.cancelled;
      explained |= sequence.left;
      break;
    case StatusCode::kCorruption:
      explained |= corruption_is_explained(sequence, failed.report);
      // Who was to be computed again and finds too few pages that are not in quarantine is told of the check.
      if (!explained && sequence.pools_shrank && failed.report.integrity_recomputes + sequence.checks_failed > 0) {
        ++counts_.too_large;
        explained = true;
      } else {
        ++counts_.corrupted;
      }
      break;
    case StatusCode::kResourceExhausted:
      ++counts_.too_large;
      explained |= sequence.pools_shrank;
      break;
    default:
      ++counts_.failed;
  }
  if (!explained) {
    object(fmt::format("sequence {}: failed without a reason after {} tokens: {}", id, sequence.told.size(),
                       failed.status.to_string()));
  }
  // Its client, or its way between engines, may have been lost just before.
  const bool gone = sequence.may_be_lost || (sequence.left && code == StatusCode::kCancelled);
  if (sequence.told_max.has_value() && code != StatusCode::kCorruption && !gone) {
    object(fmt::format("sequence {}: a check must have failed, and it ended with {}", id, failed.status.to_string()));
  }
  end(sequence, failed.report);
}

bool Judge::corruption_is_explained(const Sequence& sequence, const request::SequenceReport& report) const {
  // Of bytes that were found late.
  if (sequence.wrong_from.has_value() || sequence.may_be_ended) return true;
  if (rules_.on_error == kv_cache::OnIntegrityError::kRecompute && !sequence.told_max.has_value()) {
    // Only after it was computed again as often as is allowed. A failure is told at once, also when another engine has
    // yet to report how often that was: so no more can be asked than that checks failed often enough.
    return report.integrity_recomputes + sequence.checks_failed >= rules_.recomputes_max &&
           (sequence.handoff_may_fail || sequence.checks_failed > 0);
  }
  return sequence.handoff_may_fail || sequence.told_max.has_value();
}

// ---- What is done to them ----

void Judge::must_fail(SequenceId id, std::int64_t generated) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return;
  if (sequence->ended) {
    // The engine may not have heard yet that nobody waits for it.
    if (!sequence->left && !sequence->may_be_lost) {
      object(fmt::format("sequence {}: a check must fail on it after its end", id));
    }
    return;
  }
  if (rules_.on_error == kv_cache::OnIntegrityError::kRecompute) {
    if (!std::exchange(sequence->must_start_again, true)) ++sequence->checks_failed;
    return;
  }
  if (!sequence->told_max.has_value() || generated < *sequence->told_max) {
    sequence->told_max = std::max(generated, std::ssize(sequence->told));
  }
}

void Judge::computes(SequenceId id, std::int64_t start) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return;
  const bool in_prompt = start < std::ssize(sequence->spec.prompt);
  // Its handoff failed: nothing else leads back to the prompt from there.
  if (std::exchange(sequence->handoff_may_fail, false) && in_prompt) ++sequence->checks_failed;
  if (std::exchange(sequence->must_start_again, false) && !in_prompt) {
    object(fmt::format("sequence {}: goes on after a check that must have failed", id));
  }
}

void Judge::handoff_may_fail(SequenceId id) {
  if (Sequence* sequence = find(id)) sequence->handoff_may_fail = true;
}

void Judge::may_be_lost(SequenceId id) {
  if (Sequence* sequence = find(id)) sequence->may_be_lost = true;
}

void Judge::may_be_wrong(SequenceId id, std::int64_t index) {
  Sequence* sequence = find(id);
  if (sequence != nullptr) sequence->wrong_from = std::min(sequence->wrong_from.value_or(index), index);
}

void Judge::may_be_ended(SequenceId id) {
  if (Sequence* sequence = find(id)) sequence->may_be_ended = true;
}

void Judge::must_end(SequenceId id, std::int64_t generated) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->ended) return;
  sequence->told_max = std::min(sequence->told_max.value_or(generated), generated);
}

void Judge::pages_left(SequenceId id, std::int64_t pages) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return;
  // Engines may be some tokens ahead of what was told.
  const std::int64_t tokens = std::ssize(sequence->spec.prompt) + std::ssize(sequence->told) + rules_.page_size;
  if (base::ceil_div(tokens, rules_.page_size) > pages) sequence->pools_shrank = true;
}

void Judge::engine_has(SequenceId id, std::span<const std::int32_t> generated) {
  const Sequence* sequence = find(id);
  if (sequence == nullptr) return;
  const std::size_t both = std::min(generated.size(), sequence->told.size());
  if (!std::equal(generated.begin(), generated.begin() + static_cast<std::ptrdiff_t>(both), sequence->told.begin())) {
    object(fmt::format("sequence {}: an engine has other tokens than its client was told", id));
  }
}

void Judge::share(SequenceId one, SequenceId other, std::int64_t tokens) {
  const Sequence* a = find(one);
  const Sequence* b = find(other);
  if (a == nullptr || b == nullptr) return;
  if (tokens > std::min(std::ssize(a->spec.prompt), std::ssize(b->spec.prompt)) || a->spec.tenant != b->spec.tenant ||
      !std::equal(a->spec.prompt.begin(), a->spec.prompt.begin() + tokens, b->spec.prompt.begin())) {
    object(fmt::format("sequences {} and {} hold one page, at the end of {} tokens that they do not share", one, other,
                       tokens));
  }
}

// ---- Bounds ----

void Judge::check_stall(base::Nanoseconds stall_after, base::Nanoseconds starves_after) {
  const auto milliseconds = [](base::Nanoseconds time) { return time.count() / 1'000'000; };
  std::int64_t wait_for_something = 0;
  for (const SequenceId id : live_) {
    const Sequence& sequence = *find(id);
    const base::Nanoseconds wait = clock_.now() - sequence.last_event;
    // A client that left hears of its end once both engines have let go, or after the router's patience.
    if (!sequence.left) ++wait_for_something;
    if (wait > (sequence.left ? starves_after + kRouterPatience : starves_after)) {
      object(fmt::format("sequence {} has waited for {} ms", id, milliseconds(wait)));
    }
  }
  if (wait_for_something > 0 && clock_.now() - last_event_ > stall_after) {
    object(fmt::format("nothing has happened for {} ms; {} sequences live, of which the first is {}",
                       milliseconds(clock_.now() - last_event_), live_.size(), live_.front()));
  }
}

void Judge::check_all_ended() {
  if (!live_.empty()) object(fmt::format("{} sequences never ended; the first is {}", live_.size(), live_.front()));
}

bool Judge::is_live(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found != sequences_.end() && !found->second.ended;
}

std::int64_t Judge::tokens_heard(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : std::ssize(found->second.told);
}

std::int64_t Judge::prompt_tokens(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : std::ssize(found->second.spec.prompt);
}

}  // namespace tessera::simulation
