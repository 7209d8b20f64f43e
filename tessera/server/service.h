// What the server does, without sockets: requests become sequences, sequences' events become answers. Thread-safe; HTTP
// handlers call it, and so do tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/router/router.h"
#include "tessera/server/api_request.h"
#include "tessera/server/metrics.h"
#include "tessera/server/parser_choice.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"

namespace tessera::server {

// The name under which answers carry reasoning: SGLang's and DeepSeek's, or vLLM's newer one.
enum class ReasoningField : std::uint8_t { kReasoningContent, kReasoning };

// Who may be served from pages that another's prompt left in the prefix cache.
enum class PrefixSharing : std::uint8_t {
  kTenant,     // Whoever shows the same API key.
  kEverybody,  // A hit tells one tenant, by its time, what others have asked.
};

struct ServiceOptions {
  std::string served_model_name;
  std::string version;
  std::int64_t vocab_size = 0;  // Of the model; token ids in prompts are checked against it.
  ParserChoice parsers = {};    // Of chat answers.
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  PrefixSharing prefix_sharing = PrefixSharing::kTenant;
};

enum class GenerationKind : std::uint8_t { kChat, kCompletion };

// A validated request: everything that is needed to run it and to write its answer.
struct Generation {
  GenerationKind kind = GenerationKind::kChat;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;
  std::string model;   // The served name.
  std::string tenant;  // Whose it is: who may abort it.
  GenerationOptions options;
  std::vector<request::SequenceSpec> sequences;  // Choice i is sequences[i].
  // What precedes each choice's text; empty strings without echo. Of a sequence with prompt_logprobs it is what the
  // tokens of its prompt stand for.
  std::vector<std::string> echo;
  std::int64_t prompt_tokens = 0;      // Summed over prompts, not over choices.
  std::int64_t prompt_logprobs = 0;    // That the answer has, of all choices, alternatives included.
  text::OutputSyntax syntax = {};      // How the answer is taken apart; a completion's is not.
  std::vector<text::Tool> tools = {};  // That may be called.
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
};

class Service {
 public:
  // Everything passed by reference outlives the service. `chat_format` may be null: then chat is refused.
  Service(ServiceOptions options, const text::Tokenizer& tokenizer, const text::ChatFormat* chat_format,
          router::Router& router, const base::Clock& clock);

  ApiResult<Generation> prepare_chat(ChatRequest request, const std::string& request_id, const std::string& tenant);
  ApiResult<Generation> prepare_completion(CompletionRequest request, const std::string& request_id,
                                           const std::string& tenant);
  // Starts every sequence, or none. The subscriber gets (choice, event) on the router's thread and must not block.
  std::optional<ApiError> start(const Generation& generation,
                                const std::function<void(std::size_t choice, router::SequenceEvent)>& subscriber);
  // Whether the log-probabilities of the generation's prompts have room in memory beside those of all others. Then they
  // are given back once, when its answer is gone.
  bool take_prompt_logprobs(const Generation& generation);
  void give_back_prompt_logprobs(const Generation& generation);
  void abort_choice(const Generation& generation, std::size_t choice);
  // Ends the bookkeeping of a generation that was started. Call it once, when its answer is over.
  void finished(const Generation& generation);
  // Aborts the tenant's sequences with the client's request id (empty: all of the tenant's). How many sequences.
  std::int64_t abort_by_request_id(const std::string& request_id, const std::string& tenant);

  // "call_" and 24 random hexadecimal digits, for a call to which the model gave no id.
  std::string new_call_id();

  // A text that cannot fit the context is refused, not counted.
  ApiResult<std::string> tokenize(const TokenizeRequest& request) const;
  ApiResult<std::string> detokenize(const DetokenizeRequest& request) const;
  std::string models_json() const;
  ApiResult<std::string> model_json(std::string_view id) const;
  std::string server_info_json() const;
  std::string version_json() const;
  // The x-tessera-precision header: weights/KV of each phase and the checkpoint's digest.
  std::string precision_header() const;
  base::Status readiness() const { return router_.readiness(); }
  std::string metrics_text() const;
  void flush_cache() { router_.flush_prefix_cache(); }
  void audit_quarantined_pages() { router_.audit_quarantined_pages(); }

  Metrics& metrics() { return metrics_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::string& model_name() const { return options_.served_model_name; }
  router::Router& router() { return router_; }
  const base::Clock& clock() const { return clock_; }

 private:
  struct Precision {
    std::string prefill_weights, prefill_kv, decode_weights, decode_kv, digest;
  };
  std::optional<ApiError> check_model(const std::string& name) const;
  std::optional<ApiError> check_precision(const GenerationOptions& options) const;
  // As tokens, for a request of which `room` is how many there may be.
  ApiResult<std::vector<std::int32_t>> render(const text::Conversation& conversation,
                                              const text::RenderOptions& options, std::int64_t room) const;
  ApiResult<Generation> begin(GenerationKind kind, GenerationOptions options, const std::string& request_id);
  // Refuses a text that cannot have room, whatever its tokens are: before it is encoded, which would take long.
  std::optional<ApiError> check_length(std::int64_t tokens_min, std::int64_t room, const std::string& param) const;
  // How many tokens a prompt may have.
  std::int64_t prompt_room(const GenerationOptions& options) const;
  // Without `echo` the answer does not begin with the prompt.
  std::optional<ApiError> add_prompt(Generation& generation, const std::vector<std::int32_t>& prompt,
                                     const std::optional<std::string>& echo, const std::string& tenant);
  std::vector<std::int32_t> stop_ids(const GenerationOptions& options, GenerationKind kind) const;
  std::uint64_t random_number();

  const ServiceOptions options_;
  const text::Tokenizer& tokenizer_;
  const text::ChatFormat* chat_format_;
  router::Router& router_;
  const base::Clock& clock_;
  const std::int64_t started_;
  Precision precision_;
  Metrics metrics_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  struct Live {
    request::SequenceId id = 0;
    std::string tenant;
  };
  std::unordered_multimap<std::string, Live> live_by_request_id_;
  std::int64_t live_prompt_logprobs_ = 0;
};

}  // namespace tessera::server
