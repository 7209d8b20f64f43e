#include "tessera/weights/stored_weight.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::weights {

base::Result<StoredWeight> take_weight(Checkpoint& checkpoint, std::string_view name,
                                       std::span<const std::int64_t> shape) {
  TESSERA_ASSIGN_OR_RETURN(const Tensor tensor, checkpoint.take(name));
  if (!std::ranges::equal(tensor.shape, shape)) {
    return base::failure(
        base::invalid_argument(fmt::format("{}: tensor {} has shape {}, expected {}", tensor.file, quote_name(name),
                                           shape_text(tensor.shape), shape_text(shape))));
  }
  switch (tensor.dtype) {
    case base::DType::kF32:
      return StoredWeight{ops::WeightFormat::kF32, {tensor}};
    case base::DType::kBF16:
      return StoredWeight{ops::WeightFormat::kBF16, {tensor}};
    default:
      return base::failure(
          base::unimplemented(fmt::format("{}: tensor {} is stored as {}, expected F32 or BF16", tensor.file,
                                          quote_name(name), base::dtype_name(tensor.dtype))));
  }
}

}  // namespace tessera::weights
