#include "tessera/weights/stored_shard.h"

#include <cstdint>
#include <numeric>

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

}  // namespace tessera::weights
