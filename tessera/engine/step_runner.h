// One step of the device: from rows to outcomes. Builds the flat arrays of the batch, has the pages and the write slots
// checked, runs the model and the sampler on what the check let through, has everything checked again (and, as the
// level says, what was written digested, and what was read compared with its digests), and says of each row what came
// out. A token of a row may be emitted only if its outcome is clean; nothing else reads tokens. Used from
// the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/status.h"
#include "tessera/engine/memory_plan.h"
#include "tessera/engine/sequence.h"
#include "tessera/engine/step_listener.h"
#include "tessera/engine/step_observer.h"
#include "tessera/kv_cache/digest_checker.h"
#include "tessera/kv_cache/integrity.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_cache/page_table.h"
#include "tessera/kv_cache/verifier.h"
#include "tessera/models/model.h"
#include "tessera/ops/backend.h"
#include "tessera/sampling/token_sampler.h"

namespace tessera::engine {

struct StepLimits {
  std::int64_t rows_max = 0;
  std::int64_t tokens_max = 0;         // Over all rows.
  std::int64_t scored_tokens_max = 0;  // Likewise, of StepRow::scored.
  std::int64_t pages_per_row_max = 0;
  std::int64_t context_tokens_max = 0;  // Of one row.
};

enum class Draw : std::uint8_t { kNothing, kToken };

// Consecutive tokens of one sequence, all of its prompt or all generated. The sequence holds pages for start + count
// tokens.
struct StepRow {
  Sequence* sequence = nullptr;
  std::int64_t start = 0;
  std::int64_t count = 0;
  Draw draw = Draw::kNothing;  // Whether the token after the last one is drawn.
  // Of so many of the row's tokens, the first ones, the token after it is scored. It is one of the prompt's.
  std::int64_t scored = 0;
};

enum class RowResult : std::uint8_t {
  kClean,
  kCheckFailed,  // Before or after, or of bytes: verdict says why. Nothing that the row computed means anything.
  kNonFinite,    // Keys, values or logits were NaN or infinite.
};

struct ScoredToken {
  ops::SampledToken token;
  std::vector<sampling::TopToken> top;
};

struct RowOutcome {
  RowResult result = RowResult::kClean;
  ops::RowVerdict verdict;
  ops::SampledToken token;  // Of a clean row that draws.
  std::vector<sampling::TopToken> top;
  std::vector<ScoredToken> scored;  // Of a clean row: StepRow::scored many.
};

class StepRunner {
 public:
  struct Parts {
    ops::Backend& backend;
    ops::Stream& stream;
    const models::Model& model;
    const base::Clock& clock;
    kv_cache::IntegrityLevel integrity = kv_cache::IntegrityLevel::kTags;
    kv_cache::DigestChecker* digests = nullptr;  // Levels with digests need one.
    StepListener* listener = nullptr;
    StepObserver* observer = nullptr;
    kv_cache::VerifierFactory make_verifier = {};
  };
  // Allocates everything that depends on the limits, and adds a line for each to the plan.
  static base::Result<std::unique_ptr<StepRunner>> create(const Parts& parts, const StepLimits& limits,
                                                          MemoryPlan& plan);

  // Runs one step over at most rows_max rows with at most tokens_max tokens, of which at most scored_tokens_max are
  // followed by one that is scored; every row has at least one. The outcomes are valid until the next run.
  std::span<const RowOutcome> run(kv_cache::PagePool& pool, std::span<const StepRow> rows);

  // Of step_ns, what the checks took, digests included; and of that, the digests.
  std::int64_t check_ns() const { return check_ns_; }
  std::int64_t digest_ns() const { return digest_ns_; }
  std::int64_t step_ns() const { return step_ns_; }

 private:
  struct Buffers;
  StepRunner(const Parts& parts, const StepLimits& limits);
  void build_batch(kv_cache::PagePool& pool, std::span<const StepRow> rows);
  StepView view(kv_cache::PagePool& pool);
  bool has(kv_cache::IntegrityLevel level) const { return parts_.integrity >= level; }
  void digest_written(kv_cache::PagePool& pool, const ops::WritableSlots& slots);
  std::span<const ops::RowVerdict> check_read(kv_cache::PagePool& pool, const ops::VerifiedPages& pages,
                                              std::span<const ops::RowVerdict> verdicts);

  const Parts parts_;
  const StepLimits limits_;
  std::unique_ptr<kv_cache::PageTable> page_table_;
  std::unique_ptr<kv_cache::Verifier> verifier_;
  std::unique_ptr<models::Workspace> workspace_;
  std::unique_ptr<sampling::TokenSampler> sampler_;
  ops::Buffer batch_storage_;   // token ids, positions, nonfinite flags
  ops::Buffer logits_storage_;  // [rows_max + scored_tokens_max, vocab] F32
  // Which sequence's leases each row of the page table holds (Sequence::leases_epoch), so that only rows that changed
  // are written.
  std::vector<std::uint64_t> table_epochs_;
  // Host side of the batch, reused.
  std::vector<std::int32_t> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> token_rows_;
  std::vector<std::int64_t> slot_mapping_;
  std::vector<std::int32_t> cu_seqlens_q_;
  std::vector<models::RowPhase> row_phases_;
  std::vector<std::int32_t> logit_tokens_;
  std::vector<std::uint8_t> nonfinite_;
  std::vector<kv_cache::RowExpectation> expectations_;
  std::vector<ops::SampleRow> sample_rows_;
  std::vector<StepRowView> row_views_;
  std::vector<RowOutcome> outcomes_;
  std::int64_t check_ns_ = 0;
  std::int64_t digest_ns_ = 0;
  std::int64_t step_ns_ = 0;
};

}  // namespace tessera::engine
