// KV write, as ops/transformer.h writes it, into any layout.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tessera/backends/cpu/reference/kv_row.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/backends/cpu/reference/reference_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu {

void ReferenceBackend::kv_write(ops::Stream&, const ops::KvWriteParams& params) {
  ops::check_params(params);
  const ops::KvLayout& layout = params.cache.layout;
  const std::int64_t page_size = layout.page_size;
  const int num_parts = layout.layer_parts(params.layer);
  std::int64_t widest = 0;
  for (int p = 0; p < num_parts; ++p) widest = std::max<std::int64_t>(widest, layout.parts[p].elements);
  const std::vector<float> zeros(static_cast<std::size_t>(widest));
  const LayerRows layer_rows(params.cache, params.layer);
  for (std::int64_t t = 0; t < params.slots.tokens(); ++t) {
    const std::int64_t slot = params.slots.slots()[t];
    if (slot == ops::kNullSlot) continue;
    TESSERA_CHECK(slot >= page_size && slot < params.cache.num_pages * page_size, fmt::format("slot {}", slot));
    std::array<const float*, ops::KvLayout::kPartsMax> rows{};
    bool storable = true;
    for (int p = 0; p < num_parts; ++p) {
      rows[p] = params.parts[p].f32() + t * params.parts[p].row_stride;
      storable = storable && kv_row_is_storable(layout, p, rows[p]);
    }
    if (!storable) {
      params.nonfinite_rows[t] = 1;
      rows.fill(zeros.data());
    }
    const PageRows<std::byte> page = layer_rows.in_page(slot / page_size);
    for (int p = 0; p < num_parts; ++p) {
      encode_kv_row(layout, p, rows[p], page.data[p] + slot % page_size * layout.row_bytes(p),
                    page.scales[p] + slot % page_size * layout.row_scale_bytes(p));
    }
  }
}

}  // namespace tessera::backends::cpu
