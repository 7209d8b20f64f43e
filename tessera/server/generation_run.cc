#include "tessera/server/generation_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/base/limits.h"

namespace tessera::server {

namespace {

double seconds(base::Nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }
double milliseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-6; }

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024.0);
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

void append(AnswerChoice& answer, ChoiceDelta delta) {
  answer.reasoning += delta.output.reasoning;
  answer.content += delta.output.content;
  for (text::ToolCallDelta& call : delta.output.tool_calls) {
    const auto index = static_cast<std::size_t>(call.index);
    if (index >= answer.tool_calls.size()) {
      answer.tool_calls.resize(index + 1);
      answer.tool_calls[index] = {std::move(call.id), std::move(call.name), {}};
    }
    answer.tool_calls[index].arguments += call.arguments;
  }
  std::ranges::move(delta.logprobs, std::back_inserter(answer.logprobs));
}

// Overload set for std::visit.
template <typename... F>
struct Match : F... {
  using F::operator()...;
};

}  // namespace

GenerationRun::GenerationRun(Service& service, Generation generation)
    : service_(service),
      generation_(std::move(generation)),
      writer_(generation_, service.tokenizer()),
      arrival_(service.clock().now()) {}

GenerationRun::~GenerationRun() {
  cancel();
  if (has_prompt_logprobs_) service_.give_back_prompt_logprobs(generation_);
}

std::optional<ApiError> GenerationRun::start(const std::function<void(std::size_t, router::SequenceEvent)>& deliver) {
  if (!service_.take_prompt_logprobs(generation_)) {
    return from_status(base::resource_exhausted("too many log-probabilities of prompts are wanted; try again later"));
  }
  has_prompt_logprobs_ = true;
  for (std::size_t i = 0; i < generation_.sequences.size(); ++i) {
    const request::SequenceSpec& sequence = generation_.sequences[i];
    auto text = ChoiceText::create(service_.tokenizer(), generation_.tools,
                                   {.stop = generation_.options.stop,
                                    .stop_token_ids = sequence.sampling.stop_token_ids,
                                    .logprobs = generation_.options.logprobs,
                                    .text_begin = std::ssize(generation_.echo[i]),
                                    .syntax = generation_.syntax});
    if (!text.has_value()) return bad_request(text.error().message(), "stop");
    choices_.push_back(Choice{.text = std::move(*text), .prompt = {}, .answer = {}, .report = {}});
    if (sequence.sampling.prompt_logprobs.has_value()) {
      choices_.back().prompt.emplace(service_.tokenizer(), sequence.prompt);
    }
  }
  if (auto error = service_.start(generation_, deliver)) return error;
  open_choices_ = choices_.size();
  live_ = true;
  return std::nullopt;
}

void GenerationRun::cancel() {
  if (!live_) return;
  live_ = false;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].over) service_.abort_choice(generation_, i);
  }
  service_.finished(generation_);
}

void GenerationRun::begin_choices(std::vector<std::string>& chunks) {
  if (std::exchange(begun_, true)) return;
  for (std::size_t index = 0; index < choices_.size(); ++index) {
    if (generation_.options.stream && generation_.kind == GenerationKind::kChat) {
      chunks.push_back(writer_.role_chunk(index));
    }
    if (!generation_.echo[index].empty() && !choices_[index].prompt.has_value()) {
      ChoiceDelta echo;
      echo.output.content = generation_.echo[index];
      add_delta(index, std::move(echo), {}, chunks);
    }
  }
}

std::string GenerationRun::unique_call_id(Choice& choice, std::string id) {
  bool usable = !id.empty() && std::ssize(id) <= base::limits::kToolCallIdBytesMax;
  while (!usable || !choice.call_ids.insert(id).second) {
    id = service_.new_call_id();
    usable = true;
  }
  return id;
}

