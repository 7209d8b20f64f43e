// Routed experts: tokens are grouped by expert, so that each expert's weights are read once for all of its tokens, and
// the two halves of the computation (gate and up; down) are each cut by experts and panels of outputs.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/backends/cpu/simd/products.h"
#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cpu::simd {

namespace {

// Tokens that are computed together, at most: a bound on scratch memory. With 8 of 384 experts a token they give an
// expert five rows.
constexpr std::int64_t kTokensABlock = 256;

// Rows of one expert, at most kLinearRowsMax, among the places in the order of their experts.
struct RowBlock {
  std::int32_t expert = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// Hands out parts of the scratch memory, each on a cache line of its own.
class ScratchCut {
 public:
  explicit ScratchCut(std::byte* base) : base_(base) {}
  // Null where there is no memory yet, only its size to be found.
  template <typename T>
  T* take(std::int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += base::round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

// Working memory for a block of tokens. A place is one token's j-th expert; places are in the order of their experts.
struct Scratch {
  std::byte* in = nullptr;         // [tokens, row bytes of the input's activations]
  float* gate = nullptr;           // [places, intermediate], then the middle activations.
  float* up = nullptr;             // [places, intermediate]
  std::byte* middle = nullptr;     // [places, row bytes of the middle activations]
  std::int32_t* tokens = nullptr;  // [places], of the block.
  float* factors = nullptr;        // [places]
  std::int32_t* starts = nullptr;  // [experts + 1], where an expert's places start.
  RowBlock* row_blocks = nullptr;  // [places] at most.
  std::int64_t bytes = 0;

  Scratch(std::byte* base, const ops::ExpertStack& stack, const Activations& in_form, const Activations& middle_form,
          std::int64_t token_count, std::int64_t taken) {
    const std::int64_t block = std::min(token_count, kTokensABlock);
    const std::int64_t places = block * taken;
    ScratchCut cut(base);
    in = cut.take<std::byte>(block * in_form.row_bytes());
    gate = cut.take<float>(places * stack.intermediate);
    up = cut.take<float>(places * stack.intermediate);
    middle = cut.take<std::byte>(places * middle_form.row_bytes());
    tokens = cut.take<std::int32_t>(places);
    factors = cut.take<float>(places);
    starts = cut.take<std::int32_t>(stack.experts + 1);
    row_blocks = cut.take<RowBlock>(places);
    bytes = cut.used();
  }
};

// Sorts a block's places by expert, tokens ascending in each, and cuts each expert's into blocks of rows. Returns how
// many there are.
std::int64_t group_by_expert(const ops::MoeExpertsParams& params, std::int64_t first, std::int64_t count,
                             const Scratch& scratch) {
  const std::int64_t taken = params.num_experts_per_tok;
  const std::int64_t experts = params.experts->experts;
  const std::int32_t* ids = params.expert_ids + first * taken;
  const float* weights = params.expert_weights + first * taken;
  std::int32_t* starts = scratch.starts;
  std::fill_n(starts, experts + 1, 0);
  for (std::int64_t i = 0; i < count * taken; ++i) ++starts[ids[i] + 1];
  for (std::int64_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
  std::int64_t blocks = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t rows = starts[e + 1] - starts[e];
    const std::int64_t parts = base::ceil_div(rows, kLinearRowsMax);
    for (std::int64_t p = 0; p < parts; ++p) {
      scratch.row_blocks[blocks++] = {static_cast<std::int32_t>(e),
                                      static_cast<std::int32_t>(starts[e] + rows * p / parts),
                                      static_cast<std::int32_t>(starts[e] + rows * (p + 1) / parts)};
    }
  }
  // Each start moves on to the next one's place as its places are filled.
  for (std::int64_t i = 0; i < count * taken; ++i) {
    const std::int32_t place = starts[ids[i]]++;
    scratch.tokens[place] = static_cast<std::int32_t>(i / taken);
    scratch.factors[place] = weights[i];
  }
  return blocks;
}

void set_rows(LinearTask& task, const RowBlock& block, std::int64_t chunk, std::int64_t by_chunk) {
  task.row_begin = block.begin;
  task.row_end = block.end;
  task.panel_begin = chunk * by_chunk;
  task.panel_end = std::min(task.panel_begin + by_chunk, base::ceil_div(task.n, kPanelOutputs));
}

}  // namespace

std::int64_t SimdBackend::moe_experts_scratch_bytes(const ops::ExpertStack& experts, std::int32_t num_experts_per_tok,
                                                    std::int64_t tokens) const {
  const Activations in_form(kernels_, experts.format, experts.hidden);
  const Activations middle_form(kernels_, experts.format, experts.intermediate);
  return Scratch(nullptr, experts, in_form, middle_form, tokens, num_experts_per_tok).bytes;
}

void SimdBackend::moe_experts(ops::Stream&, const ops::MoeExpertsParams& params) {
  ops::check_params(params);
  const std::int64_t tokens = params.in.rows;
  if (tokens == 0) return;
  const ops::ExpertStack& stack = *params.experts;
  const std::int64_t taken = params.num_experts_per_tok;
  for (std::int64_t i = 0; i < tokens * taken; ++i) {
    TESSERA_CHECK(params.expert_ids[i] >= 0 && params.expert_ids[i] < stack.experts,
                  fmt::format("expert {} of {}", params.expert_ids[i], stack.experts));
  }
  TESSERA_CHECK(params.scratch != nullptr);
  const Activations in_form(kernels_, stack.format, stack.hidden);
  const Activations middle_form(kernels_, stack.format, stack.intermediate);
  const Scratch scratch(params.scratch, stack, in_form, middle_form, tokens, taken);

  const std::int64_t middle_panels = base::ceil_div(stack.intermediate, kPanelOutputs);
  const std::int64_t middle_by_chunk =
      panels_a_chunk(panel_bytes(stack.format, stack.hidden, stack.gate[0].group_size), middle_panels);
  const std::int64_t middle_chunks = base::ceil_div(middle_panels, middle_by_chunk);
  // A thread takes its outputs of all experts in turn, so that each is added to in one order: four chunks a thread
  // balance well, and each is a long run of an expert's weights.
  const std::int64_t out_panels = base::ceil_div(stack.hidden, kPanelOutputs);
  const std::int64_t out_by_chunk =
      base::round_up(base::ceil_div(out_panels, std::int64_t{4} * threads_.threads()), kPanelMultiple);
  const std::int64_t out_chunks = base::ceil_div(out_panels, out_by_chunk);

  for (std::int64_t first = 0; first < tokens; first += kTokensABlock) {
    const std::int64_t count = std::min(kTokensABlock, tokens - first);
    const std::int64_t row_blocks = group_by_expert(params, first, count, scratch);
    ops::ConstMatrix in = params.in;
    in.data = params.in.f32() + first * params.in.row_stride;
    in.rows = count;
    in_form.convert(threads_, in, scratch.in);

    threads_.parallel_for(row_blocks * middle_chunks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const RowBlock& block = scratch.row_blocks[item / middle_chunks];
        const auto e = static_cast<std::size_t>(block.expert);
        LinearTask task;
        for (const auto& [weight, out] :
             {std::pair(&stack.gate[e], scratch.gate), std::pair(&stack.up[e], scratch.up)}) {
          task = task_of(*weight);
          in_form.set_input(task, in, scratch.in);
          task.in_rows = scratch.tokens;
          task.out = out;
          task.out_stride = stack.intermediate;
          set_rows(task, block, item % middle_chunks, middle_by_chunk);
          kernels_.linear(task);
        }
        const std::int64_t column = task.panel_begin * kPanelOutputs;
        const std::int64_t width = std::min(task.panel_end * kPanelOutputs, stack.intermediate) - column;
        for (std::int64_t place = block.begin; place < block.end; ++place) {
          float* gate = scratch.gate + place * stack.intermediate + column;
          kernels_.swiglu(gate, scratch.up + place * stack.intermediate + column, width, gate);
        }
      }
    });

    const ops::ConstMatrix middle = ops::f32_matrix(scratch.gate, count * taken, stack.intermediate);
    middle_form.convert(threads_, middle, scratch.middle);
    threads_.parallel_for(out_chunks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        for (std::int64_t b = 0; b < row_blocks; ++b) {
          const RowBlock& block = scratch.row_blocks[b];
          LinearTask task = task_of(stack.down[static_cast<std::size_t>(block.expert)]);
          middle_form.set_input(task, middle, scratch.middle);
          task.out_rows = scratch.tokens;
          task.row_factors = scratch.factors;
          task.out = params.out.f32() + first * params.out.row_stride;
          task.out_stride = params.out.row_stride;
          task.mode = ops::OutputMode::kAdd;
          set_rows(task, block, chunk, out_by_chunk);
          kernels_.linear(task);
        }
      }
    });
  }
}

}  // namespace tessera::backends::cpu::simd
