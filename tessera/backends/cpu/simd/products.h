// What the two ops that multiply by weights share (linear.cc, experts.cc): activations in the form that a weight's
// kernels take, and how panels are cut for the threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tessera/backends/cpu/simd/kernels.h"
#include "tessera/backends/cpu/simd/thread_pool.h"
#include "tessera/base/arithmetic.h"
#include "tessera/ops/buffer.h"
#include "tessera/ops/weight.h"

namespace tessera::backends::cpu::simd {

// How the rows of an op's input become the activations of products with weights of one format and K.
class Activations {
 public:
  Activations(const Kernels& kernels, ops::WeightFormat format, std::int64_t k);

  // Bytes of a converted row; 0 where kernels take the input as it is.
  std::int64_t row_bytes() const { return row_bytes_; }
  // Converts all rows of `in` into `to`, row_bytes() for each, 8-byte aligned. Nothing where row_bytes() is 0.
  void convert(ThreadPool& threads, const ops::ConstMatrix& in, std::byte* to) const;
  // Points a task's input at `in`, or at its converted rows.
  void set_input(LinearTask& task, const ops::ConstMatrix& in, const std::byte* converted) const;

 private:
  enum class Form { kAsIs, kPadded, kBf16, kInt16Groups };
  void convert_row(const float* in, std::byte* to) const;

  const Kernels& kernels_;
  std::int64_t k_ = 0;
  std::int64_t padded_k_ = 0;
  Form form_ = Form::kAsIs;
  std::int64_t row_bytes_ = 0;
};

// A task with everything that the weight says, and no rows or panels yet.
LinearTask task_of(const ops::Weight& weight);

// Bytes of weights that a thread takes at a time, at least: 5 to 10 microseconds of reading.
inline constexpr std::int64_t kChunkBytes = 96 << 10;
// Panels of a chunk come in multiples of what a one-row tile takes on AVX2.
inline constexpr std::int64_t kPanelMultiple = 4;

// Panels that a thread takes at a time: enough to be worth it, but no thread is left without, if a thread has
// `threads_panels` of them or more.
constexpr std::int64_t panels_a_chunk(std::int64_t bytes_a_panel, std::int64_t threads_panels) {
  return base::round_up(std::min(base::ceil_div(kChunkBytes, bytes_a_panel), threads_panels), kPanelMultiple);
}

}  // namespace tessera::backends::cpu::simd
