#include "tessera/weights/stored_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::weights {

namespace {

using base::DType;
using Shape = std::span<const std::int64_t>;

constexpr std::string_view kWeightSuffix = ".weight";
constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kWordElements = 8;  // Of 4 bits in an I32.

base::Status refuse(const Tensor& tensor, std::string_view message) {
  return base::invalid_argument(fmt::format("{}: tensor {} {}", tensor.file, quote_name(tensor.name), message));
}

base::Status check_shape(const Tensor& tensor, Shape shape) {
  if (std::ranges::equal(tensor.shape, shape)) return base::ok_status();
  return refuse(tensor, fmt::format("has shape {}, expected {}", shape_text(tensor.shape), shape_text(shape)));
}

base::Status check_dtype(const Tensor& tensor, std::initializer_list<DType> dtypes) {
  if (std::ranges::find(dtypes, tensor.dtype) != dtypes.end()) return base::ok_status();
  std::string names;
  for (const DType dtype : dtypes) {
    names += names.empty() ? "" : " or ";
    names += base::dtype_name(dtype);
  }
  return base::unimplemented(fmt::format("{}: tensor {} is stored as {}, expected {}", tensor.file,
                                         quote_name(tensor.name), base::dtype_name(tensor.dtype), names));
}

// A tensor beside the data; when it is missing, the message says which weight needs it.
base::Result<Tensor> take_companion(Checkpoint& checkpoint, const std::string& name, const Tensor& data,
                                    const StoredFormat& expected) {
  auto tensor = checkpoint.take(name);
  if (tensor.has_value()) return tensor;
  return base::failure(
      base::not_found(fmt::format("{}: tensor {} is missing, expected beside {} ({}) in {}", checkpoint.list_file(),
                                  quote_name(name), quote_name(data.name), stored_format_text(expected), data.file)));
}

template <typename T>
T load(std::span<const std::byte> bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

std::vector<std::byte> widen(const Tensor& scales) {
  const std::int64_t count = std::ssize(scales.data) / 2;
  std::vector<std::byte> out(static_cast<std::size_t>(count) * sizeof(float));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = base::to_float(load<base::BF16>(scales.data, i));
    std::memcpy(out.data() + static_cast<std::size_t>(i) * sizeof(float), &value, sizeof(float));
  }
  return out;
}

base::Result<std::vector<std::byte>> narrow(const Tensor& scales) {
  const std::int64_t count = std::ssize(scales.data) / 4;
  std::vector<std::byte> out(static_cast<std::size_t>(count) * sizeof(base::BF16));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = load<float>(scales.data, i);
    const base::BF16 rounded = base::to_bf16(value);
    if (base::to_float(rounded) != value) {
      return base::failure(
          refuse(scales, fmt::format("holds {} at element {}, expected scales that BF16 can hold", value, i)));
    }
    std::memcpy(out.data() + static_cast<std::size_t>(i) * sizeof(base::BF16), &rounded, sizeof(base::BF16));
  }
  return out;
}

base::Status check_shape_tensor(const Tensor& tensor, std::int64_t rows, std::int64_t cols) {
  TESSERA_RETURN_IF_ERROR(check_dtype(tensor, {DType::kI64, DType::kI32}));
  TESSERA_RETURN_IF_ERROR(check_shape(tensor, std::array<std::int64_t, 1>{2}));
  const auto at = [&](std::int64_t i) {
    return tensor.dtype == DType::kI64 ? load<std::int64_t>(tensor.data, i)
                                       : std::int64_t{load<std::int32_t>(tensor.data, i)};
  };
  if (at(0) == rows && at(1) == cols) return base::ok_status();
  return refuse(tensor, fmt::format("says [{}, {}], expected [{}, {}]", at(0), at(1), rows, cols));
}

