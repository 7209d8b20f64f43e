// What the cases of mla_attention start from: a layer of latents, an up projection, the op, and the formula.
#pragma once

#include <optional>
#include <vector>

#include "tests/conformance/guarded_scratch.h"
#include "tests/conformance/mla_scene.h"
#include "tests/conformance/quantized_weight.h"

namespace tessera::conformance {

// Positions that each token may attend to, in host memory.
struct HostSelection {
  std::int32_t width = 0;
  std::vector<std::vector<std::int32_t>> positions;  // Of each token, ascending.
};

class MlaAttentionTest : public BackendTest {
 protected:
  struct Problem {
    ops::MlaShape shape;
    StoredWeight up;
    ops::MlaUpProjection prepared;
    float softmax_scale = 1.0f;
    int layer = 0;
    MlaScene scene;
    ScratchSize scratch;
    std::int64_t query_width() const {
      return std::int64_t{shape.heads} * (shape.qk_nope_head_dim + shape.qk_rope_head_dim);
    }
  };
  Problem make(const ops::MlaShape& shape, const WeightCase& weight_case, const ops::KvLayout& layout, int layer,
               const std::vector<std::int32_t>& lengths, std::uint64_t seed);
  ops::MlaUpProjection prepare(const ops::WeightSource& source, const ops::MlaShape& shape);
  // The layout of a shape: two layers, of which the second has index keys.
  static ops::KvLayout layout_of(const ops::MlaShape& shape, ops::KvFormat format, std::int32_t page_size);

  // [new tokens, heads * v_head_dim]; `q` has a row for each new token of the windows.
  HostMatrix run(Problem& p, std::span<const Window> windows, const std::vector<ops::MlaForm>& forms,
                 const HostMatrix& q, const std::optional<HostSelection>& selection = std::nullopt,
                 std::int64_t padding = 0);
  static std::vector<double> formula(const Problem& p, std::span<const Window> windows, const HostMatrix& q,
                                     const std::optional<HostSelection>& selection = std::nullopt);
  // Outputs are of magnitude 1, about. Kernels may hold queries, keys, values and probabilities in BF16.
  Tolerance allowed() const { return tolerance({1e-10, 0x1.0p-23, 1e-13}, {3e-2, 2e-2, 2e-4}); }
};

}  // namespace tessera::conformance
