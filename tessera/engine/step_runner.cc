#include "tessera/engine/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/sampling/stopping.h"

namespace tessera::engine {

namespace {

// The device arrays of a batch, one after another in one buffer.
struct BatchArrays {
  std::int32_t* token_ids;
  std::int32_t* positions;
  std::uint8_t* nonfinite;
  static std::int64_t bytes(std::int64_t tokens_max) {
    return 2 * base::round_up(tokens_max * 4, 256) + base::round_up(tokens_max, 256);
  }
  BatchArrays(std::byte* base, std::int64_t tokens_max)
      : token_ids(reinterpret_cast<std::int32_t*>(base)),
        positions(reinterpret_cast<std::int32_t*>(base + base::round_up(tokens_max * 4, 256))),
        nonfinite(reinterpret_cast<std::uint8_t*>(base + 2 * base::round_up(tokens_max * 4, 256))) {}
};

// Adds the time between construction and destruction to a sum.
class Stopwatch {
 public:
  Stopwatch(const base::Clock& clock, std::int64_t& sum) : clock_(clock), sum_(sum), start_(clock.now()) {}
  ~Stopwatch() { sum_ += (clock_.now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const base::Clock& clock_;
  std::int64_t& sum_;
  const base::Nanoseconds start_;
};

}  // namespace

StepRunner::StepRunner(const Parts& parts, const StepLimits& limits)
    : parts_(parts), limits_(limits), table_epochs_(static_cast<std::size_t>(limits.rows_max), 0) {}

base::Result<std::unique_ptr<StepRunner>> StepRunner::create(const Parts& parts, const StepLimits& limits,
                                                             MemoryPlan& plan) {
  TESSERA_CHECK(parts.integrity == kv_cache::IntegrityLevel::kTags || parts.digests != nullptr);
  std::unique_ptr<StepRunner> runner(new StepRunner(parts, limits));
  TESSERA_ASSIGN_OR_RETURN(runner->page_table_,
                           kv_cache::PageTable::create(parts.backend, limits.rows_max, limits.pages_per_row_max));
  plan.lines.push_back({"page table", runner->page_table_->device_bytes(),
                        fmt::format("{} rows of {} pages", limits.rows_max, limits.pages_per_row_max)});
  const kv_cache::VerifierLimits verifier_limits{
      .rows_max = limits.rows_max, .pages_per_row_max = limits.pages_per_row_max, .tokens_max = limits.tokens_max};
  TESSERA_ASSIGN_OR_RETURN(runner->verifier_, parts.make_verifier
                                                  ? parts.make_verifier(parts.backend, verifier_limits)
                                                  : kv_cache::Verifier::create(parts.backend, verifier_limits));
  plan.lines.push_back({"page verifier", runner->verifier_->device_bytes(),
                        fmt::format("tags, owners and sanitized rows for {} x {} pages, {} tokens a step",
                                    limits.rows_max, limits.pages_per_row_max, limits.tokens_max)});
  TESSERA_ASSIGN_OR_RETURN(
      runner->workspace_,
      parts.model.make_workspace({.tokens_max = limits.tokens_max, .context_tokens_max = limits.context_tokens_max}));
  plan.lines.push_back({"activations", runner->workspace_->device_bytes(),
                        fmt::format("workspace of the model for {} tokens a step, {} of context", limits.tokens_max,
                                    limits.context_tokens_max)});
  // Every row may draw a token besides what is scored.
  const std::int64_t logit_rows = limits.rows_max + limits.scored_tokens_max;
  const sampling::SamplerLimits sampler_limits{.rows_max = logit_rows,
                                               .top_logprobs_max = static_cast<std::int32_t>(std::min(
                                                   base::limits::kTopLogprobsMax, parts.model.config().vocab_size))};
  TESSERA_ASSIGN_OR_RETURN(runner->sampler_, sampling::TokenSampler::create(parts.backend, sampler_limits));
  const std::int64_t vocab = parts.model.config().vocab_size;
  const std::int64_t logits_bytes = logit_rows * vocab * 4;
  TESSERA_ASSIGN_OR_RETURN(runner->logits_storage_, parts.backend.allocate(logits_bytes, "logits"));
  plan.lines.push_back({"logits and sampling", logits_bytes + sampling::TokenSampler::device_bytes(sampler_limits),
                        fmt::format("{} rows of {} tokens in F32, and what is drawn", logit_rows, vocab)});
  const std::int64_t batch_bytes = BatchArrays::bytes(limits.tokens_max);
  TESSERA_ASSIGN_OR_RETURN(runner->batch_storage_, parts.backend.allocate(batch_bytes, "batch arrays"));
  plan.lines.push_back(
      {"batch arrays", batch_bytes, fmt::format("ids, positions, flags of {} tokens", limits.tokens_max)});
  return runner;
}

void StepRunner::build_batch(kv_cache::PagePool& pool, std::span<const StepRow> rows) {
  const std::int64_t page_size = pool.layout().page_size;
  token_ids_.clear();
  positions_.clear();
  token_rows_.clear();
  slot_mapping_.clear();
  cu_seqlens_q_.assign(1, 0);
  row_phases_.clear();
  logit_tokens_.clear();
  expectations_.clear();
  sample_rows_.clear();
  row_views_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const StepRow& row = rows[r];
    const Sequence& sequence = *row.sequence;
    const std::int64_t end = row.start + row.count;
    TESSERA_CHECK(row.count > 0 && base::ceil_div(end, page_size) <= std::ssize(sequence.leases));
    // What a token is depends on where it stands, not on whether this engine drew it: replayed tokens are generated
    // ones.
    const bool in_prompt = row.start < sequence.prompt_tokens();
    TESSERA_CHECK(!in_prompt || end <= sequence.prompt_tokens(), "a row of prompt and generated tokens");
    const std::int64_t scored_end = row.start + row.scored;
    TESSERA_CHECK(row.scored <= row.count && (row.scored == 0 || scored_end < sequence.prompt_tokens()));
    row_phases_.push_back(in_prompt ? models::RowPhase::kPrompt : models::RowPhase::kGenerated);
    row_views_.push_back({sequence.spec.id, sequence.leases, row.start, row.count, std::ssize(token_ids_)});
    for (std::int64_t p = row.start; p < end; ++p) {
      token_ids_.push_back(sequence.token_at(p));
      positions_.push_back(static_cast<std::int32_t>(p));
      token_rows_.push_back(static_cast<std::int32_t>(r));
      const kv_cache::Lease& lease = sequence.leases[static_cast<std::size_t>(p / page_size)];
      slot_mapping_.push_back(lease.page * page_size + p % page_size);
    }
    for (std::int64_t i = 0; i < row.scored; ++i) {
      logit_tokens_.push_back(cu_seqlens_q_.back() + static_cast<std::int32_t>(i));
      sample_rows_.push_back(sampling::prompt_row(sequence.spec.sampling, sequence.token_at(row.start + i + 1)));
    }
    cu_seqlens_q_.push_back(static_cast<std::int32_t>(token_ids_.size()));
    expectations_.push_back({sequence.leases, static_cast<std::int32_t>(end), static_cast<std::int32_t>(row.start)});
    if (row.draw == Draw::kToken) {
      logit_tokens_.push_back(static_cast<std::int32_t>(token_ids_.size()) - 1);
      sample_rows_.push_back(sampling::sample_row(sequence.spec.sampling, end));
    }
    if (table_epochs_[r] != sequence.leases_epoch) {
      page_table_->set_row(parts_.stream, static_cast<std::int64_t>(r), sequence.leases);
      table_epochs_[r] = sequence.leases_epoch;
    }
  }
}

// Right after the forward pass has written them, so that whatever changes them later is found.
void StepRunner::digest_written(kv_cache::PagePool& pool, const ops::WritableSlots& slots) {
  // What came before is waited for, and so is the digest, so that the time is its own.
  parts_.stream.synchronize();
  const Stopwatch check_watch(parts_.clock, check_ns_);
  const Stopwatch digest_watch(parts_.clock, digest_ns_);
  ops::DigestTokensParams params{slots, pool.cache()};
  params.num_layers = pool.layout().num_layers;
  params.digest_key = pool.digest_key();
  params.digests = pool.digests();
  parts_.backend.digest_tokens(parts_.stream, params);
  parts_.stream.synchronize();
}

// `verdicts` are those of the tags, before and after: a row that they let down is not read again.
std::span<const ops::RowVerdict> StepRunner::check_read(kv_cache::PagePool& pool, const ops::VerifiedPages& pages,
                                                        std::span<const ops::RowVerdict> verdicts) {
  const Stopwatch check_watch(parts_.clock, check_ns_);
  const Stopwatch digest_watch(parts_.clock, digest_ns_);
  return parts_.digests->check_rows(parts_.stream, pool, pages, expectations_, verdicts);
}

StepView StepRunner::view(kv_cache::PagePool& pool) { return {row_views_, pool, *page_table_, slot_mapping_}; }

std::span<const RowOutcome> StepRunner::run(kv_cache::PagePool& pool, std::span<const StepRow> rows) {
  TESSERA_CHECK(!rows.empty() && std::ssize(rows) <= limits_.rows_max);
  const Stopwatch step_watch(parts_.clock, step_ns_);
  ops::Backend& backend = parts_.backend;
  ops::Stream& stream = parts_.stream;
  build_batch(pool, rows);
  const std::int64_t tokens = std::ssize(token_ids_);
  TESSERA_CHECK(tokens <= limits_.tokens_max);
  if (parts_.listener != nullptr) parts_.listener->before_step(row_views_);
  if (parts_.observer != nullptr) parts_.observer->before_check(view(pool));

  // Check, then compute with what the check made, then check again.
  const kv_cache::CheckedPages checked = [&] {
    const Stopwatch watch(parts_.clock, check_ns_);
    kv_cache::CheckInput check;
    check.records = pool.records();
    check.page_size = pool.layout().page_size;
    check.page_table = page_table_->device();
    check.max_pages_per_row = page_table_->pages_per_row_max();
    check.rows = expectations_;
    check.token_rows = token_rows_;
    check.token_positions = positions_;
    check.slot_mapping = slot_mapping_;
    return verifier_->check_before(stream, check);
  }();

  const BatchArrays arrays(batch_storage_.data(), limits_.tokens_max);
  backend.copy_to_device(stream, arrays.token_ids, token_ids_.data(), tokens * 4);
  backend.copy_to_device(stream, arrays.positions, positions_.data(), tokens * 4);
  backend.fill_zero(stream, arrays.nonfinite, tokens);
  models::ForwardBatch batch{
      .token_ids = {arrays.token_ids, static_cast<std::size_t>(tokens)},
      .positions = {arrays.positions, static_cast<std::size_t>(tokens)},
      .cu_seqlens_q = cu_seqlens_q_,
      .row_phases = row_phases_,
      .pages = checked.pages,
      .slots = checked.slots,
      .cache = pool.cache(),
      .logit_tokens = logit_tokens_,
      .nonfinite_rows = arrays.nonfinite,
      .after_layer = {},
  };
  const ops::Matrix logits =
      ops::f32_matrix(logits_storage_.as<float>(), std::ssize(logit_tokens_), parts_.model.config().vocab_size);
  parts_.model.forward(stream, *workspace_, batch, logits);
  if (has(kv_cache::IntegrityLevel::kDigest)) digest_written(pool, checked.slots);
  sampler_->enqueue(stream, logits, sample_rows_);
  sampler_->enqueue_read(stream);
  nonfinite_.resize(static_cast<std::size_t>(tokens));
  backend.copy_to_host(stream, nonfinite_.data(), arrays.nonfinite, tokens);

  if (parts_.observer != nullptr) parts_.observer->before_second_check(view(pool));
  const std::span<const ops::RowVerdict> verdicts = [&] {
    // The step's work is waited for outside of the watch, so that the check's time is its own.
    stream.synchronize();
    const Stopwatch watch(parts_.clock, check_ns_);
    verifier_->check_after(stream);
    return verifier_->read_verdicts(stream);
  }();
  const std::span<const ops::RowVerdict> byte_verdicts = has(kv_cache::IntegrityLevel::kDigestStep)
                                                             ? check_read(pool, checked.pages, verdicts)
                                                             : std::span<const ops::RowVerdict>();

  outcomes_.assign(rows.size(), {});
  std::int64_t next = 0;  // Of the rows of logits.
  for (std::size_t r = 0; r < rows.size(); ++r) {
    RowOutcome& outcome = outcomes_[r];
    const bool draws = rows[r].draw == Draw::kToken;
    const std::int64_t first_scored = next;
    const std::int64_t at = first_scored + rows[r].scored;  // What it draws, if it does.
    next = at + (draws ? 1 : 0);
    const auto has_no_token = [&](std::int64_t i) { return sampler_->token(i).token < 0; };
    const auto first = nonfinite_.begin() + cu_seqlens_q_[r];
    const auto last = nonfinite_.begin() + cu_seqlens_q_[r + 1];
    const ops::RowVerdict& verdict =
        byte_verdicts.empty() || verdicts[r].failed_checks != 0 ? verdicts[r] : byte_verdicts[r];
    if (verdict.failed_checks != 0) {
      outcome.result = RowResult::kCheckFailed;
      outcome.verdict = verdict;
    } else if (std::any_of(first, last, [](std::uint8_t flag) { return flag != 0; }) ||
               std::ranges::any_of(std::views::iota(first_scored, next), has_no_token)) {
      outcome.result = RowResult::kNonFinite;
    } else {
      outcome.scored.reserve(static_cast<std::size_t>(rows[r].scored));
      for (std::int64_t i = first_scored; i < at; ++i) {
        outcome.scored.push_back({sampler_->token(i), sampler_->top(i)});
      }
      if (draws) {
        outcome.token = sampler_->token(at);
        outcome.top = sampler_->top(at);
      }
    }
  }
  if (parts_.observer != nullptr) parts_.observer->after_checks(view(pool), outcomes_);
  if (parts_.listener != nullptr) parts_.listener->after_step(row_views_, outcomes_);
  return outcomes_;
}

}  // namespace tessera::engine
