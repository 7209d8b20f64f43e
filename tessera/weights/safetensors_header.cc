// The header parser: events of Boost.JSON's push parser, so that a large header builds no document tree and duplicate
// names, which a document tree would swallow, are seen.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <optional>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/limits.h"
#include "tessera/weights/safetensors.h"

namespace tessera::weights {

namespace {

using boost::system::error_code;
using JsonView = boost::json::string_view;

constexpr std::string_view kMetadataName = "__metadata__";

class HeaderHandler {
 public:
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);

  base::Status take_error() { return std::move(error_); }
  std::vector<TensorInfo> take_tensors() { return std::move(tensors_); }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }

  bool on_object_begin(error_code& ec) {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kRoot;
        return true;
      case Place::kRoot:
        if (key_ == kMetadataName) {
          if (std::exchange(saw_metadata_, true)) return fail(ec, base::invalid_argument("two __metadata__ entries"));
          place_ = Place::kMetadata;
          return true;
        }
        if (key_.empty()) return fail(ec, base::invalid_argument("a tensor without a name"));
        if (std::ssize(tensors_) >= base::limits::kTensorsPerCheckpointMax) {
          return fail(ec,
                      base::out_of_range(fmt::format("more than {} tensors", base::limits::kTensorsPerCheckpointMax)));
        }
        tensors_.emplace_back().name = key_;
        saw_dtype_ = saw_shape_ = saw_offsets_ = false;
        place_ = Place::kTensor;
        return true;
      default:
        return unexpected(ec, "an object");
    }
  }

  bool on_object_end(std::size_t, error_code& ec) {
    if (place_ == Place::kTensor) {
      if (!saw_dtype_) return missing(ec, "dtype");
      if (!saw_shape_) return missing(ec, "shape");
      if (!saw_offsets_) return missing(ec, "data_offsets");
      place_ = Place::kRoot;
    } else if (place_ == Place::kMetadata) {
      place_ = Place::kRoot;
    } else {
      place_ = Place::kEnd;
    }
    return true;
  }

  bool on_array_begin(error_code& ec) {
    if (place_ == Place::kTensor && key_ == "shape") {
      if (std::exchange(saw_shape_, true)) return twice(ec);
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      if (std::exchange(saw_offsets_, true)) return twice(ec);
      place_ = Place::kOffsets;
      offset_count_ = 0;
      return true;
    }
    return unexpected(ec, "an array");
  }

  bool on_array_end(std::size_t, error_code& ec) {
    if (place_ == Place::kOffsets) {
      if (offset_count_ != 2) {
        return fail(ec, base::invalid_argument(fmt::format("data_offsets has {} numbers, expected 2", offset_count_)));
      }
      if (offsets_[1] < offsets_[0]) {
        return fail(ec, base::invalid_argument(
                            fmt::format("data_offsets [{}, {}] end before they begin", offsets_[0], offsets_[1])));
      }
      tensors_.back().offset = offsets_[0];
      tensors_.back().bytes = offsets_[1] - offsets_[0];
    }
    place_ = Place::kTensor;
    return true;
  }

  bool on_key_part(JsonView part, std::size_t, error_code&) {
    append(part);
    return true;
  }
  bool on_key(JsonView part, std::size_t, error_code& ec) {
    append(part);
    key_ = std::exchange(text_, {});
    if (place_ == Place::kTensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
      return fail(ec, base::invalid_argument(
                          fmt::format("unknown field {}, expected dtype, shape and data_offsets", quote_name(key_))));
    }
    return true;
  }

  bool on_string_part(JsonView part, std::size_t, error_code&) {
    append(part);
    return true;
  }
  bool on_string(JsonView part, std::size_t, error_code& ec) {
    append(part);
    const std::string value = std::exchange(text_, {});
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || key_ != "dtype") return unexpected(ec, "a string");
    if (std::exchange(saw_dtype_, true)) return twice(ec);
    const std::optional<base::DType> dtype = base::dtype_from_name(value);
    if (!dtype.has_value()) {
      return fail(ec, base::unimplemented(fmt::format(
                          "unknown dtype {}, expected one of F32, BF16, F16, F8_E4M3, I64, I32, I16, I8, U8, BOOL",
                          quote_name(value))));
    }
    tensors_.back().dtype = *dtype;
    return true;
  }

  bool on_number_part(JsonView, error_code&) { return true; }
  bool on_int64(std::int64_t value, JsonView, error_code& ec) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return unexpected(ec, "a number");
    if (value < 0) {
      return fail(ec, base::invalid_argument(fmt::format("{} holds {}, expected no negative number", key_, value)));
    }
    if (place_ == Place::kShape) {
      if (std::ssize(tensors_.back().shape) >= base::limits::kTensorRankMax) {
        return fail(ec,
                    base::out_of_range(fmt::format("shape has more than {} dimensions", base::limits::kTensorRankMax)));
      }
      tensors_.back().shape.push_back(value);
    } else {
      if (offset_count_ < 2) offsets_[offset_count_] = value;
      ++offset_count_;
    }
    return true;
  }
  bool on_uint64(std::uint64_t value, JsonView, error_code& ec) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return unexpected(ec, "a number");
    return fail(ec, base::out_of_range(fmt::format("{} holds {}, which is too large", key_, value)));
  }
  bool on_double(double value, JsonView, error_code& ec) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return unexpected(ec, "a number");
    return fail(ec, base::invalid_argument(fmt::format("{} holds {}, expected whole numbers below 2^63", key_, value)));
  }
  bool on_bool(bool, error_code& ec) { return unexpected(ec, "a boolean"); }
  bool on_null(error_code& ec) { return unexpected(ec, "null"); }
  bool on_comment_part(JsonView, error_code&) { return true; }
  bool on_comment(JsonView, error_code&) { return true; }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  void append(JsonView part) { text_.append(part.data(), part.size()); }

  bool fail(error_code& ec, base::Status status) {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    error_ = in_tensor ? status.with_context("tensor " + quote_name(tensors_.back().name)) : std::move(status);
    ec = boost::system::errc::make_error_code(boost::system::errc::invalid_argument);
    return false;
  }
  bool missing(error_code& ec, std::string_view field) {
    return fail(ec, base::invalid_argument(fmt::format("missing field {}", field)));
  }
  bool twice(error_code& ec) { return fail(ec, base::invalid_argument(fmt::format("field {} given twice", key_))); }
  bool unexpected(error_code& ec, std::string_view what) {
    switch (place_) {
      case Place::kStart:
        return fail(ec, base::invalid_argument(fmt::format("header is {}, expected an object", what)));
      case Place::kRoot:
        return fail(ec, base::invalid_argument(fmt::format("{} is {}, expected an object", quote_name(key_), what)));
      case Place::kMetadata:
        return fail(ec, base::invalid_argument(fmt::format("__metadata__ holds {}, expected strings only", what)));
      default:
        return fail(ec, base::invalid_argument(fmt::format("{} holds {}, expected {}", key_, what, expected_value())));
    }
  }
  std::string_view expected_value() const { return key_ == "dtype" ? "a string" : "an array of whole numbers"; }

  Place place_ = Place::kStart;
  std::string text_;
  std::string key_;
  std::vector<TensorInfo> tensors_;
  bool saw_metadata_ = false;
  bool saw_dtype_ = false;
  bool saw_shape_ = false;
  bool saw_offsets_ = false;
  std::int64_t offsets_[2] = {0, 0};
  std::size_t offset_count_ = 0;
  base::Status error_;
};

