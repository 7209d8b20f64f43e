// A KV cache with sequences in it, for the ops that take VerifiedPages or WritableSlots. Its records are raw arrays
// that a case may damage; the views come from the real kv_cache::Verifier.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/kv_cache/verifier.h"
#include "tests/conformance/backend_test.h"

namespace tessera::conformance {

// What one row of a step does: it reads kv_len tokens of a sequence, of which the last new_tokens are its own.
struct Window {
  int sequence = 0;
  std::int32_t kv_len = 0;
  std::int32_t new_tokens = 0;
};

// What of a token's row is damaged: its elements, or (in FP8) their scales alone.
enum class RowField { kElements, kScales };

class PagedKv {
 public:
  // capacities[s] tokens of pages for sequence s, at page ids shuffled by the seed, among pages that nobody uses. Every
  // byte of the cache starts as `garbage`; 0xff is NaN in every format.
  PagedKv(Device& device, const ops::KvLayout& layout, const std::vector<std::int32_t>& capacities, std::uint64_t seed,
          std::uint8_t garbage = 0xff);

  const ops::KvCacheView& cache() const { return cache_; }
  const ops::KvLayout& layout() const { return cache_.layout; }
  std::int64_t slot(int sequence, std::int32_t position) const;

  // The host's records; uploaded by every check, so that a case can change them in between.
  std::vector<std::vector<kv_cache::Lease>> leases;
  std::vector<std::uint64_t> tags;
  std::vector<std::uint64_t> owners;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> lease_counts;
  // Makes every later check of this page of the sequence fail; called again, undoes it.
  void toggle_tag(int sequence, std::int32_t logical_page);

  // Views valid until the next check.
  kv_cache::CheckedPages check(std::span<const Window> windows);
  std::span<const ops::RowVerdict> verdicts() { return verifier_->read_verdicts(device_.stream()); }

  // Checks, then writes the layer's parts, each [new tokens of all windows, elements], with the op. Returns
  // nonfinite_rows.
  std::vector<std::uint8_t> write(int layer, std::span<const Window> windows, const std::vector<HostMatrix>& parts);
  // Of a layer with K and V.
  std::vector<std::uint8_t> write(int layer, std::span<const Window> windows, const HostMatrix& k,
                                  const HostMatrix& v) {
    return write(layer, windows, std::vector<HostMatrix>{k, v});
  }

  // The whole cache's bytes, and the view that finds rows in such bytes.
  std::vector<std::byte> bytes();
  ops::KvCacheView view_of(std::vector<std::byte>& host_bytes) const;
  void set_bytes(const std::vector<std::byte>& host_bytes);
  // Makes NaN of a part's rows at these positions of the sequence.
  void make_nan(int layer, int part, RowField field, int sequence, std::span<const std::int32_t> at);

 private:
  Device& device_;
  ops::Buffer storage_;
  ops::KvCacheView cache_;
  std::int64_t width_ = 0;  // Pages a row of the table.
  std::unique_ptr<kv_cache::Verifier> verifier_;
  // What the last check reads, alive until the next.
  DeviceArray<std::uint64_t> device_tags_;
  DeviceArray<std::uint64_t> device_owners_;
  DeviceArray<std::int32_t> device_positions_;
  DeviceArray<std::int32_t> device_lease_counts_;
  DeviceArray<std::int32_t> device_table_;
};

// Sum of new_tokens.
std::int64_t new_tokens(std::span<const Window> windows);

// Bytes of one token in a host copy of the cache: its parts' data and scales in order, as digests take them.
std::vector<std::byte> token_bytes(const ops::KvCacheView& host_view, int layer, std::int64_t slot);

}  // namespace tessera::conformance
