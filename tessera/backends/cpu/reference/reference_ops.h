// The class behind make_reference_backend(). Its ops are defined in layers.cc, kv_write.cc, attention.cc, mla.cc,
// dsa.cc, moe.cc and sample.cc; the page ops are the base class's. It needs no scratch memory from its callers.
#pragma once

#include "tessera/backends/cpu/reference/cpu_backend_base.h"

namespace tessera::backends::cpu {

class ReferenceBackend final : public CpuBackendBase {
 public:
  std::string_view name() const override { return "reference"; }
  bool supports(ops::KvFormat) const override { return true; }
  base::Result<ops::Weight> prepare_weight(const ops::WeightSource& source) override {
    return prepare_row_major_weight(source);
  }
  std::int64_t moe_experts_scratch_bytes(const ops::ExpertStack&, std::int32_t, std::int64_t) const override {
    return 0;
  }
  std::int64_t mla_attention_scratch_bytes(const ops::MlaShape&, std::int64_t, std::int64_t) const override {
    return 0;
  }
  std::int64_t dsa_select_scratch_bytes(std::int32_t, std::int32_t, std::int64_t, std::int64_t) const override {
    return 0;
  }

  void embedding(ops::Stream& stream, const ops::EmbeddingParams& params) override;
  void rms_norm(ops::Stream& stream, const ops::RmsNormParams& params) override;
  void layer_norm(ops::Stream& stream, const ops::LayerNormParams& params) override;
  void rope(ops::Stream& stream, const ops::RopeParams& params) override;
  void linear(ops::Stream& stream, const ops::LinearParams& params) override;
  void swiglu(ops::Stream& stream, const ops::SwigluParams& params) override;
  void kv_write(ops::Stream& stream, const ops::KvWriteParams& params) override;
  void paged_attention(ops::Stream& stream, const ops::PagedAttentionParams& params) override;
  void mla_attention(ops::Stream& stream, const ops::MlaAttentionParams& params) override;
  void dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) override;
  void moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) override;
  void moe_experts(ops::Stream& stream, const ops::MoeExpertsParams& params) override;
  void sample_tokens(ops::Stream& stream, const ops::SampleTokensParams& params) override;
};

}  // namespace tessera::backends::cpu
