// Which part of a tensor one rank of a tensor-parallel group holds. With world 1 every rank holds everything; the
// checks are the same, so that a checkpoint which cannot be split is refused at load, by name.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::weights {

// How a [rows, cols] tensor is divided. Row-parallel products (y = x W^T split over outputs) divide rows; the products
// that follow them divide columns and are summed over the ranks.
enum class ShardDimension : std::uint8_t { kNone, kRows, kColumns };

struct ShardSpec {
  ShardDimension dimension = ShardDimension::kNone;
  // What must not be cut, in elements of the divided dimension: a head's size, a 128-wide scale block, an INT4 group.
  std::int64_t unit = 1;
};

// One rank of a tensor-parallel group.
struct ShardRank {
  std::int32_t rank = 0;
  std::int32_t world = 1;
};

// Half-open ranges of rows and columns.
struct TensorSlice {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t col_begin = 0;
  std::int64_t col_end = 0;
  std::int64_t rows() const { return row_end - row_begin; }
  std::int64_t cols() const { return col_end - col_begin; }
  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

// The rank's slice of a tensor [rows, cols] (a vector is [1, cols]). invalid_argument, naming the tensor, when the
// divided dimension is no multiple of world * unit. 0 <= rank < world and unit >= 1 are the program's business.
base::Result<TensorSlice> slice_for_rank(std::string_view tensor, std::int64_t rows, std::int64_t cols,
                                         const ShardSpec& spec, const ShardRank& rank);

}  // namespace tessera::weights
