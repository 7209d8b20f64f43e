// One generation from start to end, apart from sockets: absorbs the sequences' events and gives the answer, in chunks
// or whole. Used from one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "tessera/server/answer.h"
#include "tessera/server/api_error.h"
#include "tessera/server/choice_text.h"
#include "tessera/server/echoed_prompt.h"
#include "tessera/server/service.h"

namespace tessera::server {

class GenerationRun {
 public:
  GenerationRun(Service& service, Generation generation);
  // Aborts what is still live.
  ~GenerationRun();
  GenerationRun(const GenerationRun&) = delete;
  GenerationRun& operator=(const GenerationRun&) = delete;

  // Starts all sequences, or none and says why. `deliver` is called on the router's thread and must not block; whoever
  // gets the events passes them to absorb, on one thread.
  std::optional<ApiError> start(const std::function<void(std::size_t choice, router::SequenceEvent)>& deliver);

  // Takes one event in. When streaming, appends the payloads ("data: " not included) that it gives to `chunks`.
  void absorb(std::size_t choice, router::SequenceEvent event, std::vector<std::string>& chunks);
  // All choices are over, or one has failed.
  bool done() const { return error_.has_value() || open_choices_ == 0; }
  const std::optional<ApiError>& error() const { return error_; }
  // After done() without an error: the last chunk of a stream, if usage was asked for; the whole answer otherwise.
  std::optional<std::string> usage_chunk() const;
  std::string whole() const;
  // The client has gone or waited too long: everything is aborted, nothing comes any more.
  void cancel();

  const Generation& generation() const { return generation_; }
  // One line for the log: what happened to the request. No content.
  std::string summary() const;

 private:
  struct Choice {
    ChoiceText text;
    std::optional<EchoedPrompt> prompt;  // Until all of it was told; where it comes with log-probabilities.
    AnswerChoice answer;
    request::SequenceReport report;
    std::unordered_set<std::string> call_ids = {};  // Of the calls that have begun.
    bool has_content = false;
    bool over = false;
    base::Nanoseconds last_token{0};
  };
  void absorb_token(std::size_t choice, const request::TokenEvent& event, std::vector<std::string>& chunks);
  void absorb_prompt_logprobs(std::size_t choice, const request::PromptLogprobsEvent& event,
                              std::vector<std::string>& chunks);
  // Before what follows a prompt.
  void end_prompt(std::size_t choice, std::vector<std::string>& chunks);
  void end_choice(std::size_t choice, request::FinishReason reason, std::vector<std::string>& chunks);
  // `finish_reason` is empty but for the choice's last delta.
  void add_delta(std::size_t choice, ChoiceDelta delta, std::string_view finish_reason,
                 std::vector<std::string>& chunks);
  // With the first event of any choice, in their order: clients expect the first chunk to be the first choice's.
  void begin_choices(std::vector<std::string>& chunks);
  // The model's own, unless it is none, one that this choice has had, or one that would not be taken back.
  std::string unique_call_id(Choice& choice, std::string id);
  Usage usage() const;

  Service& service_;
  Generation generation_;
  AnswerWriter writer_;
  std::vector<Choice> choices_;
  std::size_t open_choices_ = 0;
  std::optional<ApiError> error_;
  base::Nanoseconds arrival_;
  std::optional<base::Nanoseconds> first_token_;
  bool begun_ = false;                // begin_choices() was called.
  bool has_prompt_logprobs_ = false;  // Their memory was taken.
  bool live_ = false;                 // Started, and not yet given back to the service.
};

}  // namespace tessera::server
