// scripted_server: for each chat format that there is, an HTTP server whose model writes what the conversation tells it
// to: what stands between the prompt's last byte 1 and the byte 2 after it, control tokens where it spells them
// (marked_tokens()), a stop token at its end. Prints "FORMAT PORT" for each and an empty line, and ends with its input.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/logging.h"
#include "tessera/router/router.h"
#include "tessera/server/http_server.h"
#include "tessera/server/service.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/scripted_engine.h"

namespace tessera::test_support {
namespace {

constexpr std::int64_t kContextTokens = 1 << 17;

class ScriptedServer {
 public:
  explicit ScriptedServer(std::string_view format_name)
      : tokenizer_(byte_tokenizer(family_control_tokens())),
        engine_(events_, [this](const request::SequenceSpec& spec) { return play(spec); }, kContextTokens) {
    auto format = text::ChatFormat::by_name(format_name, *tokenizer_);
    TESSERA_CHECK(format.has_value(), format.error().message());
    format_ = std::move(*format);
    router_ = std::move(*router::Router::create({}, {&engine_}, events_, clock_));
    router_->start();
    server::ServiceOptions options;
    options.served_model_name = "toy";
    options.version = "1.2.3";
    options.vocab_size = tokenizer_->vocab_size();
    service_ = std::make_unique<server::Service>(options, *tokenizer_, format_.get(), *router_, clock_);
    server::HttpServerOptions http_options;
    http_options.port = 0;
    auto http = server::HttpServer::start(http_options, *service_);
    TESSERA_CHECK(http.has_value(), http.error().message());
    http_ = std::move(*http);
  }
  ~ScriptedServer() {
    http_->stop();
    router_->stop();
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  int port() const { return http_->port(); }

 private:
  Script play(const request::SequenceSpec& spec) const {
    const auto begin = std::ranges::find(spec.prompt.rbegin(), spec.prompt.rend(), 1).base();
    const auto end = std::find(begin, spec.prompt.end(), 2);
    Script script{.tokens = marked_tokens(std::string(begin, end))};
    script.tokens.push_back(format_->stop_token_ids().front());
    return script;
  }

  base::SystemClock clock_;
  request::EngineEventQueue events_{1 << 17};
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<const text::ChatFormat> format_;
  ScriptedEngine engine_;
  std::unique_ptr<router::Router> router_;
  std::unique_ptr<server::Service> service_;
  std::unique_ptr<server::HttpServer> http_;
};

}  // namespace
}  // namespace tessera::test_support

int main() {
  if (const tessera::base::Status status = tessera::base::set_log_level("error"); !status.ok()) return 1;
  std::vector<std::unique_ptr<tessera::test_support::ScriptedServer>> servers;
  for (const std::string_view name : tessera::text::ChatFormat::names()) {
    servers.push_back(std::make_unique<tessera::test_support::ScriptedServer>(name));
    std::printf("%s %d\n", std::string(name).c_str(), servers.back()->port());
  }
  std::puts("");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
