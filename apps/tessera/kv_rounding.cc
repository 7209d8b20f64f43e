#include "kv_rounding.h"

#include <algorithm>
#include <cmath>

#include "tessera/backends/cpu/reference/kv_row.h"
#include "tessera/base/check.h"
#include "tessera/base/dtype.h"

namespace tessera::app {

namespace {

// Of latent attention's only group of values behind the latent.
constexpr int kRopeGroup = 1;

float largest_magnitude(std::span<const float> values) {
  float amax = 0.0f;
  for (const float value : values) {
    if (std::isfinite(value)) amax = std::max(amax, std::abs(value));
  }
  return amax;
}

void round_scaled(std::span<float> values, float scale) {
  for (float& value : values) value = base::to_float(base::to_f8e4m3(value / scale)) * scale;
}

}  // namespace

std::optional<KvRounding> kv_rounding_of(std::string_view name) {
  const auto found = std::ranges::find(kKvRoundingNames, name);
  if (found == kKvRoundingNames.end()) return std::nullopt;
  return static_cast<KvRounding>(found - kKvRoundingNames.begin());
}

std::string_view kv_rounding_name(KvRounding rounding) { return kKvRoundingNames[static_cast<std::size_t>(rounding)]; }

KvRounder::KvRounder(KvRounding rounding, const ops::KvLayout& layout, KvKind kind)
    : rounding_(rounding), layout_(layout), kind_(kind) {
  TESSERA_CHECK(rounding != KvRounding::kRopeBF16 || kind == KvKind::kLatent);
  const std::size_t tensors = rounding == KvRounding::kPerTensor ? 2 : 1;
  amax_.assign(static_cast<std::size_t>(layout.num_layers) * tensors, 0.0f);
  scales_.assign(amax_.size(), 1.0f);
}

std::size_t KvRounder::tensor_of(int layer, int part, int group) const {
  const auto l = static_cast<std::size_t>(layer);
  if (rounding_ != KvRounding::kPerTensor) return l;
  return 2 * l + static_cast<std::size_t>(kind_ == KvKind::kLatent ? group : part);
}

void KvRounder::observe(int layer, int part, std::span<const float> row) {
  const ops::KvPart& shape = layout_.parts[part];
  if (shape.kind == ops::KvPartKind::kIndexKeys) return;
  std::size_t first = 0;
  for (int group = 0; group < shape.scales; ++group) {
    const auto count = static_cast<std::size_t>(group == 0 ? shape.first_group : shape.other_groups);
    float& amax = amax_[tensor_of(layer, part, group)];
    amax = std::max(amax, largest_magnitude(row.subspan(first, count)));
    first += count;
  }
}

void KvRounder::fix_scales() {
  if (!is_calibrated(rounding_)) return;
  std::ranges::transform(amax_, scales_.begin(),
                         [](float amax) { return base::to_float(backends::cpu::kv_f8_scale(amax)); });
}

void KvRounder::round(int layer, int part, std::span<float> row) const {
  const ops::KvPart& shape = layout_.parts[part];
  TESSERA_CHECK(std::ssize(row) == shape.elements);
  if (shape.kind == ops::KvPartKind::kIndexKeys) return;
  std::size_t first = 0;
  for (int group = 0; group < shape.scales; ++group) {
    const std::span<float> values =
        row.subspan(first, static_cast<std::size_t>(group == 0 ? shape.first_group : shape.other_groups));
    first += values.size();
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) continue;
    if (rounding_ == KvRounding::kRopeBF16 && group == kRopeGroup) continue;  // The page rounds it to BF16.
    if (rounding_ == KvRounding::kFp8 || rounding_ == KvRounding::kRopeBF16) {
      round_scaled(values, base::to_float(backends::cpu::kv_f8_scale(largest_magnitude(values))));
    } else {
      round_scaled(values, scales_[tensor_of(layer, part, group)]);
    }
  }
}

}  // namespace tessera::app
