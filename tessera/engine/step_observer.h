// Where tests of integrity stand between an engine and its checks: with a StepObserver they may change, at the moments
// that matter, everything that the page check must not trust. No production code makes one.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/engine/step_listener.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/page_table.h"

namespace tessera::engine {

struct StepView {
  std::span<const StepRowView> rows;
  kv_cache::PagePool& pool;
  kv_cache::PageTable& page_table;
  std::span<std::int64_t> slot_mapping;  // [tokens]; not yet uploaded in before_check.
};

// Called on the engine's thread.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Everything is prepared; the first check is about to be enqueued.
  virtual void before_check(const StepView& step) = 0;
  // The forward pass and the sampling are enqueued; the second check is about to be.
  virtual void before_second_check(const StepView& step) = 0;
  // What the checks say of every row; the engine has not acted on it yet.
  virtual void after_checks(const StepView& step, std::span<const RowOutcome> outcomes) {
    static_cast<void>(step);
    static_cast<void>(outcomes);
  }
};

}  // namespace tessera::engine
