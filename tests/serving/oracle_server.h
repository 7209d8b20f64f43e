// Engines over the context oracle, joined by a loopback transport and driven by a router: a whole server without
// sockets, text or threads of its own. Who makes one turns its engines and pumps its router, or starts their threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/engine/engine.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/router/router.h"
#include "tests/support/context_oracle_model.h"

namespace tessera::test_support {

struct OracleEngine {
  engine::EngineConfig config;
  // Called by the engine's model, see ContextOracleOptions.
  std::function<void()> before_forward;
  std::function<void(const models::ForwardBatch&)> on_batch;
  // Called with every command that the engine takes, under the router's lock.
  std::function<void(const request::EngineCommand&)> on_command = {};
};

struct OracleServerOptions {
  OracleKv kv = OracleKv::kKeysAndValues;
  std::int64_t context = 4096;
  std::size_t event_queue = 1 << 16;
  std::vector<OracleEngine> engines;
  router::RouterOptions router;
  kv_transfer::LoopbackOptions loopback;
  // Stands between an engine and its endpoint of the loopback transport. Empty: nothing does.
  std::function<std::unique_ptr<kv_transfer::Endpoint>(std::unique_ptr<kv_transfer::Endpoint>)> wrap_endpoint;
};

class OracleServer {
 public:
  // The backend and the clock outlive it. A configuration that is refused is a programmer's error.
  OracleServer(const OracleServerOptions& options, ops::Backend& backend, const base::Clock& clock);
  ~OracleServer();

  std::size_t engine_count() const { return engines_.size(); }
  engine::Engine& engine(std::size_t i);
  router::Router& router() { return *router_; }
  kv_transfer::LoopbackTransport& transport() { return *transport_; }
  // What an undisturbed run's KV is written by.
  Flavors flavors() const;

  // The engine ends as a process does that is killed. Its sequences are lost without a word to the router, its peers
  // see it gone, and what it is sent is refused, until restart_engine. Not while its thread runs.
  void end_engine(std::size_t i);
  bool has_engine(std::size_t i) const;
  // Another one takes its place; one that is still there ends so.
  void restart_engine(std::size_t i);
  void start_threads();
  // The router ends what lives; then the engines' threads end. Idempotent.
  void stop();

 private:
  class Seat;
  const OracleServerOptions options_;
  ops::Backend& backend_;
  const base::Clock& clock_;
  request::EngineEventQueue events_;
  std::unique_ptr<kv_transfer::LoopbackTransport> transport_;
  std::vector<std::unique_ptr<Seat>> engines_;
  std::unique_ptr<router::Router> router_;
  bool stopped_ = false;
};

}  // namespace tessera::test_support
