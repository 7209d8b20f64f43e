#include "tessera/kv_cache/verifier.h"

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::kv_cache {

namespace {

// Hands out consecutive, 256-byte aligned arrays of one buffer; with a null base it only adds up the size.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(std::int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + offset_;
    offset_ = base::round_up(offset_ + count * static_cast<std::int64_t>(sizeof(T)), 256);
    return reinterpret_cast<T*>(at);
  }
  std::int64_t bytes() const { return offset_; }

 private:
  std::byte* base_;
  std::int64_t offset_ = 0;
};

}  // namespace

struct Verifier::Arrays {
  std::int32_t* kv_lens;
  std::int32_t* write_starts;
  std::int32_t* first_logical_pages;
  std::uint64_t* tags;
  std::uint64_t* owners;
  std::int32_t* token_rows;
  std::int32_t* token_positions;
  std::int64_t* slot_mapping;
  std::int32_t* sanitized_table;
  std::int32_t* sanitized_kv_lens;
  std::int64_t* sanitized_slots;
  ops::RowVerdict* verdicts_before;
  ops::RowVerdict* verdicts_after;
  std::int64_t bytes;

  static Arrays carve(std::byte* base, const VerifierLimits& limits) {
    Carver carver(base);
    const std::int64_t entries = limits.rows_max * limits.pages_per_row_max;
    Arrays a;
    a.kv_lens = carver.take<std::int32_t>(limits.rows_max);
    a.write_starts = carver.take<std::int32_t>(limits.rows_max);
    a.first_logical_pages = carver.take<std::int32_t>(limits.rows_max);
    a.tags = carver.take<std::uint64_t>(entries);
    a.owners = carver.take<std::uint64_t>(entries);
    a.token_rows = carver.take<std::int32_t>(limits.tokens_max);
    a.token_positions = carver.take<std::int32_t>(limits.tokens_max);
    a.slot_mapping = carver.take<std::int64_t>(limits.tokens_max);
    a.sanitized_table = carver.take<std::int32_t>(entries);
    a.sanitized_kv_lens = carver.take<std::int32_t>(limits.rows_max);
    a.sanitized_slots = carver.take<std::int64_t>(limits.tokens_max);
    a.verdicts_before = carver.take<ops::RowVerdict>(limits.rows_max);
    a.verdicts_after = carver.take<ops::RowVerdict>(limits.rows_max);
    a.bytes = carver.bytes();
    return a;
  }
};

base::Result<std::unique_ptr<Verifier>> Verifier::create(ops::Backend& backend, const VerifierLimits& limits) {
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer storage, backend.allocate(storage_bytes(limits), "page verifier"));
  return std::unique_ptr<Verifier>(new Verifier(backend, limits, std::move(storage)));
}

Verifier::Verifier(ops::Backend& backend, const VerifierLimits& limits, ops::Buffer storage)
    : backend_(backend), limits_(limits), storage_(std::move(storage)) {}

std::int64_t Verifier::storage_bytes(const VerifierLimits& limits) {
  TESSERA_CHECK(limits.rows_max > 0 && limits.pages_per_row_max > 0 && limits.tokens_max >= 0);
  return Arrays::carve(nullptr, limits).bytes;
}

CheckedPages Verifier::unchecked(const UncheckedArrays& arrays) {
  return CheckedPages{ops::VerifiedPages(arrays.table, arrays.kv_lens, arrays.rows, arrays.max_pages_per_row),
                      ops::WritableSlots(arrays.slots, arrays.tokens)};
}

