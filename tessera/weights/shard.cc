#include "tessera/weights/shard.h"

#include <fmt/format.h>

#include <optional>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/weights/safetensors.h"

namespace tessera::weights {

base::Result<TensorSlice> slice_for_rank(std::string_view tensor, std::int64_t rows, std::int64_t cols,
                                         const ShardSpec& spec, const ShardRank& rank) {
  TESSERA_CHECK(rank.world >= 1 && rank.rank >= 0 && rank.rank < rank.world && spec.unit >= 1);
  TESSERA_CHECK(rows >= 0 && cols >= 0);
  TensorSlice slice{0, rows, 0, cols};
  if (spec.dimension == ShardDimension::kNone) return slice;
  const bool by_rows = spec.dimension == ShardDimension::kRows;
  const std::int64_t extent = by_rows ? rows : cols;
  const std::optional<std::int64_t> divisor = base::checked_mul(rank.world, spec.unit);
  if (!divisor.has_value() || extent % *divisor != 0) {
    return base::failure(base::invalid_argument(
        fmt::format("tensor {} [{}, {}]: {} {} cannot be divided among {} ranks in units of {}", quote_name(tensor),
                    rows, cols, extent, by_rows ? "rows" : "columns", rank.world, spec.unit)));
  }
  const std::int64_t share = extent / rank.world;
  (by_rows ? slice.row_begin : slice.col_begin) = share * rank.rank;
  (by_rows ? slice.row_end : slice.col_end) = share * (rank.rank + 1);
  return slice;
}

}  // namespace tessera::weights