base::Result<StoredWeight> take_plain(Checkpoint& checkpoint, std::string_view name, Shape shape) {
  auto taken = checkpoint.take(name);
  if (!taken.has_value()) {
    const std::string packed = std::string(name) + "_packed";
    if (const Tensor* tensor = checkpoint.find(packed); tensor != nullptr) {
      return base::failure(refuse(*tensor, fmt::format("is quantized, expected {} as F32 or BF16 (config.json does not "
                                                       "count it as quantized)",
                                                       quote_name(name))));
    }
    return base::failure(std::move(taken.error()));
  }
  TESSERA_RETURN_IF_ERROR(check_shape(*taken, shape));
  TESSERA_RETURN_IF_ERROR(check_dtype(*taken, {DType::kF32, DType::kBF16}));
  StoredWeight weight;
  weight.format = taken->dtype == DType::kF32 ? ops::WeightFormat::kF32 : ops::WeightFormat::kBF16;
  weight.tensors = {*taken};
  return weight;
}

base::Result<StoredWeight> take_f8(Checkpoint& checkpoint, std::string_view name, Shape shape,
                                   const StoredFormat& expected) {
  const bool blocks = expected.kind == StoredKind::kF8Block128;
  TESSERA_ASSIGN_OR_RETURN(const Tensor data, checkpoint.take(name));
  TESSERA_RETURN_IF_ERROR(check_shape(data, shape));
  TESSERA_RETURN_IF_ERROR(check_dtype(data, {DType::kF8E4M3}));
  TESSERA_ASSIGN_OR_RETURN(
      const Tensor scales,
      take_companion(checkpoint, std::string(name) + (blocks ? "_scale_inv" : "_scale"), data, expected));
  TESSERA_RETURN_IF_ERROR(check_dtype(scales, {DType::kF32, DType::kBF16}));
  if (blocks) {
    TESSERA_RETURN_IF_ERROR(check_shape(
        scales, std::array<std::int64_t, 2>{(shape[0] + kBlock - 1) / kBlock, (shape[1] + kBlock - 1) / kBlock}));
  } else if (!std::ranges::equal(scales.shape, std::array<std::int64_t, 1>{shape[0]})) {
    TESSERA_RETURN_IF_ERROR(check_shape(scales, std::array<std::int64_t, 2>{shape[0], 1}));
  }
  StoredWeight weight;
  weight.format = blocks ? ops::WeightFormat::kF8Block128 : ops::WeightFormat::kF8Channel;
  weight.tensors = {data, scales};
  if (scales.dtype == DType::kBF16) weight.converted_scales = widen(scales);
  return weight;
}