base::Status check_extent(const TensorInfo& tensor) {
  std::optional<std::int64_t> bytes = base::dtype_size(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) {
    bytes = base::checked_mul(*bytes, extent);
    if (!bytes.has_value()) {
      return base::out_of_range(
          fmt::format("shape {} of {} overflows 64 bits", shape_text(tensor.shape), base::dtype_name(tensor.dtype)));
    }
  }
  if (*bytes != tensor.bytes) {
    return base::invalid_argument(fmt::format("shape {} of {} needs {} bytes, but data_offsets [{}, {}] hold {}",
                                              shape_text(tensor.shape), base::dtype_name(tensor.dtype), *bytes,
                                              tensor.offset, tensor.offset + tensor.bytes, tensor.bytes));
  }
  return base::ok_status();
}

base::Status check_names(std::span<const TensorInfo> tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return base::ok_status();
  return base::invalid_argument(fmt::format("tensor {} is listed twice", quote_name(*twice)));
}

// The tensors, in the order of their offsets, tile the data exactly.
base::Status check_tiling(std::span<const TensorInfo> tensors, std::int64_t data_bytes) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    if (tensor.offset < end) {
      return base::invalid_argument(fmt::format("tensor {} begins at {} and overlaps {}, which ends at {}",
                                                quote_name(tensor.name), tensor.offset, quote_name(tensors[i - 1].name),
                                                end));
    }
    if (tensor.offset > end) {
      return base::invalid_argument(fmt::format("hole in the data: nothing holds bytes {} to {}, before tensor {}", end,
                                                tensor.offset, quote_name(tensor.name)));
    }
    end = tensor.offset + tensor.bytes;
    if (end > data_bytes) {
      return base::data_loss(fmt::format("tensor {} ends at byte {} of the data, but the file holds {}: truncated?",
                                         quote_name(tensor.name), end, data_bytes));
    }
  }
  if (end != data_bytes) {
    return base::invalid_argument(fmt::format("{} bytes after the last tensor, expected none", data_bytes - end));
  }
  return base::ok_status();
}

}  // namespace

base::Result<std::vector<TensorInfo>> parse_safetensors_header(std::string_view header, std::int64_t data_bytes,
                                                               std::string_view file_name) {
  const auto refuse = [&](const base::Status& status) { return base::failure(status.with_context(file_name)); };
  boost::json::basic_parser<HeaderHandler> parser{boost::json::parse_options{}};
  error_code ec;
  const std::size_t consumed = parser.write_some(false, header.data(), header.size(), ec);
  base::Status status = parser.handler().take_error();
  if (!status.ok()) return refuse(status);
  if (ec) {
    return refuse(base::invalid_argument(fmt::format("header is no JSON: {}, near byte {}", ec.message(), consumed)));
  }
  // The format pads the header with spaces.
  if (header.find_first_not_of(' ', consumed) != std::string_view::npos) {
    return refuse(base::invalid_argument(fmt::format("header goes on after its JSON, at byte {}", consumed)));
  }
  std::vector<TensorInfo> tensors = parser.handler().take_tensors();
  for (const TensorInfo& tensor : tensors) {
    status = check_extent(tensor);
    if (!status.ok()) return refuse(status.with_context("tensor " + quote_name(tensor.name)));
  }
  status = check_names(tensors);
  if (!status.ok()) return refuse(status);
  std::ranges::sort(tensors, [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  status = check_tiling(tensors, data_bytes);
  if (!status.ok()) return refuse(status);
  return tensors;
}

}  // namespace tessera::weights
