// The class behind make_reference_backend(). Its ops are defined in layers.cc, attention.cc and sample.cc; the page ops
// are the base class's.
#pragma once

#include "tessera/backends/cpu/reference/cpu_backend_base.h"

namespace tessera::backends::cpu {

class ReferenceBackend final : public CpuBackendBase {
 public:
  std::string_view name() const override { return "reference"; }
  bool supports(ops::KvFormat) const override { return true; }
  base::Result<ops::Weight> prepare_weight(const ops::WeightSource& source) override {
    return prepare_plain_weight(source);
  }

  void embedding(ops::Stream& stream, const ops::EmbeddingParams& params) override;
  void rms_norm(ops::Stream& stream, const ops::RmsNormParams& params) override;
  void rope(ops::Stream& stream, const ops::RopeParams& params) override;
  void linear(ops::Stream& stream, const ops::LinearParams& params) override;
  void swiglu(ops::Stream& stream, const ops::SwigluParams& params) override;
  void kv_write(ops::Stream& stream, const ops::KvWriteParams& params) override;
  void paged_attention(ops::Stream& stream, const ops::PagedAttentionParams& params) override;
  void sample_tokens(ops::Stream& stream, const ops::SampleTokensParams& params) override;
};

}  // namespace tessera::backends::cpu
