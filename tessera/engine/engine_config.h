// Everything an engine is told at start. One struct, filled by flags and a file (apps/tessera), validated by
// Engine::create.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tessera/base/clock.h"
#include "tessera/engine/step_listener.h"
#include "tessera/engine/step_observer.h"
#include "tessera/kv_cache/integrity.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/request/messages.h"

namespace tessera::engine {

// Engines of one process may share a model; its memory then counts in one engine's budget only.
enum class WeightMemory : std::uint8_t { kCounted, kCountedElsewhere };

struct HandoffConfig {
  // How long an engine bears the other's silence, and how long the move of a sequence takes at most once the decode
  // engine has given it pages; then both let go. The wait for those pages is a queue and has no limit.
  base::Nanoseconds timeout = std::chrono::seconds(120);
  // Sequences of a prefill engine that compute, or wait for pages on the decode engine, at most: further prompts wait
  // uncomputed, in order, so that a decode engine without room is not prefilled for without end.
  std::int64_t prefill_ahead_max = 16;
  std::int32_t chunk_pages = 16;      // Pages of one layer in a message, at most.
  std::int32_t chunks_per_tick = 16;  // Sent between two steps, at most.
  // The digest of the weights that compute prompts; the engines of a pair must be given the same. Empty: the digest of
  // this engine's own model.
  std::string prompt_model_digest;
};

// What is proved of KV pages, and what becomes of a sequence when the proof fails.
struct IntegrityConfig {
  kv_cache::IntegrityLevel level = kv_cache::IntegrityLevel::kTags;
  // Levels with digests: pages whose bytes are checked in the background, whether anybody reads them or not. 0: none.
  std::int64_t sweep_pages_per_second = 64;
  kv_cache::OnIntegrityError on_error = kv_cache::OnIntegrityError::kAbort;
  // Of one sequence; after so many it ends with the error.
  std::int32_t recomputes_max = 3;
  // Of pages in quarantine that an audit rewrites between two steps, about; at least a page.
  std::int64_t audit_bytes_per_turn = 16 << 20;
};

struct EngineConfig {
  request::EngineId id = 0;  // Also its number as a peer in handoffs.
  request::EngineRole role = request::EngineRole::kUnified;
  ops::KvFormat kv_format = ops::KvFormat::kBF16;
  std::int32_t page_size = 64;
  std::int64_t pages = 0;                // 0: as many as the memory budget leaves room for.
  std::int64_t memory_budget_bytes = 0;  // Of all lines of the memory plan; 0: no limit, and `pages` is set.
  WeightMemory weight_memory = WeightMemory::kCounted;
  std::int64_t running_max = 64;            // Sequences that hold pages at once; rows of a step.
  std::int64_t chunked_prefill_size = 512;  // Prompt (and replay) tokens of one step.
  // Of them, those whose log-probabilities are wanted: each has a row in the logits' memory.
  std::int64_t scored_prompt_size = 128;
  std::int64_t context_tokens_max = 0;  // Of one sequence; 0: what the model allows.
  std::int64_t sequences_max = 4096;    // Waiting and running; more fail with resource_exhausted.
  std::int64_t commands_max = 8192;     // In the queue; more are refused by try_send.
  base::Nanoseconds audit_interval = std::chrono::seconds(60);  // Between checks of the page accounts, when idle.
  IntegrityConfig integrity;
  HandoffConfig handoff;
  StepListener* listener = nullptr;  // Must outlive the engine.
  StepObserver* observer = nullptr;  // Tests only; must outlive the engine.
};

}  // namespace tessera::engine
