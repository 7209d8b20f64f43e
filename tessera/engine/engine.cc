#include "tessera/engine/engine.h"

#include <utility>

#include "tessera/base/check.h"

namespace tessera::engine {

base::Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config, EngineParts parts) {
  auto inbox = std::make_shared<CommandInbox>(static_cast<std::size_t>(config.commands_max));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<EngineLoop> loop, EngineLoop::create(config, std::move(parts), inbox));
  return std::unique_ptr<Engine>(new Engine(std::move(inbox), std::move(loop)));
}

Engine::Engine(std::shared_ptr<CommandInbox> inbox, std::unique_ptr<EngineLoop> loop)
    : inbox_(std::move(inbox)), loop_(std::move(loop)) {}

Engine::~Engine() { stop(); }

const request::EngineInfo& Engine::info() const { return loop_->info(); }

bool Engine::try_send(request::EngineCommand command) { return inbox_->try_push(std::move(command)); }

const MemoryPlan& Engine::memory_plan() const { return loop_->memory_plan(); }

void Engine::start() {
  TESSERA_CHECK(!thread_.joinable(), "an engine is started once");
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (loop_->turn() == Turn::kIdle) inbox_->wait_for(loop_->idle_time());
    }
  });
}

void Engine::stop() {
  inbox_->close();
  thread_.request_stop();
  inbox_->wake();
  if (thread_.joinable()) thread_.join();
}

EngineLoop& Engine::loop() {
  TESSERA_CHECK(!thread_.joinable(), "the engine's thread owns the loop while it runs");
  return *loop_;
}

}  // namespace tessera::engine
