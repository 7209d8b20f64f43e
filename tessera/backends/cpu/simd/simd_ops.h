// The class behind make_simd_backend(). Ops are defined in linear.cc, layers.cc, attention.cc, kv.cc and sample.cc:
// each checks its parameters, cuts the work for the threads and calls the kernels of the chosen target.
#pragma once

#include <string>

#include "tessera/backends/cpu/reference/cpu_backend_base.h"
#include "tessera/backends/cpu/simd/kernels.h"
#include "tessera/backends/cpu/simd/scratch_pool.h"
#include "tessera/backends/cpu/simd/thread_pool.h"

namespace tessera::backends::cpu::simd {

class SimdBackend final : public CpuBackendBase {
 public:
  SimdBackend(const Kernels& kernels, int threads)
      : kernels_(kernels), name_("simd (" + std::string(kernels.name) + ")"), threads_(threads) {}

  std::string_view name() const override { return name_; }
  bool supports(ops::KvFormat format) const override { return format != ops::KvFormat::kF32; }
  base::Result<ops::Weight> prepare_weight(const ops::WeightSource& source) override;

  void embedding(ops::Stream& stream, const ops::EmbeddingParams& params) override;
  void rms_norm(ops::Stream& stream, const ops::RmsNormParams& params) override;
  void rope(ops::Stream& stream, const ops::RopeParams& params) override;
  void linear(ops::Stream& stream, const ops::LinearParams& params) override;
  void swiglu(ops::Stream& stream, const ops::SwigluParams& params) override;
  void kv_write(ops::Stream& stream, const ops::KvWriteParams& params) override;
  void paged_attention(ops::Stream& stream, const ops::PagedAttentionParams& params) override;
  void gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) override;
  void sample_tokens(ops::Stream& stream, const ops::SampleTokensParams& params) override;

 private:
  // Encodes one row of one part, which holds finite numbers that its format can store.
  void encode_row(ops::KvFormat format, const ops::KvPart& part, const float* x, std::byte* data, std::byte* scales);

  const Kernels& kernels_;
  const std::string name_;
  ThreadPool threads_;
  ScratchPool scratch_;
};

}  // namespace tessera::backends::cpu::simd
