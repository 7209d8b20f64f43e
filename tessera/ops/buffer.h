// Device memory and views of it. C++20, so that device code may include it.
//
// "Device" is whatever the backend computes on; on the CPU backends it is ordinary memory. A pointer named `*_device`,
// and every pointer in an op's parameters unless it says "host", is device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "tessera/base/dtype.h"

namespace tessera::ops {

using base::DType;

// Owned device memory, 256-byte aligned, freed on destruction. Move-only. Not cleared when made.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, std::int64_t bytes, std::function<void(std::byte*)> free)
      : data_(data, std::move(free)), bytes_(bytes) {}
  std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> data_;
  std::int64_t bytes_ = 0;
};

// A row-major matrix somebody else owns: element (r, c) is at data[r * row_stride + c]. Activations are
// [tokens, features]. CPU backends take activations in F32.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // In elements; >= cols.
  float* f32() const { return static_cast<float*>(data); }
};

// The same, read-only.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  ConstMatrix() = default;
  ConstMatrix(const void* data_in, DType dtype_in, std::int64_t rows_in, std::int64_t cols_in, std::int64_t stride_in)
      : data(data_in), dtype(dtype_in), rows(rows_in), cols(cols_in), row_stride(stride_in) {}
  ConstMatrix(const Matrix& m)  // NOLINT(google-explicit-constructor): a matrix is readable.
      : data(m.data), dtype(m.dtype), rows(m.rows), cols(m.cols), row_stride(m.row_stride) {}
  const float* f32() const { return static_cast<const float*>(data); }
};

// A dense F32 matrix over memory that holds at least rows * cols floats.
inline Matrix f32_matrix(float* data, std::int64_t rows, std::int64_t cols) {
  return Matrix{data, DType::kF32, rows, cols, cols};
}

}  // namespace tessera::ops
