// One engine: a pool of KV pages, a model, and a loop on a thread of its own that serves sequences over both. It is
// driven by plain messages only (tessera/request/messages.h): commands through try_send, events through the queue it
// was given. So the driver can as well sit in another process.
//
// Life: create (plans and allocates all memory), start, serve, stop. try_send and info may be used from any thread;
// everything else from the thread that owns the engine.
#pragma once

#include <memory>
#include <thread>

#include "tessera/engine/engine_config.h"
#include "tessera/engine/engine_loop.h"
#include "tessera/engine/memory_plan.h"
#include "tessera/request/messages.h"

namespace tessera::engine {

class Engine final : public request::EngineEndpoint {
 public:
  static base::Result<std::unique_ptr<Engine>> create(const EngineConfig& config, EngineParts parts);
  ~Engine() override;  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const request::EngineInfo& info() const override;
  bool try_send(request::EngineCommand command) override;

  // What the device memory is spent on; for the log at start.
  const MemoryPlan& memory_plan() const;

  void start();
  // Ends the thread after the step that is running. Sequences that live then are lost without an event: the driver
  // stops first (Router::stop). Takes no command from now on. Idempotent.
  void stop();

  // The loop, for who turns it by hand or looks at what is left; not while the thread runs.
  EngineLoop& loop();

 private:
  Engine(std::shared_ptr<CommandInbox> inbox, std::unique_ptr<EngineLoop> loop);
  const std::shared_ptr<CommandInbox> inbox_;
  const std::unique_ptr<EngineLoop> loop_;
  std::jthread thread_;
};

}  // namespace tessera::engine
