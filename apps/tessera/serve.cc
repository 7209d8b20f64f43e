#include "serve.h"

#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat_client.h"
#include "chat_examples.h"
#include "serving.h"
#include "signals.h"
#include "tessera/base/logging.h"

namespace tessera::app {

base::Status run_serve(const ServeOptions& options_in) {
  ServeOptions options = options_in;
  if (options.once.has_value()) options.port = 0;
  TESSERA_RETURN_IF_ERROR(base::set_log_level(options.log_level));

  // Every thread made from here on leaves the signals to this one.
  const sigset_t signals = TakesSignals::ending_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  std::vector<std::string> examples;
  if (options.chat) {
    TESSERA_ASSIGN_OR_RETURN(examples, read_chat_examples(options.model));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving, Serving::start(options));
  if (options.once.has_value() || options.chat) {
    const TakesSignals interruptible;  // Of the clients of this server, this terminal is the one that matters.
    ChatOptions chat;
    chat.temperature = options.temperature;
    chat.server.host = options.host == "0.0.0.0" ? "127.0.0.1" : options.host;
    chat.server.port = serving->port();
    if (!options.api_keys.empty()) chat.server.api_key = options.api_keys.front();
    if (!serving->has_chat_format()) {
      chat.ask_by = AskBy::kCompletion;
      base::log().warn("without a chat format each prompt is completed as it is, by at most {} tokens",
                       kCompletionTokens);
    }
    if (options.once.has_value()) {
      chat.temperature = 0.0;  // The same answer every time.
      return ask_once(chat, *options.once);
    }
    return run_chat(chat, {.greeting = fmt::format("{} is served at http://{}:{}/v1", serving->service().model_name(),
                                                   chat.server.host, chat.server.port),
                           .examples = std::move(examples)});
  }
  base::log().info("serving {} at http://{}:{}/v1", serving->service().model_name(), options.host, serving->port());
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  base::log().info("{}: ending", signal_number == SIGTERM ? "SIGTERM" : "SIGINT");
  // A second signal ends it at once.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  serving->drain(std::chrono::seconds(options.drain_seconds));
  return base::ok_status();
}

}  // namespace tessera::app
