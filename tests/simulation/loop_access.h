// What a simulation sees of an engine that no client does: who is there, in which state, with which leases.
#pragma once

#include "tessera/engine/engine_loop.h"

namespace tessera::fault_injection {

struct LoopAccess {
  static engine::SequenceTable& table(engine::EngineLoop& loop) { return loop.table_; }
  // Whether the router has been told everything.
  static bool has_said_all(const engine::EngineLoop& loop) { return loop.outbox_.empty(); }
};

}  // namespace tessera::fault_injection
