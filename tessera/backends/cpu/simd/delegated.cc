// The ops that the reference backend computes for this one (simd_ops.h says which and how).
#include "tessera/backends/cpu/simd/simd_ops.h"

namespace tessera::backends::cpu::simd {

base::Result<ops::ExpertStack> SimdBackend::prepare_experts(const ops::ExpertSources& sources) {
  return reference_.prepare_experts(sources);
}

std::int64_t SimdBackend::moe_experts_scratch_bytes(const ops::ExpertStack& experts, std::int32_t num_experts_per_tok,
                                                    std::int64_t tokens) const {
  return reference_.moe_experts_scratch_bytes(experts, num_experts_per_tok, tokens);
}

void SimdBackend::moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) {
  reference_.moe_route(stream, params);
}

void SimdBackend::moe_experts(ops::Stream& stream, const ops::MoeExpertsParams& params) {
  reference_.moe_experts(stream, params);
}

}  // namespace tessera::backends::cpu::simd
