// Runs a model over a few sequences without an engine: pages, verification and forward passes, one call a step. For
// tests that judge logits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/page_table.h"
#include "tessera/kv_cache/verifier.h"
#include "tessera/models/model.h"
#include "tessera/ops/backend.h"

namespace tessera::test_support {

struct RunnerOptions {
  ops::KvFormat kv_format = ops::KvFormat::kF32;
  std::int32_t page_size = 64;
  std::int64_t rows = 1;         // Sequences, side by side.
  std::int64_t tokens_max = 64;  // Of one step.
  std::int64_t context_max = 256;
};

// The new tokens of one sequence in a step; may be empty.
struct RunnerRow {
  std::int64_t sequence = 0;
  std::span<const std::int32_t> tokens;
  models::RowPhase phase = models::RowPhase::kPrompt;
};

enum class WantedLogits { kAll, kLastOfEachRow };

class SequenceRunner {
 public:
  // The model and its backend must outlive it. Checks on failure: a test's sizes are its own business.
  SequenceRunner(const models::Model& model, ops::Backend& backend, const RunnerOptions& options);

  // Appends the rows' tokens to their sequences in one forward pass. Returns logits [wanted tokens, vocab] in batch
  // order, in host memory. A check that fails, or a non-finite K or V, ends the test program.
  std::vector<float> step(std::span<const RunnerRow> rows, WantedLogits wanted);
  // The same for one sequence.
  std::vector<float> step(std::span<const std::int32_t> tokens, WantedLogits wanted, std::int64_t sequence = 0,
                          models::RowPhase phase = models::RowPhase::kPrompt);

  // Sequence `to`, which must be empty here, takes over the tokens of the source's sequence `from`: its pages are
  // gathered, converted to this runner's KV format and scattered, and their digests compared. The source keeps its own.
  void take_over(SequenceRunner& source, std::int64_t from, std::int64_t to);

  std::int64_t length(std::int64_t sequence) const { return sequences_[static_cast<std::size_t>(sequence)].length; }
  // Forgets the sequence's tokens and frees its pages.
  void reset(std::int64_t sequence);
  // Called after every layer of a step; may be empty.
  void on_layer(std::function<void(int layer)> call) { on_layer_ = std::move(call); }
  models::Workspace& workspace() { return *workspace_; }
  // How often after_layer was called in the last step; equals the number of layers.
  std::int64_t layers_seen() const { return layers_seen_; }

 private:
  struct Sequence {
    std::vector<kv_cache::Lease> leases;
    std::int32_t length = 0;
  };
  const models::Model& model_;
  ops::Backend& backend_;
  const RunnerOptions options_;
  std::unique_ptr<ops::Stream> stream_;
  std::unique_ptr<kv_cache::PagePool> pool_;
  std::unique_ptr<kv_cache::PageTable> table_;
  std::unique_ptr<kv_cache::Verifier> verifier_;
  std::unique_ptr<models::Workspace> workspace_;
  ops::Buffer token_ids_;
  ops::Buffer positions_;
  ops::Buffer nonfinite_;
  ops::Buffer logits_;
  std::vector<Sequence> sequences_;
  std::int64_t layers_seen_ = 0;
  std::function<void(int layer)> on_layer_;
};

}  // namespace tessera::test_support
