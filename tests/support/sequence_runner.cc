#include "tests/support/sequence_runner.h"

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::test_support {

namespace {

template <typename T>
T must(base::Result<T> result) {
  TESSERA_CHECK(result.has_value(), result.error().to_string());
  return std::move(*result);
}

}  // namespace

SequenceRunner::SequenceRunner(const models::Model& model, ops::Backend& backend, const RunnerOptions& options)
    : model_(model), backend_(backend), options_(options), stream_(backend.make_stream()) {
  const std::int64_t pages_per_row = base::ceil_div(options.context_max, options.page_size);
  pool_ = must(kv_cache::PagePool::create(backend, *stream_, model.kv_layout(options.kv_format, options.page_size),
                                          options.rows * pages_per_row));
  table_ = must(kv_cache::PageTable::create(backend, options.rows, pages_per_row));
  verifier_ = must(kv_cache::Verifier::create(
      backend, {.rows_max = options.rows, .pages_per_row_max = pages_per_row, .tokens_max = options.tokens_max}));
  workspace_ =
      must(model.make_workspace({.tokens_max = options.tokens_max, .context_tokens_max = options.context_max}));
  token_ids_ = must(backend.allocate(options.tokens_max * 4, "token ids"));
  positions_ = must(backend.allocate(options.tokens_max * 4, "positions"));
  nonfinite_ = must(backend.allocate(options.tokens_max, "non-finite rows"));
  logits_ = must(backend.allocate(options.tokens_max * model.config().vocab_size * 4, "logits"));
  sequences_.resize(static_cast<std::size_t>(options.rows));
}

std::vector<float> SequenceRunner::step(std::span<const std::int32_t> tokens, WantedLogits wanted,
                                        std::int64_t sequence, models::RowPhase phase) {
  const RunnerRow row{sequence, tokens, phase};
  return step(std::span(&row, 1), wanted);
}

std::vector<float> SequenceRunner::step(std::span<const RunnerRow> rows, WantedLogits wanted) {
  std::vector<std::int32_t> ids, positions, token_rows, logit_tokens;
  std::vector<std::int32_t> cu_seqlens = {0};
  std::vector<models::RowPhase> phases;
  std::vector<std::int64_t> slots;
  std::vector<kv_cache::RowExpectation> expectations;
  const std::int32_t page_size = options_.page_size;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Sequence& sequence = sequences_.at(static_cast<std::size_t>(rows[r].sequence));
    const std::int32_t start = sequence.length;
    for (const std::int32_t id : rows[r].tokens) {
      const std::int32_t position = sequence.length++;
      if (position % page_size == 0) {
        sequence.leases.push_back(must(
            pool_->allocate(*stream_, kv_cache::owner_of_sequence(static_cast<std::uint64_t>(rows[r].sequence) + 1),
                            position / page_size)));
      }
      ids.push_back(id);
      positions.push_back(position);
      token_rows.push_back(static_cast<std::int32_t>(r));
      slots.push_back(std::int64_t{sequence.leases.back().page} * page_size + position % page_size);
    }
    cu_seqlens.push_back(static_cast<std::int32_t>(ids.size()));
    phases.push_back(rows[r].phase);
    if (wanted == WantedLogits::kLastOfEachRow && !rows[r].tokens.empty())
      logit_tokens.push_back(cu_seqlens.back() - 1);
    table_->set_row(*stream_, static_cast<std::int64_t>(r), sequence.leases);
    expectations.push_back({sequence.leases, sequence.length, start});
  }
  const std::int64_t tokens = std::ssize(ids);
  TESSERA_CHECK(tokens <= options_.tokens_max);
  for (std::int32_t t = 0; wanted == WantedLogits::kAll && t < tokens; ++t) logit_tokens.push_back(t);

  backend_.copy_to_device(*stream_, token_ids_.data(), ids.data(), tokens * 4);
  backend_.copy_to_device(*stream_, positions_.data(), positions.data(), tokens * 4);
  backend_.fill_zero(*stream_, nonfinite_.data(), tokens);
  const kv_cache::CheckedPages checked =
      verifier_->check_before(*stream_, {.records = pool_->records(),
                                         .page_size = page_size,
                                         .page_table = table_->device(),
                                         .max_pages_per_row = table_->pages_per_row_max(),
                                         .rows = expectations,
                                         .token_rows = token_rows,
                                         .token_positions = positions,
                                         .slot_mapping = slots});
  layers_seen_ = 0;
  const models::ForwardBatch batch{
      .token_ids = {token_ids_.as<std::int32_t>(), ids.size()},
      .positions = {positions_.as<std::int32_t>(), positions.size()},
      .cu_seqlens_q = cu_seqlens,
      .row_phases = phases,
      .pages = checked.pages,
      .slots = checked.slots,
      .cache = pool_->cache(),
      .logit_tokens = logit_tokens,
      .nonfinite_rows = nonfinite_.as<std::uint8_t>(),
      .after_layer =
          [this](int layer) {
            TESSERA_CHECK(layer == layers_seen_++);
            if (on_layer_) on_layer_(layer);
          },
  };
  const std::int64_t vocab = model_.config().vocab_size;
  const ops::Matrix logits = ops::f32_matrix(logits_.as<float>(), std::ssize(logit_tokens), vocab);
  model_.forward(*stream_, *workspace_, batch, logits);
  verifier_->check_after(*stream_);

  std::vector<float> out(static_cast<std::size_t>(logits.rows * vocab));
  std::vector<std::uint8_t> nonfinite(static_cast<std::size_t>(tokens));
  backend_.copy_to_host(*stream_, out.data(), logits_.data(), logits.rows * vocab * 4);
  backend_.copy_to_host(*stream_, nonfinite.data(), nonfinite_.data(), tokens);
  for (const ops::RowVerdict& verdict : verifier_->read_verdicts(*stream_)) TESSERA_CHECK(verdict.failed_checks == 0);
  TESSERA_CHECK(std::ranges::all_of(nonfinite, [](std::uint8_t flag) { return flag == 0; }));
  return out;
}

