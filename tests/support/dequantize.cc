#include "tests/support/dequantize.h"

#include <cstdint>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/dtype.h"

namespace tessera::test_support {

namespace {

// Element `index` of an array that may lie anywhere.
template <typename T>
T at(const void* array, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

double f8(const ops::WeightSource& w, std::int64_t row, std::int64_t col) {
  return static_cast<double>(base::to_float(at<base::F8E4M3>(w.data, row * w.cols + col)));
}

double element(const ops::WeightSource& w, std::int64_t row, std::int64_t col) {
  switch (w.format) {
    case ops::WeightFormat::kF32:
      return static_cast<double>(at<float>(w.data, row * w.cols + col));
    case ops::WeightFormat::kBF16:
      return static_cast<double>(base::to_float(at<base::BF16>(w.data, row * w.cols + col)));
    case ops::WeightFormat::kF8Block128: {
      const std::int64_t blocks = (w.cols + 127) / 128;
      return f8(w, row, col) * static_cast<double>(at<float>(w.scales, row / 128 * blocks + col / 128));
    }
    case ops::WeightFormat::kF8Channel:
      return f8(w, row, col) * static_cast<double>(at<float>(w.scales, row));
    case ops::WeightFormat::kInt4Group: {
      const std::uint32_t word = at<std::uint32_t>(w.data, row * (w.cols / 8) + col / 8);
      const int q = static_cast<int>((word >> (4 * (col % 8))) & 0xf) - 8;
      const auto scale = at<base::BF16>(w.scales, row * (w.cols / w.group_size) + col / w.group_size);
      return static_cast<double>(q) * static_cast<double>(base::to_float(scale));
    }
  }
  TESSERA_CHECK(false, "a weight format without a meaning");
}

}  // namespace

std::vector<float> dequantize(const ops::WeightSource& source) {
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(source.rows * source.cols));
  for (std::int64_t row = 0; row < source.rows; ++row) {
    for (std::int64_t col = 0; col < source.cols; ++col) out.push_back(static_cast<float>(element(source, row, col)));
  }
  return out;
}

}  // namespace tessera::test_support