void GenerationRun::add_delta(std::size_t index, ChoiceDelta delta, std::string_view finish_reason,
                              std::vector<std::string>& chunks) {
  Choice& choice = choices_[index];
  for (text::ToolCallDelta& call : delta.output.tool_calls) {
    if (call.index >= std::ssize(choice.call_ids)) call.id = unique_call_id(choice, std::move(call.id));
  }
  choice.has_content |= !delta.output.content.empty();
  if (!generation_.options.stream) {
    append(choice.answer, std::move(delta));
    return;
  }
  if (delta.empty() && finish_reason.empty()) return;
  std::optional<Usage> running;
  if (generation_.options.continuous_usage) running = usage();
  const bool says_nothing = !choice.has_content && choice.call_ids.empty();
  const auto empty_content = !finish_reason.empty() && says_nothing ? EmptyContent::kWrite : EmptyContent::kOmit;
  chunks.push_back(writer_.chunk(index, delta, {finish_reason, empty_content}, running));
}

void GenerationRun::absorb_token(std::size_t index, const request::TokenEvent& event,
                                 std::vector<std::string>& chunks) {
  Choice& choice = choices_[index];
  const base::Nanoseconds now = service_.clock().now();
  if (!first_token_.has_value()) {
    first_token_ = now;
    service_.metrics().observe_first_token(seconds(now - arrival_));
  }
  if (choice.last_token.count() > 0) service_.metrics().observe_inter_token(seconds(now - choice.last_token));
  choice.last_token = now;
  begin_choices(chunks);
  end_prompt(index, chunks);
  const bool was_stopped = choice.text.stopped();
  ChoiceDelta delta = choice.text.push(event);
  // A stop string ends the sequence from outside; its terminal event then ends the choice.
  if (choice.text.stopped() && !was_stopped) service_.abort_choice(generation_, index);
  add_delta(index, std::move(delta), {}, chunks);
}

void GenerationRun::absorb_prompt_logprobs(std::size_t index, const request::PromptLogprobsEvent& event,
                                           std::vector<std::string>& chunks) {
  begin_choices(chunks);
  std::optional<EchoedPrompt>& prompt = choices_[index].prompt;
  if (prompt.has_value()) add_delta(index, prompt->push(event), {}, chunks);
}

void GenerationRun::end_prompt(std::size_t index, std::vector<std::string>& chunks) {
  std::optional<EchoedPrompt>& prompt = choices_[index].prompt;
  if (!prompt.has_value()) return;
  ChoiceDelta rest = prompt->finish();
  prompt.reset();
  add_delta(index, std::move(rest), {}, chunks);
}

void GenerationRun::end_choice(std::size_t index, request::FinishReason reason, std::vector<std::string>& chunks) {
  Choice& choice = choices_[index];
  begin_choices(chunks);
  end_prompt(index, chunks);
  choice.over = true;
  --open_choices_;
  service_.metrics().observe_finished(seconds(service_.clock().now() - arrival_), reason);
  if (choice.report.handoff_ns > 0) service_.metrics().observe_handoff(milliseconds(choice.report.handoff_ns) * 1e-3);
  ChoiceDelta last =
      choice.text.finish(reason == request::FinishReason::kStop ? text::Ending::kByItself : text::Ending::kCut);
  // An answer that was cut off ends as it was cut off, whatever calls are in it.
  const bool by_itself = reason == request::FinishReason::kStop && !choice.text.stopped();
  choice.answer.finish_reason =
      by_itself && choice.text.complete_calls() > 0 ? "tool_calls" : request::finish_reason_name(reason);
  add_delta(index, std::move(last), choice.answer.finish_reason, chunks);
  if (open_choices_ == 0 && std::exchange(live_, false)) service_.finished(generation_);
}

void GenerationRun::absorb(std::size_t index, router::SequenceEvent event, std::vector<std::string>& chunks) {
  Choice& choice = choices_[index];
  if (choice.over || error_.has_value()) return;
  std::visit(Match{[&](request::TokenEvent& token) { absorb_token(index, token, chunks); },
                   [&](request::PromptLogprobsEvent& prompt) { absorb_prompt_logprobs(index, prompt, chunks); },
                   [&](request::SequenceFinished& finished) {
                     choice.report = finished.report;
                     end_choice(index, choice.text.stopped() ? request::FinishReason::kStop : finished.reason, chunks);
                   },
                   [&](request::SequenceFailed& failed) {
                     choice.report = failed.report;
                     // Only the sequence that we ourselves stopped at a stop string has ended well.
                     if (choice.text.stopped() && failed.status.code() == base::StatusCode::kCancelled) {
                       return end_choice(index, request::FinishReason::kStop, chunks);
                     }
                     choice.over = true;
                     error_ = from_status(failed.status);
                     cancel();
                   }},
             event);
}

