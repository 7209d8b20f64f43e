#include "tessera/weights/stored_shard.h"

#include <numeric>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::weights {

namespace {

constexpr std::int64_t kBlock = 128;

std::int64_t format_unit(const StoredFormat& format, ShardDimension dimension) {
  if (format.kind == StoredKind::kF8Block128) return kBlock;
  // Groups are multiples of the 8 elements of a word.
  if (format.kind == StoredKind::kInt4Group && dimension == ShardDimension::kColumns) return format.group_size;
  return 1;
}

}  // namespace

ShardSpec stored_shard_spec(const ShardSpec& spec, const StoredFormat& format) {
  if (spec.dimension == ShardDimension::kNone) return spec;
  return {spec.dimension, std::lcm(spec.unit, format_unit(format, spec.dimension))};
}

TensorSlice scale_slice(const StoredFormat& format, const TensorSlice& weight) {
  switch (format.kind) {
    case StoredKind::kPlain:
      return {};
    case StoredKind::kF8Block128:
      TESSERA_CHECK(weight.row_begin % kBlock == 0 && weight.col_begin % kBlock == 0);
      return {weight.row_begin / kBlock, base::ceil_div(weight.row_end, kBlock), weight.col_begin / kBlock,
              base::ceil_div(weight.col_end, kBlock)};
    case StoredKind::kF8Channel:
      return {weight.row_begin, weight.row_end, 0, 1};
    case StoredKind::kInt4Group:
      TESSERA_CHECK(weight.col_begin % format.group_size == 0 && weight.col_end % format.group_size == 0);
      return {weight.row_begin, weight.row_end, weight.col_begin / format.group_size,
              weight.col_end / format.group_size};
  }
  return {};
}

}  // namespace tessera::weights
