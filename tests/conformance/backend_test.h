// What every case of the suite starts from: a backend, a stream, device memory, and seeded random numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/ops/backend.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/compare.h"

namespace tessera::conformance {

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(limit));
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }  // [0, 1)
  float normal();                                                             // Mean 0, variance 1.

 private:
  std::uint64_t state_;
};

// A dense matrix in host memory.
struct HostMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<float> values;
  HostMatrix() = default;
  HostMatrix(std::int64_t rows_in, std::int64_t cols_in)
      : rows(rows_in), cols(cols_in), values(static_cast<std::size_t>(rows_in * cols_in)) {}
  float& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * cols + c)]; }
  float at(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * cols + c)]; }
  const float* row(std::int64_t r) const { return values.data() + r * cols; }
  // Rows begin .. end - 1.
  HostMatrix slice(std::int64_t begin, std::int64_t end) const;
};

HostMatrix random_matrix(Random& random, std::int64_t rows, std::int64_t cols, float spread = 1.0f);
// Values that are exact in BF16, so that a backend which rounds to BF16 changes nothing.
HostMatrix random_bf16_matrix(Random& random, std::int64_t rows, std::int64_t cols);

testing::AssertionResult near(const HostMatrix& actual, const std::vector<double>& expected,
                              const Tolerance& tolerance);
testing::AssertionResult near(const HostMatrix& actual, const HostMatrix& expected, const Tolerance& tolerance);
testing::AssertionResult same_bits(const HostMatrix& actual, const HostMatrix& expected);

template <typename T>
struct DeviceArray {
  ops::Buffer buffer;
  std::int64_t size = 0;
  T* data() const { return buffer.as<T>(); }
  std::span<const T> span() const { return {data(), static_cast<std::size_t>(size)}; }
};

// Device memory of a matrix whose rows are `padding` elements apart; the padding holds NaN, so that a kernel which
// reads it spoils its result, and is compared after the op, so that one which writes it is found out.
struct DeviceMatrix {
  ops::Buffer buffer;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  ops::Matrix view() const { return {buffer.data(), base::DType::kF32, rows, cols, row_stride}; }
};

class Device {
 public:
  // A backend that cannot run here gives a device that must not be used.
  explicit Device(const BackendUnderTest& under_test);
  ops::Backend& backend() { return *backend_; }
  ops::Stream& stream() { return *stream_; }
  Arithmetic arithmetic() const { return arithmetic_; }

  ops::Buffer allocate(std::int64_t bytes);
  template <typename T>
  DeviceArray<T> upload(const std::vector<T>& host) {
    const std::int64_t size = std::ssize(host);
    DeviceArray<T> array{allocate(size * static_cast<std::int64_t>(sizeof(T))), size};
    backend_->copy_to_device(*stream_, array.data(), host.data(), size * static_cast<std::int64_t>(sizeof(T)));
    return array;
  }
  template <typename T>
  std::vector<T> download(const T* device, std::int64_t size) {
    std::vector<T> host(static_cast<std::size_t>(size));
    backend_->copy_to_host(*stream_, host.data(), device, size * static_cast<std::int64_t>(sizeof(T)));
    stream_->synchronize();
    return host;
  }
  template <typename T>
  std::vector<T> download(const DeviceArray<T>& array) {
    return download(array.data(), array.size);
  }
  DeviceMatrix upload_matrix(const HostMatrix& host, std::int64_t padding = 0);
  // Filled with NaN, so that an element which an op forgets is found.
  DeviceMatrix output_matrix(std::int64_t rows, std::int64_t cols, std::int64_t padding = 0);
  // Fails the case when the padding was written to.
  HostMatrix download_matrix(const DeviceMatrix& matrix);

  // A prepared weight; `format` kBF16 rounds the values.
  ops::Weight weight(const HostMatrix& values, ops::WeightFormat format, ops::WeightUsage usage);

 private:
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<ops::Stream> stream_;
  Arithmetic arithmetic_;
};

// A case is run for each backend by its index in backends_under_test(), and skipped where the backend cannot run.
class BackendTest : public testing::TestWithParam<std::size_t> {
 protected:
  BackendTest() : device_(backends_under_test()[GetParam()]) {}
  void SetUp() override {
    const std::string& missing = backends_under_test()[GetParam()].missing;
    if (!missing.empty()) GTEST_SKIP() << "needs a CUDA device: " << missing;
  }
  ops::Backend& backend() { return device_.backend(); }
  ops::Stream& stream() { return device_.stream(); }
  // `exact` for a backend that accumulates in double, else `wide`.
  Tolerance tolerance(const Tolerance& exact, const Tolerance& wide) const {
    return device_.arithmetic() == Arithmetic::kDouble ? exact : wide;
  }
  // For cases of what a backend refuses: the host aborts at once, a device finds out while it runs and has failed.
  void synchronize_or_die();
  // The KV formats that the backend supports.
  std::vector<ops::KvFormat> kv_formats();
  Device device_;
};

inline std::string backend_case_name(const testing::TestParamInfo<std::size_t>& info) {
  return backends_under_test()[info.param].name;
}
inline auto all_backends() { return testing::Range<std::size_t>(0, backends_under_test().size()); }

// One rounding to F32.
inline constexpr Tolerance kOneRounding{1e-30, 0x1.0p-23, 1e-13};

}  // namespace tessera::conformance
