// A server in this process: backend, model, engines, transport, router, service, sockets. `tessera serve` shows one to
// the world; `tessera evaluate` asks those that it starts itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "serve.h"
#include "tessera/base/clock.h"
#include "tessera/base/machine_memory.h"
#include "tessera/base/status.h"
#include "tessera/engine/engine.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/models/model.h"
#include "tessera/router/router.h"
#include "tessera/server/http_server.h"
#include "tessera/server/service.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"

namespace tessera::app {

// Everything that runs, in the order in which it is made; it comes down in reverse. The caller has blocked the ending
// signals (signals.h): its threads leave them to who made it.
class Serving {
 public:
  // Returns once the engines have spoken, so that no first request meets one that has not. Errors name the flag, the
  // file or the engine.
  static base::Result<std::unique_ptr<Serving>> start(const ServeOptions& options);
  ~Serving() { stop(); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  std::uint16_t port() const { return http_->port(); }
  server::Service& service() { return *service_; }
  bool has_chat_format() const { return chat_format_ != nullptr; }

  // Lets running answers end, for so long at most.
  void drain(std::chrono::seconds timeout);
  // Ends all that is under way. Idempotent.
  void stop();

 private:
  Serving() : transport_(kv_transfer::LoopbackOptions{}), events_(1 << 16) {}

  base::Status load(const ServeOptions& options);
  base::Status make_engines(const ServeOptions& options);
  base::Status make_server(const ServeOptions& options);
  base::Status wait_ready();

  base::SystemClock clock_;
  base::MachineMemory memory_;  // As it was before anything was loaded.
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<const text::ChatFormat> chat_format_;
  server::ParserChoice parsers_;
  std::unique_ptr<models::Model> model_;
  kv_transfer::LoopbackTransport transport_;
  request::EngineEventQueue events_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::unique_ptr<router::Router> router_;
  std::unique_ptr<server::Service> service_;
  std::unique_ptr<server::HttpServer> http_;
};

}  // namespace tessera::app
