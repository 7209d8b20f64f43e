#include "tessera/ops/collective.h"

#include <cstring>

#include "tessera/base/check.h"

namespace tessera::ops {

void SingleRank::all_gather_columns(Stream&, ConstMatrix x, Matrix out) {
  TESSERA_CHECK(x.rows == out.rows && x.cols == out.cols && x.dtype == out.dtype);
  const std::int64_t element = base::dtype_size(x.dtype);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    std::memcpy(static_cast<std::byte*>(out.data) + r * out.row_stride * element,
                static_cast<const std::byte*>(x.data) + r * x.row_stride * element,
                static_cast<std::size_t>(x.cols * element));
  }
}

}  // namespace tessera::ops
