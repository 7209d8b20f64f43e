#include "own_engines.h"

#include <fmt/format.h>

#include <fstream>
#include <random>
#include <string>
#include <utility>

#include "http_respondent.h"
#include "serving.h"

namespace tessera::app {

namespace {

std::string random_key() {
  std::random_device device;
  std::string key;
  for (int i = 0; i < 4; ++i) key += fmt::format("{:08x}", device());
  return key;
}

ServeOptions serve_options(const PlanSpec& plan, bool quiet) {
  ServeOptions options;
  options.model = plan.model;
  options.role = plan.split ? "split" : "unified";
  options.prefill_kv_cache_dtype = ops::kv_format_name(plan.prefill_kv);
  options.decode_kv_cache_dtype = ops::kv_format_name(plan.decode_kv);
  options.max_running_requests = plan.batch;
  options.chunked_prefill_size = plan.chunk;
  options.backend = plan.backend;
  options.port = 0;
  options.api_keys = {random_key()};
  options.show_progress = !quiet;
  return options;
}

base::Result<std::string> read_key(const std::string& path) {
  std::ifstream file(path);
  std::string key;
  if (!std::getline(file, key) || key.empty()) {
    return base::failure(
        base::invalid_argument(fmt::format("api-key-file={}: expected a file whose first line is the key", path)));
  }
  return key;
}

// Comes down in reverse: what asks the server goes first.
class OwnEngines : public quality::Respondent {
 public:
  OwnEngines(std::unique_ptr<Serving> serving, std::unique_ptr<HttpRespondent> respondent)
      : serving_(std::move(serving)), respondent_(std::move(respondent)) {}

  const quality::RespondentInfo& info() const override { return respondent_->info(); }
  base::Result<quality::Answer> chat(const quality::ChatQuestion& question) override {
    return respondent_->chat(question);
  }
  base::Result<quality::Answer> complete(const quality::CompletionQuestion& question) override {
    return respondent_->complete(question);
  }
  base::Result<std::vector<quality::TokenId>> encode_prompt(std::string_view text) override {
    return respondent_->encode_prompt(text);
  }
  base::Result<std::vector<quality::TokenId>> encode(std::string_view text) override {
    return respondent_->encode(text);
  }
  base::Result<std::vector<quality::TokenId>> encode_chat(const quality::ChatQuestion& question) override {
    return respondent_->encode_chat(question);
  }
  base::Result<std::vector<quality::TokenScore>> score(std::span<const quality::TokenId> tokens,
                                                       std::size_t first) override {
    return respondent_->score(tokens, first);
  }

 private:
  std::unique_ptr<Serving> serving_;
  std::unique_ptr<HttpRespondent> respondent_;
};

}  // namespace

base::Result<std::unique_ptr<quality::Respondent>> start_plan(const PlanSpec& plan, bool quiet,
                                                              const std::atomic<bool>& stop) {
  RespondentOptions options;
  if (!plan.is_own()) {
    TESSERA_ASSIGN_OR_RETURN(options.http.server, parse_url(plan.url));
    if (!plan.api_key_file.empty()) {
      TESSERA_ASSIGN_OR_RETURN(options.http.server.api_key, read_key(plan.api_key_file));
    }
    options.model = plan.model;
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<HttpRespondent> respondent, HttpRespondent::connect(options, stop));
    return respondent;
  }
  const ServeOptions serve = serve_options(plan, quiet);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Serving> serving, Serving::start(serve));
  options.http.server.port = serving->port();
  options.http.server.api_key = serve.api_keys.front();
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<HttpRespondent> respondent, HttpRespondent::connect(options, stop));
  return std::make_unique<OwnEngines>(std::move(serving), std::move(respondent));
}

}  // namespace tessera::app
