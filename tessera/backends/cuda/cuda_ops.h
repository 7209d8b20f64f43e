// The class behind make_cuda_backend(). Its ops, in cuda_layers.cc, cuda_mla.cc, cuda_moe.cc and cuda_pages.cc, check
// their parameters, flatten them for the kernels of kernels/, and launch; cuda_weights.cc prepares weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/backends/cuda/cuda_backend.h"
#include "tessera/backends/cuda/cuda_stream.h"
#include "tessera/backends/cuda/device_health.h"
#include "tessera/ops/backend.h"

namespace tessera::backends::cuda {

// Of every buffer, and of every array inside one that holds several.
inline constexpr std::int64_t kBufferAlignment = 256;

class CudaBackend final : public ops::Backend {
 public:
  CudaBackend(const CudaOptions& options, std::string name, int multiprocessors)
      : options_(options),
        name_(std::move(name)),
        multiprocessors_(multiprocessors),
        health_(std::make_shared<DeviceHealth>()) {}

  std::string_view name() const override { return name_; }
  bool supports(ops::KvFormat format) const override { return format != ops::KvFormat::kF32; }
  base::Status health() const override { return health_->status(); }

  base::Result<ops::Buffer> allocate(std::int64_t bytes, std::string_view what) override;
  std::unique_ptr<ops::Stream> make_stream() override;
  void copy_to_device(ops::Stream& stream, void* device, const void* host, std::int64_t bytes) override;
  void copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) override;
  void fill_zero(ops::Stream& stream, void* device, std::int64_t bytes) override;
  void copy_matrix(ops::Stream& stream, ops::ConstMatrix from, ops::Matrix to) override;
  base::Result<ops::Weight> prepare_weight(const ops::WeightSource& source) override;
  base::Result<ops::ExpertStack> prepare_experts(const ops::ExpertSources& sources) override;
  base::Result<ops::MlaUpProjection> prepare_mla_up(const ops::WeightSource& source,
                                                    const ops::MlaShape& shape) override;
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
  void verify_pages(ops::Stream& stream, const ops::VerifyPagesParams& params) override;
  void gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) override;
  void scatter_pages(ops::Stream& stream, const ops::ScatterPagesParams& params) override;
  void digest_pages(ops::Stream& stream, const ops::DigestPagesParams& params) override;
  void digest_tokens(ops::Stream& stream, const ops::DigestTokensParams& params) override;
  void check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) override;
  void sample_tokens(ops::Stream& stream, const ops::SampleTokensParams& params) override;

 private:
  // One row of mla_attention, and rows begin .. end - 1.
  void attend_expanded(CudaStream& s, const ops::MlaAttentionParams& params, std::int64_t row);
  void attend_absorbed(CudaStream& s, const ops::MlaAttentionParams& params, std::int64_t begin, std::int64_t end);

  const CudaOptions options_;
  const std::string name_;
  const int multiprocessors_;
  const std::shared_ptr<DeviceHealth> health_;
};

// The stream of an op, which one of this backend's make_stream made.
inline CudaStream& cuda_stream(ops::Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace tessera::backends::cuda
