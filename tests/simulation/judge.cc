#include "tests/simulation/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::simulation {

using base::StatusCode;

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
  sequence.submitted = clock_.now();
  sequence.may_be_lost = clock_.now() < all_lost_until_;
  for (std::int64_t tokens = rules_.page_size; tokens <= std::ssize(spec.prompt); tokens += rules_.page_size) {
    ++prefixes_[prefix_hash(spec, tokens)];
  }
  if (live_.empty()) last_event_ = clock_.now();
  live_.push_back(spec.id);
  ++counts_.submitted;
  trace_.add("submit", spec.id, spec.prompt.size(), static_cast<std::uint64_t>(tokens_max));
  sequences_.emplace(spec.id, std::move(sequence));
}

void Judge::refused(SequenceId id) {
  trace_.add("refused", id);
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
  if (sampling.temperature == 0.0f) return sequence.oracle.greedy_token();
  sequence.oracle.logits(logits_);
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

// ---- What clients hear ----

void Judge::hear(SequenceId id, const router::SequenceEvent& event) {
  last_event_ = clock_.now();
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->ended) {
    object(fmt::format("sequence {}: an event after its end", id));
    return;
  }
  if (const auto* token = std::get_if<request::TokenEvent>(&event)) {
    hear_token(*sequence, *token);
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
  if (token.index != sequence.told) {
    object(fmt::format("sequence {}: token {} came as number {}", id, token.index, sequence.told));
    return;
  }
  if (sequence.due.has_value()) object(fmt::format("sequence {}: token {} after its last one", id, token.index));
  if (sequence.told_max.has_value() && sequence.told >= *sequence.told_max) {
    object(fmt::format("sequence {}: token {} was emitted although a check must have failed", id, token.index));
  }
  const std::int32_t expected = next_token(sequence);
  if (token.token != expected) {
    object(
        fmt::format("sequence {}: token {} is {}; an undisturbed run says {}", id, token.index, token.token, expected));
  }
  sequence.oracle.take(token.token);
  ++sequence.told;
  const request::SamplingParams& sampling = sequence.spec.sampling;
  if (!sampling.ignore_eos &&
      std::ranges::find(sampling.stop_token_ids, token.token) != sampling.stop_token_ids.end()) {
    sequence.due = request::FinishReason::kStop;
  } else if (sequence.told >= sampling.max_tokens) {
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
  trace_.add("finish", id, static_cast<std::uint64_t>(finished.reason), static_cast<std::uint64_t>(sequence.told));
  ++counts_.finished;
  if (sequence.due != finished.reason) {
    object(fmt::format("sequence {}: finished after {} tokens ({}), which is not its end", id, sequence.told,
                       request::finish_reason_name(finished.reason)));
  }
  if (sequence.told_max.has_value()) object(fmt::format("sequence {}: finished although a check must have failed", id));
  if (finished.report.generated_tokens != sequence.told) {
    object(fmt::format("sequence {}: reports {} tokens of {}", id, finished.report.generated_tokens, sequence.told));
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
  trace_.add("fail", id, static_cast<std::uint64_t>(code), static_cast<std::uint64_t>(sequence.told));
  bool explained = sequence.may_be_lost;
  switch (code) {
    case StatusCode::kCancelled:
      ++counts_.cancelled;
      explained |= sequence.left;
      break;
    case StatusCode::kCorruption:
      ++counts_.corrupted;
      explained |= sequence.may_be_corrupt || sequence.told_max.has_value() || damaged_prefix(sequence);
      // Only after it was computed again as often as is allowed. (A failure is told at once, also when another engine
      // has yet to report its share.) What a sweep finds ends its readers in any case.
      if (rules_.on_error == kv_cache::OnIntegrityError::kRecompute &&
          rules_.level == kv_cache::IntegrityLevel::kTags &&
          failed.report.integrity_recomputes + sequence.checks_failed < rules_.recomputes_max) {
        explained = sequence.may_be_lost;
      }
      break;
    case StatusCode::kResourceExhausted:
      ++counts_.failed;
      explained |= sequence.pools_shrank;
      break;
    default:
      ++counts_.failed;
  }
  if (!explained) {
    object(fmt::format("sequence {}: failed without a reason after {} tokens: {}", id, sequence.told,
                       failed.status.to_string()));
  }
  // Its client, or its way between engines, may have been lost just before.
  const bool gone = sequence.may_be_lost || (sequence.left && code == StatusCode::kCancelled);
  if (sequence.told_max.has_value() && code != StatusCode::kCorruption && !gone) {
    object(fmt::format("sequence {}: a check must have failed, and it ended with {}", id, failed.status.to_string()));
  }
  end(sequence, failed.report);
}

// ---- What is done to them ----

void Judge::must_fail(SequenceId id, std::int64_t generated) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->ended) return;
  if (rules_.on_error == kv_cache::OnIntegrityError::kRecompute) {
    sequence->may_be_corrupt = true;
    if (!std::exchange(sequence->must_start_again, true)) ++sequence->checks_failed;
    return;
  }
  if (!sequence->told_max.has_value() || generated < *sequence->told_max) {
    sequence->told_max = std::max(generated, sequence->told);
  }
}

void Judge::computes(SequenceId id, std::int64_t start) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || !std::exchange(sequence->must_start_again, false)) return;
  if (start >= std::ssize(sequence->spec.prompt)) {
    object(fmt::format("sequence {}: goes on after a check that must have failed", id));
  }
}

void Judge::may_be_corrupt(SequenceId id) {
  if (Sequence* sequence = find(id)) sequence->may_be_corrupt = true;
}

std::uint64_t Judge::readers_may_be_corrupt(SequenceId id, std::int64_t tokens) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return 0;
  if (!sequence->ended) sequence->may_be_corrupt = true;
  if (tokens > std::ssize(sequence->spec.prompt)) return 0;  // Nobody else can have it.
  const std::uint64_t damage = prefix_hash(sequence->spec, tokens);
  damaged_[damage] = {tokens, std::nullopt};
  return damage;
}

void Judge::healed(std::uint64_t damage) {
  if (const auto found = damaged_.find(damage); found != damaged_.end()) found->second.healed = clock_.now();
}

bool Judge::damaged_prefix(const Sequence& sequence) const {
  return std::ranges::any_of(damaged_, [&](const auto& entry) {
    const auto& [hash, damage] = entry;
    return damage.tokens <= std::ssize(sequence.spec.prompt) &&
           (!damage.healed.has_value() || sequence.submitted <= *damage.healed) &&
           hash == prefix_hash(sequence.spec, damage.tokens);
  });
}

void Judge::may_be_lost(SequenceId id) {
  if (Sequence* sequence = find(id)) sequence->may_be_lost = true;
}

void Judge::all_may_be_lost(base::Nanoseconds until) {
  all_lost_until_ = std::max(all_lost_until_, until);
  for (const SequenceId id : live_) find(id)->may_be_lost = true;
}

void Judge::pools_shrank() {
  for (const SequenceId id : live_) find(id)->pools_shrank = true;
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

void Judge::check_stall(base::Nanoseconds stall_after) {
  if (live_.empty() || clock_.now() - last_event_ <= stall_after) return;
  object(fmt::format("nothing has happened for {} ms; {} sequences live, of which the first is {}",
                     (clock_.now() - last_event_).count() / 1'000'000, live_.size(), live_.front()));
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
  return found == sequences_.end() ? 0 : found->second.told;
}

std::int64_t Judge::prompt_tokens(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : std::ssize(found->second.spec.prompt);
}

}  // namespace tessera::simulation