base::Result<StoredWeight> take_int4(Checkpoint& checkpoint, std::string_view name, Shape shape,
                                     const StoredFormat& expected) {
  const std::string stem(name);
  const std::int64_t rows = shape[0];
  const std::int64_t cols = shape[1];
  auto packed = checkpoint.take(stem + "_packed");
  if (!packed.has_value()) {
    if (const Tensor* tensor = checkpoint.find(name); tensor != nullptr) {
      return base::failure(refuse(*tensor, fmt::format("is stored as {}, expected {} beside its scales",
                                                       base::dtype_name(tensor->dtype), quote_name(stem + "_packed"))));
    }
    return base::failure(std::move(packed.error()));
  }
  // The model's shape, before the files': no tensor could be right for it.
  if (cols % kWordElements != 0 || cols % expected.group_size != 0) {
    return base::failure(
        refuse(*packed, fmt::format("is for a weight {}, expected columns that 8 and groups of {} divide",
                                    shape_text(shape), expected.group_size)));
  }
  TESSERA_RETURN_IF_ERROR(check_dtype(*packed, {DType::kI32}));
  TESSERA_RETURN_IF_ERROR(check_shape(*packed, std::array<std::int64_t, 2>{rows, cols / kWordElements}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor scales, take_companion(checkpoint, stem + "_scale", *packed, expected));
  TESSERA_RETURN_IF_ERROR(check_dtype(scales, {DType::kBF16, DType::kF32}));
  TESSERA_RETURN_IF_ERROR(check_shape(scales, std::array<std::int64_t, 2>{rows, cols / expected.group_size}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor shape_tensor, take_companion(checkpoint, stem + "_shape", *packed, expected));
  TESSERA_RETURN_IF_ERROR(check_shape_tensor(shape_tensor, rows, cols));
  StoredWeight weight;
  weight.format = ops::WeightFormat::kInt4Group;
  weight.group_size = expected.group_size;
  weight.tensors = {*packed, scales, shape_tensor};
  if (scales.dtype == DType::kF32) {
    TESSERA_ASSIGN_OR_RETURN(weight.converted_scales, narrow(scales));
  }
  return weight;
}

base::Result<StoredWeight> take_tensors(Checkpoint& checkpoint, std::string_view name, Shape shape,
                                        const StoredFormat& expected) {
  switch (expected.kind) {
    case StoredKind::kPlain:
      return take_plain(checkpoint, name, shape);
    case StoredKind::kF8Block128:
    case StoredKind::kF8Channel:
      return take_f8(checkpoint, name, shape, expected);
    case StoredKind::kInt4Group:
      return take_int4(checkpoint, name, shape, expected);
  }
  return base::failure(base::internal_error("a weight format without a reader"));
}

}  // namespace

std::int64_t StoredWeight::stored_bytes() const {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += std::ssize(tensor.data);
  return bytes;
}

base::Status StoredWeight::check_scales() const {
  if (format == ops::WeightFormat::kF32 || format == ops::WeightFormat::kBF16) return base::ok_status();
  TESSERA_CHECK(tensors.size() > 1);
  const Tensor& scales = tensors[1];
  const bool halves = scales.dtype == DType::kBF16;
  const std::int64_t count = std::ssize(scales.data) / (halves ? 2 : 4);
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = halves ? base::to_float(load<base::BF16>(scales.data, i)) : load<float>(scales.data, i);
    if (!std::isfinite(value)) {
      return refuse(scales, fmt::format("holds {} at element {}, expected finite scales", value, i));
    }
  }
  return base::ok_status();
}

ops::WeightSource StoredWeight::source(ops::WeightUsage usage) const {
  TESSERA_CHECK(!tensors.empty());
  ops::WeightSource source;
  source.format = format;
  source.usage = usage;
  source.rows = rows;
  source.cols = cols;
  source.data = tensors.front().data.data();
  if (!converted_scales.empty()) {
    source.scales = converted_scales.data();
  } else if (tensors.size() > 1) {
    source.scales = tensors[1].data.data();
  }
  source.group_size = group_size;
  source.outlives_backend = true;
  source.scales_outlive_backend = true;
  return source;
}

base::Result<StoredWeight> take_weight(Checkpoint& checkpoint, std::string_view name, Shape shape,
                                       const StoredFormat& expected) {
  TESSERA_CHECK(expected.kind == StoredKind::kPlain || (shape.size() == 2 && name.ends_with(kWeightSuffix)));
  TESSERA_CHECK(expected.kind != StoredKind::kInt4Group || expected.group_size > 0);
  TESSERA_ASSIGN_OR_RETURN(StoredWeight weight, take_tensors(checkpoint, name, shape, expected));
  TESSERA_CHECK(shape.size() == 1 || shape.size() == 2);
  weight.rows = shape.size() == 2 ? shape[0] : 1;
  weight.cols = shape.back();
  return weight;
}

std::vector<Tensor> take_kv_scales(Checkpoint& checkpoint) {
  // What compressed-tensors, ModelOpt and their loaders call them; each is one number or one a head.
  constexpr std::array<std::string_view, 4> kSuffixes = {".k_scale", ".v_scale", ".q_scale", ".kv_scale"};
  std::vector<std::string_view> names;
  for (const Tensor& tensor : checkpoint.tensors()) {
    const bool in_attention = tensor.name.find(".self_attn.") != std::string_view::npos;
    if (in_attention && std::ranges::any_of(kSuffixes, [&](auto s) { return tensor.name.ends_with(s); })) {
      names.push_back(tensor.name);
    }
  }
  std::vector<Tensor> taken;
  for (const std::string_view name : names) {
    auto tensor = checkpoint.take(name);
    TESSERA_CHECK(tensor.has_value());
    taken.push_back(*tensor);
  }
  return taken;
}

}  // namespace tessera::weights
