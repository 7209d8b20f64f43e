// A verifier that can be told not to verify, so that a step can be clocked with and without its page check. Without it,
// the host's page table, lengths and slots are passed through as they are: a wrong one would be read and written. That
// is why this class is here, in a program that serves nobody, and nowhere else (tests/style sees to it).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/kv_cache/verifier.h"

namespace tessera::bench {

enum class Checking : std::uint8_t { kOn, kOff };

class MeasuredVerifier final : public kv_cache::Verifier {
 public:
  // `checking` is read at every step, and changes only between steps; it outlives the verifier.
  static base::Result<std::unique_ptr<kv_cache::Verifier>> create(ops::Backend& backend,
                                                                  const kv_cache::VerifierLimits& limits,
                                                                  const Checking& checking);

  kv_cache::CheckedPages check_before(ops::Stream& stream, const kv_cache::CheckInput& input) override;
  void check_after(ops::Stream& stream) override;
  std::span<const ops::RowVerdict> read_verdicts(ops::Stream& stream) override;

 private:
  MeasuredVerifier(ops::Backend& backend, const kv_cache::VerifierLimits& limits, ops::Buffer storage,
                   const Checking& checking)
      : Verifier(backend, limits, std::move(storage)), backend_(backend), limits_(limits), checking_(checking) {}

  ops::Backend& backend_;
  const kv_cache::VerifierLimits limits_;
  const Checking& checking_;
  ops::Buffer device_kv_lens_;  // [rows_max]
  ops::Buffer device_slots_;    // [tokens_max]
  std::vector<std::int32_t> kv_lens_;
  std::vector<ops::RowVerdict> clean_;
};

}  // namespace tessera::bench
