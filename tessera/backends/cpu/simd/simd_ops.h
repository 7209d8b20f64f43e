// The class behind make_simd_backend(). Ops are defined in linear.cc, experts.cc, moe_route.cc, layers.cc,
// attention.cc, mla.cc, dsa.cc, kv.cc, digests.cc and sample.cc: each checks its parameters, cuts the work for the
// threads and calls the kernels of the chosen target. weight_panels.cc brings weights into the layout of the products.
#pragma once

#include <span>
#include <string>

#include "tessera/backends/cpu/reference/cpu_backend_base.h"
#include "tessera/backends/cpu/simd/kernels.h"
#include "tessera/backends/cpu/simd/scratch_pool.h"
#include "tessera/backends/cpu/simd/thread_pool.h"

namespace tessera::backends::cpu::simd {

// The first long row that is hashed chooses the instruction set for all of them, and no two threads may do that at once
// (digests.cc).
void choose_row_hash();

class SimdBackend final : public CpuBackendBase {
 public:
  SimdBackend(const Kernels& kernels, int threads)
      : kernels_(kernels), name_("simd (" + std::string(kernels.name) + ")"), threads_(threads) {
    choose_row_hash();
  }

  std::string_view name() const override { return name_; }
  bool supports(ops::KvFormat format) const override { return format != ops::KvFormat::kF32; }
  base::Result<ops::Weight> prepare_weight(const ops::WeightSource& source) override;

  std::int64_t moe_experts_scratch_bytes(const ops::ExpertStack& experts, std::int32_t num_experts_per_tok,
                                         std::int64_t tokens) const override;
  std::int64_t mla_attention_scratch_bytes(const ops::MlaShape& shape, std::int64_t tokens,
                                           std::int64_t context_tokens_max) const override;
  std::int64_t dsa_select_scratch_bytes(std::int32_t index_n_heads, std::int32_t index_head_dim, std::int64_t tokens,
                                        std::int64_t context_tokens_max) const override;

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
  void gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) override;
  void digest_tokens(ops::Stream& stream, const ops::DigestTokensParams& params) override;
  void check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) override;
  void sample_tokens(ops::Stream& stream, const ops::SampleTokensParams& params) override;

 private:
  // Encodes one row of one part, which holds finite numbers that its format can store.
  void encode_row(const ops::KvLayout& layout, int part, const float* x, std::byte* data, std::byte* scales);

  // Tokens in the absorbed form, at most kMlaQueries of them, and the rows in the expanded form (mla.cc).
  void mla_absorbed(const ops::MlaAttentionParams& params, std::span<const MlaToken> tokens);
  void mla_expanded(const ops::MlaAttentionParams& params, std::span<const std::int64_t> rows,
                    const std::int64_t* places);
  // How many tasks a loop should have at least, so that threads end at about the same time.
  std::int64_t wanted_tasks() const { return threads_.threads() == 1 ? 1 : 2 * threads_.threads(); }

  const Kernels& kernels_;
  const std::string name_;
  ThreadPool threads_;
  ScratchPool scratch_;
};

}  // namespace tessera::backends::cpu::simd