Usage GenerationRun::usage() const {
  Usage usage;
  usage.prompt_tokens = generation_.prompt_tokens;
  // Choices of one prompt share it: the prompt was cached as far as its first choice found it.
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    usage.completion_tokens += choices_[i].text.tokens();
    if (i % static_cast<std::size_t>(generation_.options.n) == 0)
      usage.cached_tokens += choices_[i].report.cached_tokens;
    usage.integrity_recomputes += choices_[i].report.integrity_recomputes;
  }
  return usage;
}

std::optional<std::string> GenerationRun::usage_chunk() const {
  if (!generation_.options.include_usage) return std::nullopt;
  return writer_.usage_chunk(usage());
}

std::string GenerationRun::whole() const {
  std::vector<AnswerChoice> answers;
  answers.reserve(choices_.size());
  for (const Choice& choice : choices_) answers.push_back(choice.answer);
  return writer_.whole(answers, usage());
}

std::string GenerationRun::summary() const {
  request::SequenceReport sum;
  std::int64_t tokens = 0;
  for (const Choice& choice : choices_) {
    const request::SequenceReport& report = choice.report;
    tokens += choice.text.tokens();
    sum.prefill_kv = report.prefill_kv;
    sum.decode_kv = report.decode_kv;
    sum.cached_tokens += report.cached_tokens;
    sum.handoff_pages += report.handoff_pages;
    sum.handoff_source_bytes += report.handoff_source_bytes;
    sum.handoff_wire_bytes += report.handoff_wire_bytes;
    sum.preemptions += report.preemptions;
    sum.integrity_recomputes += report.integrity_recomputes;
    sum.verified_steps += report.verified_steps;
    sum.prefill_ns += report.prefill_ns;
    sum.handoff_ns += report.handoff_ns;
    sum.decode_ns = std::max(sum.decode_ns, report.decode_ns);
  }
  const base::Nanoseconds now = service_.clock().now();
  const std::string outcome = error_.has_value() ? "failed (" + error_->code + ")" : done() ? "done" : "client gone";
  std::string text = fmt::format("request {}: {}\n", generation_.options.request_id, outcome);
  text += fmt::format("  prompt    {} tokens, {} from the prefix cache; prefill KV {}, {:.1f} ms\n",
                      generation_.prompt_tokens, sum.cached_tokens, ops::kv_format_name(sum.prefill_kv),
                      milliseconds(sum.prefill_ns));
  if (sum.handoff_pages > 0) {
    text += fmt::format("  handoff   {} pages, {} as {} -> {} as {}, {:.1f} ms\n", sum.handoff_pages,
                        bytes_text(sum.handoff_source_bytes), ops::kv_format_name(sum.prefill_kv),
                        bytes_text(sum.handoff_wire_bytes), ops::kv_format_name(sum.decode_kv),
                        milliseconds(sum.handoff_ns));
  }
  text += fmt::format("  decode    {} tokens, decode KV {}, {} steps with pages verified, {} preemptions", tokens,
                      ops::kv_format_name(sum.decode_kv), sum.verified_steps, sum.preemptions);
  if (sum.integrity_recomputes > 0) {
    text += fmt::format(", {} recomputes after failed page checks", sum.integrity_recomputes);
  }
  if (tokens > 1 && first_token_.has_value() && sum.decode_ns > 0) {
    const std::size_t choices = choices_.size();
    text += fmt::format(", {:.1f} tokens/s", static_cast<double>(tokens - static_cast<std::int64_t>(choices)) * 1e9 /
                                                 static_cast<double>(sum.decode_ns));
  }
  const base::Nanoseconds first = first_token_.value_or(now) - arrival_;
  text += fmt::format("\n  time      first token after {:.1f} ms, {:.1f} ms in all", seconds(first) * 1e3,
                      seconds(now - arrival_) * 1e3);
  return text;
}

}  // namespace tessera::server
