#include "measured_verifier.h"

#include <utility>

#include "tessera/base/check.h"

namespace tessera::bench {

base::Result<std::unique_ptr<kv_cache::Verifier>> MeasuredVerifier::create(ops::Backend& backend,
                                                                           const kv_cache::VerifierLimits& limits,
                                                                           const Checking& checking) {
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer storage, backend.allocate(storage_bytes(limits), "page verifier"));
  std::unique_ptr<MeasuredVerifier> made(new MeasuredVerifier(backend, limits, std::move(storage), checking));
  TESSERA_ASSIGN_OR_RETURN(made->device_kv_lens_, backend.allocate(limits.rows_max * 4, "unchecked lengths"));
  TESSERA_ASSIGN_OR_RETURN(made->device_slots_, backend.allocate(limits.tokens_max * 8, "unchecked slots"));
  return made;
}

kv_cache::CheckedPages MeasuredVerifier::check_before(ops::Stream& stream, const kv_cache::CheckInput& input) {
  if (checking_ == Checking::kOn) return Verifier::check_before(stream, input);
  const auto rows = static_cast<std::int64_t>(input.rows.size());
  const auto tokens = static_cast<std::int64_t>(input.slot_mapping.size());
  TESSERA_CHECK(rows > 0 && rows <= limits_.rows_max && tokens > 0 && tokens <= limits_.tokens_max);
  kv_lens_.clear();
  for (const kv_cache::RowExpectation& row : input.rows) kv_lens_.push_back(row.kv_len);
  clean_.assign(input.rows.size(), {});
  backend_.copy_to_device(stream, device_kv_lens_.data(), kv_lens_.data(), rows * 4);
  backend_.copy_to_device(stream, device_slots_.data(), input.slot_mapping.data(), tokens * 8);
  return unchecked({.table = input.page_table,
                    .kv_lens = device_kv_lens_.as<std::int32_t>(),
                    .rows = rows,
                    .max_pages_per_row = input.max_pages_per_row,
                    .slots = device_slots_.as<std::int64_t>(),
                    .tokens = tokens});
}

void MeasuredVerifier::check_after(ops::Stream& stream) {
  if (checking_ == Checking::kOn) Verifier::check_after(stream);
}

std::span<const ops::RowVerdict> MeasuredVerifier::read_verdicts(ops::Stream& stream) {
  if (checking_ == Checking::kOn) return Verifier::read_verdicts(stream);
  stream.synchronize();
  return clean_;
}

}  // namespace tessera::bench
