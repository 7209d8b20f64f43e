#include "tessera/backends/cpu/simd/products.h"

namespace tessera::backends::cpu::simd {

Activations::Activations(const Kernels& kernels, ops::WeightFormat format, std::int64_t k)
    : kernels_(kernels), k_(k), padded_k_(padded_k(format, k)) {
  if (format == ops::WeightFormat::kInt4Group) {
    form_ = Form::kInt16Groups;
    row_bytes_ = k / Int16Group::kElements * static_cast<std::int64_t>(sizeof(Int16Group));
  } else if (format == ops::WeightFormat::kBF16 && kernels.bf16_activations) {
    form_ = Form::kBf16;
    row_bytes_ = padded_k_ * 2;
  } else if (padded_k_ != k) {
    form_ = Form::kPadded;
    row_bytes_ = padded_k_ * 4;
  }
}

void Activations::convert_row(const float* in, std::byte* to) const {
  switch (form_) {
    case Form::kAsIs:
      break;
    case Form::kPadded:
      std::fill(std::copy_n(in, k_, reinterpret_cast<float*>(to)), reinterpret_cast<float*>(to) + padded_k_, 0.0f);
      break;
    case Form::kBf16: {
      auto* narrow = reinterpret_cast<std::uint16_t*>(to);
      kernels_.f32_to_bf16(in, k_, narrow);
      std::fill(narrow + k_, narrow + padded_k_, std::uint16_t{0});
      break;
    }
    case Form::kInt16Groups:
      kernels_.int16_groups(in, k_, reinterpret_cast<Int16Group*>(to));
      break;
  }
}

void Activations::convert(ThreadPool& threads, const ops::ConstMatrix& in, std::byte* to) const {
  if (form_ == Form::kAsIs) return;
  threads.parallel_for(in.rows, std::max<std::int64_t>(1, (16 << 10) / k_), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) convert_row(in.f32() + r * in.row_stride, to + r * row_bytes_);
  });
}

void Activations::set_input(LinearTask& task, const ops::ConstMatrix& in, const std::byte* converted) const {
  switch (form_) {
    case Form::kAsIs:
      task.in = in.f32();
      task.in_stride = in.row_stride;
      break;
    case Form::kPadded:
      task.in = reinterpret_cast<const float*>(converted);
      task.in_stride = padded_k_;
      break;
    case Form::kBf16:
      task.in_bf16 = reinterpret_cast<const std::uint16_t*>(converted);
      break;
    case Form::kInt16Groups:
      task.in_int16 = reinterpret_cast<const Int16Group*>(converted);
      break;
  }
}

LinearTask task_of(const ops::Weight& weight) {
  LinearTask task;
  task.format = weight.format;
  task.panels = static_cast<const std::byte*>(weight.data);
  task.k = weight.cols;
  task.n = weight.rows;
  task.group_size = weight.group_size;
  return task;
}

}  // namespace tessera::backends::cpu::simd
