// Simulated KV formats: what a row of keys and values would be after it was stored in some format and read again, for
// formats that no page has. For evaluations only: rows are rounded here, on the host, and kept in BF16 pages, so that a
// simulated format saves neither memory nor time, and what it would give back is rounded to BF16 once more.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/ops/kv_layout.h"

namespace tessera::app {

// How the values of a row are stored. "Scaled" means element = e4m3(x / scale) * scale, with e4m3 rounding to nearest
// even and saturating at 448.
enum class KvRounding : std::uint8_t {
  kFp8,  // "fp8": what FP8 pages hold: scaled, by a BF16 scale for each group of each token (latent and rope apart;
         // every KV head).
  kRopeBF16,   // "rope-bf16": of latent attention, the latent as in fp8, the rope elements in BF16.
  kOneScale,   // "one-scale": scaled, by one constant for all that a layer stores.
  kPerTensor,  // "per-tensor": scaled, by a constant for each tensor of a layer: latent and rope, or K and V.
  kScale1,     // "scale-1": scaled by 1: no scale at all.
};
inline constexpr std::array<std::string_view, 5> kKvRoundingNames = {"fp8", "rope-bf16", "one-scale", "per-tensor",
                                                                     "scale-1"};

std::optional<KvRounding> kv_rounding_of(std::string_view name);
std::string_view kv_rounding_name(KvRounding rounding);
// Whether its scales are constants that are measured first (KvRounder::observe).
constexpr bool is_calibrated(KvRounding rounding) {
  return rounding == KvRounding::kOneScale || rounding == KvRounding::kPerTensor;
}

enum class KvKind : std::uint8_t { kLatent, kGrouped };  // Latent attention, or grouped queries.

// Rounds rows for one model. Threads: reading is safe from any, observe and fix_scales from one.
class KvRounder {
 public:
  // `layout` is the model's, in any format. rope-bf16 is of latent attention alone (a programmer's error otherwise).
  KvRounder(KvRounding rounding, const ops::KvLayout& layout, KvKind kind);

  KvRounding rounding() const { return rounding_; }

  // Notes the largest magnitudes of a row, for formats whose scales are constants; numbers that are not finite are
  // passed over.
  void observe(int layer, int part, std::span<const float> row);
  // Makes the constants of what was observed: for each tensor amax / 448 rounded up to BF16, as a row's own scale is
  // made. Rows are rounded by them from now on; before, by 1. Of formats without constants it changes nothing.
  void fix_scales();

  // One token's row of one part of one layer, [elements of the part], in place. A scale group with numbers that are not
  // finite is left as it is, for the cache's own check to find, and so are index keys, which have one format.
  void round(int layer, int part, std::span<float> row) const;

 private:
  std::size_t tensor_of(int layer, int part, int group) const;

  const KvRounding rounding_;
  const ops::KvLayout layout_;
  const KvKind kind_;
  std::vector<float> amax_;    // [tensors]
  std::vector<float> scales_;  // [tensors]
};

}  // namespace tessera::app
