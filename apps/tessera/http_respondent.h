// A model behind an OpenAI-compatible server, asked over HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http_client.h"
#include "tessera/quality/respondent.h"

namespace tessera::app {

struct RespondentOptions {
  HttpClient::Options http;
  std::string model;  // Its name there; empty: the only one that the server has.
};

// Texts come from /v1/chat/completions and /v1/completions, tokens from /tokenize, scores from /v1/completions with
// echo and logprobs, as tessera, vLLM and SGLang have them. A server that lacks one of these can still be asked what
// needs only the others. data_loss: an answer is not what the API has (no JSON, content that is no text, arguments that
// are no text, another finish_reason than stop, length and tool_calls), and not taken for the model's.
class HttpRespondent : public quality::Respondent {
 public:
  // Asks the server for its models. not_found: it has no model of that name, or several and none was named. `stop`
  // outlives the respondent.
  static base::Result<std::unique_ptr<HttpRespondent>> connect(const RespondentOptions& options,
                                                               const std::atomic<bool>& stop);
  // Says how many requests were sent again, because the server was busy or the connection broke.
  ~HttpRespondent() override;

  const quality::RespondentInfo& info() const override { return info_; }
  base::Result<quality::Answer> chat(const quality::ChatQuestion& question) override;
  base::Result<quality::Answer> complete(const quality::CompletionQuestion& question) override;
  base::Result<std::vector<quality::TokenId>> encode_prompt(std::string_view text) override;
  base::Result<std::vector<quality::TokenId>> encode(std::string_view text) override;
  base::Result<std::vector<quality::TokenId>> encode_chat(const quality::ChatQuestion& question) override;
  base::Result<std::vector<quality::TokenScore>> score(std::span<const quality::TokenId> tokens,
                                                       std::size_t first) override;

 private:
  HttpRespondent(const RespondentOptions& options, const std::atomic<bool>& stop) : http_(options.http, stop) {}
  base::Status read_models(const std::string& wanted);
  base::Result<std::vector<quality::TokenId>> tokenize(const std::string& body);

  HttpClient http_;
  quality::RespondentInfo info_;
  // A tessera scores a prompt without drawing a token after it; others want to draw one.
  bool scores_alone_ = false;
};

}  // namespace tessera::app
