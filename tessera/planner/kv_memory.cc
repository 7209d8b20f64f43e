#include "tessera/planner/kv_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::planner {

namespace {

// A token's bytes in parts of one kind, all layers.
std::int64_t kind_bytes(const ops::KvLayout& layout, ops::KvPartKind kind) {
  std::int64_t bytes = 0;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int part = 0; part < layout.layer_parts(layer); ++part) {
      if (layout.parts[part].kind == kind) bytes += layout.row_bytes(part) + layout.row_scale_bytes(part);
    }
  }
  return bytes;
}

}  // namespace

base::Result<ops::KvLayout> rank_kv_layout(const ModelFacts& facts, ops::KvFormat format, std::int32_t page_size,
                                           std::int32_t tp) {
  TESSERA_CHECK(tp >= 1 && page_size >= 1);
  ops::KvLayout layout = facts.kv;
  layout.format = format;
  layout.page_size = page_size;
  if (facts.kv_heads == 0 || tp == 1) return layout;
  const bool divides = facts.kv_heads % tp == 0;
  if (!divides && tp % facts.kv_heads != 0) {
    return base::failure(base::invalid_argument(fmt::format(
        "{} KV heads cannot be divided among {} ranks, expected a divisor or a multiple", facts.kv_heads, tp)));
  }
  const auto heads = static_cast<std::int32_t>(divides ? facts.kv_heads / tp : 1);
  return ops::gqa_kv_layout(format, layout.num_layers, page_size, heads, layout.parts[ops::kPartK].first_group);
}

base::Result<KvMemory> kv_memory(const ModelFacts& facts, ops::KvFormat format, std::int32_t page_size, std::int32_t tp,
                                 std::int64_t free_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const ops::KvLayout whole, rank_kv_layout(facts, format, page_size, 1));
  TESSERA_ASSIGN_OR_RETURN(const ops::KvLayout rank, rank_kv_layout(facts, format, page_size, tp));
  KvMemory memory;
  memory.format = format;
  memory.token_bytes = whole.token_bytes();
  memory.index_token_bytes = kind_bytes(whole, ops::KvPartKind::kIndexKeys);
  memory.rank_token_bytes = rank.token_bytes();
  memory.rank_page_bytes = rank.page_bytes();
  memory.pages = std::max<std::int64_t>(std::max<std::int64_t>(free_bytes, 0) / memory.rank_page_bytes - 1, 0);
  memory.tokens = memory.pages * page_size;
  return memory;
}

std::int64_t requests_that_fit(const KvMemory& memory, std::int32_t page_size, std::int64_t context) {
  TESSERA_CHECK(context >= 1);
  return memory.pages / base::ceil_div(context, page_size);
}

double kv_read_bytes(const ModelFacts& facts, const ops::KvLayout& rank_layout, std::int64_t context) {
  const auto values = static_cast<double>(kind_bytes(rank_layout, ops::KvPartKind::kValues));
  const auto keys = static_cast<double>(kind_bytes(rank_layout, ops::KvPartKind::kIndexKeys));
  const auto tokens = static_cast<double>(context);
  if (facts.index_topk == 0 || context <= facts.index_topk) return values * tokens;
  return values * static_cast<double>(facts.index_topk) + keys * tokens;
}

}  // namespace tessera::planner
