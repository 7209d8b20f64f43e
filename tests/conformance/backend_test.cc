#include "tests/conformance/backend_test.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::conformance {

std::uint64_t Random::bits() { return base::mix64(state_ += base::kMix64Step); }

float Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform()));
}

HostMatrix HostMatrix::slice(std::int64_t begin, std::int64_t end) const {
  HostMatrix part(end - begin, cols);
  std::copy(values.begin() + begin * cols, values.begin() + end * cols, part.values.begin());
  return part;
}

HostMatrix random_matrix(Random& random, std::int64_t rows, std::int64_t cols, float spread) {
  HostMatrix m(rows, cols);
  for (float& value : m.values) value = spread * random.normal();
  return m;
}

HostMatrix random_bf16_matrix(Random& random, std::int64_t rows, std::int64_t cols) {
  HostMatrix m = random_matrix(random, rows, cols);
  for (float& value : m.values) value = base::to_float(base::to_bf16(value));
  return m;
}

testing::AssertionResult near(const HostMatrix& actual, const std::vector<double>& expected,
                              const Tolerance& tolerance) {
  return near(std::span<const float>(actual.values), std::span<const double>(expected), actual.cols, tolerance);
}

testing::AssertionResult near(const HostMatrix& actual, const HostMatrix& expected, const Tolerance& tolerance) {
  return near(std::span<const float>(actual.values), std::span<const float>(expected.values), actual.cols, tolerance);
}

testing::AssertionResult same_bits(const HostMatrix& actual, const HostMatrix& expected) {
  return same_bits(std::span<const float>(actual.values), std::span<const float>(expected.values), actual.cols);
}

Device::Device(const BackendUnderTest& under_test)
    : backend_(under_test.missing.empty() ? under_test.make() : nullptr),
      stream_(backend_ == nullptr ? nullptr : backend_->make_stream()),
      arithmetic_(under_test.arithmetic) {}

ops::Buffer Device::allocate(std::int64_t bytes) {
  auto buffer = backend_->allocate(bytes, "conformance");
  TESSERA_CHECK(buffer.has_value());
  return std::move(*buffer);
}

DeviceMatrix Device::upload_matrix(const HostMatrix& host, std::int64_t padding) {
  DeviceMatrix matrix = output_matrix(host.rows, host.cols, padding);
  for (std::int64_t r = 0; r < host.rows; ++r) {
    backend_->copy_to_device(*stream_, matrix.view().f32() + r * matrix.row_stride, host.row(r), host.cols * 4);
  }
  return matrix;
}

DeviceMatrix Device::output_matrix(std::int64_t rows, std::int64_t cols, std::int64_t padding) {
  const std::int64_t stride = cols + padding;
  const std::vector<float> nan(static_cast<std::size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
  DeviceMatrix matrix{allocate(rows * stride * 4), rows, cols, stride};
  backend_->copy_to_device(*stream_, matrix.buffer.data(), nan.data(), rows * stride * 4);
  return matrix;
}

HostMatrix Device::download_matrix(const DeviceMatrix& matrix) {
  const std::vector<float> all = download(matrix.buffer.as<float>(), matrix.rows * matrix.row_stride);
  HostMatrix host(matrix.rows, matrix.cols);
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    for (std::int64_t c = 0; c < matrix.row_stride; ++c) {
      const float value = all[static_cast<std::size_t>(r * matrix.row_stride + c)];
      if (c < matrix.cols) {
        host.at(r, c) = value;
      } else if (!std::isnan(value)) {
        ADD_FAILURE() << "the op wrote past the end of row " << r << ", at column " << c;
      }
    }
  }
  return host;
}

ops::Weight Device::weight(const HostMatrix& values, ops::WeightFormat format, ops::WeightUsage usage) {
  std::vector<base::BF16> rounded;
  ops::WeightSource source{format, usage, values.rows, values.cols, values.values.data()};
  if (format == ops::WeightFormat::kBF16) {
    for (const float value : values.values) rounded.push_back(base::to_bf16(value));
    source.data = rounded.data();
  }
  auto weight = backend_->prepare_weight(source);
  TESSERA_CHECK(weight.has_value());
  return std::move(*weight);
}

void BackendTest::synchronize_or_die() {
  stream().synchronize();
  const base::Status health = backend().health();
  TESSERA_CHECK(health.ok(), health.to_string());
}

std::vector<ops::KvFormat> BackendTest::kv_formats() {
  std::vector<ops::KvFormat> formats;
  for (const ops::KvFormat format : {ops::KvFormat::kF32, ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3}) {
    if (backend().supports(format)) formats.push_back(format);
  }
  return formats;
}

}  // namespace tessera::conformance
