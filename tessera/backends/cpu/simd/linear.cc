// Products: how one is cut for threads and caches.
#include <algorithm>

#include "tessera/backends/cpu/simd/products.h"
#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/arithmetic.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

void SimdBackend::linear(ops::Stream&, const ops::LinearParams& params) {
  ops::check_params(params);
  const std::int64_t rows = params.in.rows;
  if (rows == 0) return;
  LinearTask task = task_of(*params.weight);
  task.bias = params.bias == nullptr ? nullptr : static_cast<const float*>(params.bias->data);
  task.out = params.out.f32();
  task.out_stride = params.out.row_stride;
  task.mode = params.mode;

  const Activations activations(kernels_, task.format, task.k);
  const ScratchPool::Loan loan = scratch_.borrow(rows * activations.row_bytes());
  activations.convert(threads_, params.in, loan.as<std::byte>());
  activations.set_input(task, params.in, loan.as<std::byte>());

  const std::int64_t panels = base::ceil_div(task.n, kPanelOutputs);
  const std::int64_t row_blocks = base::ceil_div(rows, kLinearRowsMax);
  const std::int64_t by_chunk =
      panels_a_chunk(panel_bytes(task.format, task.k, task.group_size), base::ceil_div(panels, threads_.threads()));
  const std::int64_t chunks = base::ceil_div(panels, by_chunk);
  threads_.parallel_for(chunks * row_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      LinearTask part = task;
      const std::int64_t block = item % row_blocks;
      part.row_begin = rows * block / row_blocks;
      part.row_end = rows * (block + 1) / row_blocks;
      part.panel_begin = item / row_blocks * by_chunk;
      part.panel_end = std::min(part.panel_begin + by_chunk, panels);
      kernels_.linear(part);
    }
  });
}

}  // namespace tessera::backends::cpu::simd