CheckedPages Verifier::check_before(ops::Stream& stream, const CheckInput& input) {
  const std::int64_t rows = static_cast<std::int64_t>(input.rows.size());
  const std::int64_t tokens = static_cast<std::int64_t>(input.slot_mapping.size());
  const std::int64_t width = input.max_pages_per_row;
  TESSERA_CHECK(rows <= limits_.rows_max && tokens <= limits_.tokens_max && width <= limits_.pages_per_row_max);
  TESSERA_CHECK(input.token_rows.size() == input.slot_mapping.size() &&
                input.token_positions.size() == input.slot_mapping.size());
  for (const std::int32_t row : input.token_rows) TESSERA_CHECK(row >= 0 && row < rows);

  kv_lens_.clear();
  write_starts_.clear();
  first_logical_pages_.clear();
  tags_.assign(static_cast<std::size_t>(rows * width), 0);
  owners_.assign(static_cast<std::size_t>(rows * width), 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    const RowExpectation& row = input.rows[r];
    kv_lens_.push_back(row.kv_len);
    write_starts_.push_back(row.write_start);
    TESSERA_CHECK(row.first_logical_page >= 0);
    first_logical_pages_.push_back(row.first_logical_page);
    // Leases past the table's width cannot be compared; the op then refuses the row's length as out of range.
    for (std::int64_t j = 0; j < std::min<std::int64_t>(width, std::ssize(row.leases)); ++j) {
      tags_[r * width + j] = row.leases[j].tag;
      owners_[r * width + j] = row.leases[j].owner;
    }
  }

  const Arrays a = Arrays::carve(storage_.data(), limits_);
  const auto upload = [&]<typename T>(T* device, std::span<const T> host) {
    if (!host.empty())
      backend_.copy_to_device(stream, device, host.data(), static_cast<std::int64_t>(host.size_bytes()));
  };
  upload(a.kv_lens, std::span<const std::int32_t>(kv_lens_));
  upload(a.write_starts, std::span<const std::int32_t>(write_starts_));
  // Steps know no windows, and are spared the copy.
  const bool windows = std::ranges::any_of(first_logical_pages_, [](std::int32_t first) { return first != 0; });
  if (windows) upload(a.first_logical_pages, std::span<const std::int32_t>(first_logical_pages_));
  upload(a.tags, std::span<const std::uint64_t>(tags_));
  upload(a.owners, std::span<const std::uint64_t>(owners_));
  upload(a.token_rows, input.token_rows);
  upload(a.token_positions, input.token_positions);
  upload(a.slot_mapping, input.slot_mapping);

  ops::VerifyPagesParams params;
  params.records = input.records;
  params.page_size = input.page_size;
  params.rows = rows;
  params.max_pages_per_row = width;
  params.page_table = input.page_table;
  params.kv_lens = a.kv_lens;
  params.expected_tags = a.tags;
  params.expected_owners = a.owners;
  params.first_logical_pages = windows ? a.first_logical_pages : nullptr;
  params.tokens = tokens;
  params.token_rows = a.token_rows;
  params.token_positions = a.token_positions;
  params.slot_mapping = a.slot_mapping;
  params.write_starts = a.write_starts;
  params.sanitized_table = a.sanitized_table;
  params.sanitized_kv_lens = a.sanitized_kv_lens;
  params.sanitized_slots = a.sanitized_slots;
  params.verdicts = a.verdicts_before;
  backend_.verify_pages(stream, params);

  last_ = params;
  last_.sanitized_table = nullptr;
  last_.sanitized_kv_lens = nullptr;
  last_.sanitized_slots = nullptr;
  last_.verdicts = a.verdicts_after;
  checked_after_ = false;
  return CheckedPages{ops::VerifiedPages(a.sanitized_table, a.sanitized_kv_lens, rows, width),
                      ops::WritableSlots(a.sanitized_slots, tokens)};
}

void Verifier::check_after(ops::Stream& stream) {
  TESSERA_CHECK(last_.verdicts != nullptr, "check_after needs a check_before");
  backend_.verify_pages(stream, last_);
  checked_after_ = true;
}

std::span<const ops::RowVerdict> Verifier::read_verdicts(ops::Stream& stream) {
  const Arrays a = Arrays::carve(storage_.data(), limits_);
  const std::int64_t rows = last_.rows;
  verdicts_.resize(static_cast<std::size_t>(rows));
  const std::int64_t bytes = rows * static_cast<std::int64_t>(sizeof(ops::RowVerdict));
  backend_.copy_to_host(stream, verdicts_.data(), a.verdicts_before, bytes);
  if (checked_after_) {
    verdicts_after_.resize(static_cast<std::size_t>(rows));
    backend_.copy_to_host(stream, verdicts_after_.data(), a.verdicts_after, bytes);
  }
  stream.synchronize();
  for (std::int64_t r = 0; checked_after_ && r < rows; ++r) {
    if (verdicts_[r].failed_checks == 0) verdicts_[r] = verdicts_after_[r];
  }
  return verdicts_;
}

}  // namespace tessera::kv_cache
