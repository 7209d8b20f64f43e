// The ops that the reference backend computes for this one (simd_ops.h says which and how).
#include "tessera/backends/cpu/simd/simd_ops.h"
#include "tessera/base/check.h"

namespace tessera::backends::cpu::simd {

base::Result<ops::ExpertStack> SimdBackend::prepare_experts(const ops::ExpertSources& sources) {
  return reference_.prepare_experts(sources);
}

base::Result<ops::MlaUpProjection> SimdBackend::prepare_mla_up(const ops::WeightSource& source,
                                                               const ops::MlaShape& shape) {
  return reference_.prepare_mla_up(source, shape);
}

std::int64_t SimdBackend::moe_experts_scratch_bytes(const ops::ExpertStack& experts, std::int32_t num_experts_per_tok,
                                                    std::int64_t tokens) const {
  return reference_.moe_experts_scratch_bytes(experts, num_experts_per_tok, tokens);
}

std::int64_t SimdBackend::mla_attention_scratch_bytes(const ops::MlaShape& shape, std::int64_t tokens,
                                                      std::int64_t context_tokens_max) const {
  return reference_.mla_attention_scratch_bytes(shape, tokens, context_tokens_max);
}

std::int64_t SimdBackend::dsa_select_scratch_bytes(std::int32_t index_n_heads, std::int32_t index_head_dim,
                                                   std::int64_t tokens, std::int64_t context_tokens_max) const {
  return reference_.dsa_select_scratch_bytes(index_n_heads, index_head_dim, tokens, context_tokens_max);
}

void SimdBackend::layer_norm(ops::Stream& stream, const ops::LayerNormParams& params) {
  reference_.layer_norm(stream, params);
}

void SimdBackend::mla_attention(ops::Stream& stream, const ops::MlaAttentionParams& params) {
  TESSERA_CHECK(supports(params.cache.layout.format));
  reference_.mla_attention(stream, params);
}

void SimdBackend::dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) {
  TESSERA_CHECK(supports(params.cache.layout.format));
  reference_.dsa_select(stream, params);
}

void SimdBackend::moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) {
  reference_.moe_route(stream, params);
}

void SimdBackend::moe_experts(ops::Stream& stream, const ops::MoeExpertsParams& params) {
  reference_.moe_experts(stream, params);
}

}  // namespace tessera::backends::cpu::simd