void SequenceRunner::take_over(SequenceRunner& source, std::int64_t from, std::int64_t to) {
  const Sequence& theirs = source.sequences_.at(static_cast<std::size_t>(from));
  Sequence& ours = sequences_.at(static_cast<std::size_t>(to));
  TESSERA_CHECK(ours.length == 0 && theirs.length > 0);
  const std::int32_t page_size = options_.page_size;
  const std::int32_t pages = static_cast<std::int32_t>(base::ceil_div(theirs.length, page_size));
  std::vector<std::int32_t> positions, token_rows;
  std::vector<std::int64_t> slots;
  for (std::int32_t p = 0; p < theirs.length; ++p) {
    if (p % page_size == 0) {
      ours.leases.push_back(must(
          pool_->allocate(*stream_, kv_cache::owner_of_sequence(static_cast<std::uint64_t>(to) + 1), p / page_size)));
    }
    positions.push_back(p);
    token_rows.push_back(0);
    slots.push_back(std::int64_t{ours.leases.back().page} * page_size + p % page_size);
  }
  ours.length = theirs.length;

  const auto check = [&](SequenceRunner& side, const Sequence& sequence, bool writes) {
    side.table_->set_row(*stream_, 0, sequence.leases);
    const kv_cache::RowExpectation row{sequence.leases, sequence.length, writes ? 0 : sequence.length};
    kv_cache::CheckInput input{.records = side.pool_->records(),
                               .page_size = page_size,
                               .page_table = side.table_->device(),
                               .max_pages_per_row = side.table_->pages_per_row_max(),
                               .rows = {&row, 1},
                               .token_rows = {},
                               .token_positions = {},
                               .slot_mapping = {}};
    if (writes) {
      input.token_rows = token_rows;
      input.token_positions = positions;
      input.slot_mapping = slots;
    }
    return side.verifier_->check_before(*stream_, input);
  };
  const kv_cache::CheckedPages readable = check(source, theirs, false);
  const kv_cache::CheckedPages writable = check(*this, ours, true);
  const ops::KvLayout& layout = pool_->layout();
  const ops::Buffer images = must(backend_.allocate(pages * layout.page_layer_bytes_max(), "page images"));
  const ops::Buffer sent = must(backend_.allocate(pages * 8, "digests sent"));
  const ops::Buffer stored = must(backend_.allocate(pages * 8, "digests stored"));
  for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
    backend_.gather_pages(*stream_, {.pages = readable.pages,
                                     .source = source.pool_->cache(),
                                     .target = layout,
                                     .layer = layer,
                                     .row = 0,
                                     .first_page = 0,
                                     .num_pages = pages,
                                     .digest_key = 1,
                                     .images = images.data(),
                                     .digests = sent.as<std::uint64_t>()});
    backend_.scatter_pages(
        *stream_, {.slots = writable.slots, .target = pool_->cache(), .layer = layer, .images = images.data()});
    backend_.digest_pages(*stream_, {.pages = writable.pages,
                                     .cache = pool_->cache(),
                                     .layer = layer,
                                     .row = 0,
                                     .first_page = 0,
                                     .num_pages = pages,
                                     .digest_key = 1,
                                     .digests = stored.as<std::uint64_t>()});
    std::vector<std::uint64_t> a(static_cast<std::size_t>(pages)), b(a.size());
    backend_.copy_to_host(*stream_, a.data(), sent.data(), pages * 8);
    backend_.copy_to_host(*stream_, b.data(), stored.data(), pages * 8);
    stream_->synchronize();
    TESSERA_CHECK(a == b);
  }
}

void SequenceRunner::reset(std::int64_t sequence) {
  Sequence& s = sequences_.at(static_cast<std::size_t>(sequence));
  for (const kv_cache::Lease& lease : s.leases) TESSERA_CHECK(pool_->release(*stream_, lease).ok());
  s = Sequence{};
}

}  // namespace tessera::test_support
