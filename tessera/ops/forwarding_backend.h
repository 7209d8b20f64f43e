// A backend that passes everything on to another one: the base of those that change one thing, for a test or an
// evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/ops/backend.h"

namespace tessera::ops {

class ForwardingBackend : public Backend {
 public:
  // `inner` outlives it.
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  bool supports(KvFormat format) const override { return inner_.supports(format); }
  base::Status health() const override { return inner_.health(); }
  base::Result<Buffer> allocate(std::int64_t bytes, std::string_view what) override {
    return inner_.allocate(bytes, what);
  }
  std::unique_ptr<Stream> make_stream() override { return inner_.make_stream(); }
  void copy_to_device(Stream& stream, void* device, const void* host, std::int64_t bytes) override {
    inner_.copy_to_device(stream, device, host, bytes);
  }
  void copy_to_host(Stream& stream, void* host, const void* device, std::int64_t bytes) override {
    inner_.copy_to_host(stream, host, device, bytes);
  }
  void fill_zero(Stream& stream, void* device, std::int64_t bytes) override { inner_.fill_zero(stream, device, bytes); }
  void copy_matrix(Stream& stream, ConstMatrix from, Matrix to) override { inner_.copy_matrix(stream, from, to); }
  base::Result<Weight> prepare_weight(const WeightSource& source) override { return inner_.prepare_weight(source); }
  base::Result<ExpertStack> prepare_experts(const ExpertSources& sources) override {
    return inner_.prepare_experts(sources);
  }
  base::Result<MlaUpProjection> prepare_mla_up(const WeightSource& source, const MlaShape& shape) override {
    return inner_.prepare_mla_up(source, shape);
  }
  std::int64_t moe_experts_scratch_bytes(const ExpertStack& experts, std::int32_t num_experts_per_tok,
                                         std::int64_t tokens) const override {
    return inner_.moe_experts_scratch_bytes(experts, num_experts_per_tok, tokens);
  }
  std::int64_t mla_attention_scratch_bytes(const MlaShape& shape, std::int64_t tokens,
                                           std::int64_t context_tokens_max) const override {
    return inner_.mla_attention_scratch_bytes(shape, tokens, context_tokens_max);
  }
  std::int64_t dsa_select_scratch_bytes(std::int32_t index_n_heads, std::int32_t index_head_dim, std::int64_t tokens,
                                        std::int64_t context_tokens_max) const override {
    return inner_.dsa_select_scratch_bytes(index_n_heads, index_head_dim, tokens, context_tokens_max);
  }
  void embedding(Stream& stream, const EmbeddingParams& params) override { inner_.embedding(stream, params); }
  void rms_norm(Stream& stream, const RmsNormParams& params) override { inner_.rms_norm(stream, params); }
  void layer_norm(Stream& stream, const LayerNormParams& params) override { inner_.layer_norm(stream, params); }
  void rope(Stream& stream, const RopeParams& params) override { inner_.rope(stream, params); }
  void linear(Stream& stream, const LinearParams& params) override { inner_.linear(stream, params); }
  void swiglu(Stream& stream, const SwigluParams& params) override { inner_.swiglu(stream, params); }
  void kv_write(Stream& stream, const KvWriteParams& params) override { inner_.kv_write(stream, params); }
  void paged_attention(Stream& stream, const PagedAttentionParams& params) override {
    inner_.paged_attention(stream, params);
  }
  void mla_attention(Stream& stream, const MlaAttentionParams& params) override {
    inner_.mla_attention(stream, params);
  }
  void dsa_select(Stream& stream, const DsaSelectParams& params) override { inner_.dsa_select(stream, params); }
  void moe_route(Stream& stream, const MoeRouteParams& params) override { inner_.moe_route(stream, params); }
  void moe_experts(Stream& stream, const MoeExpertsParams& params) override { inner_.moe_experts(stream, params); }
  void verify_pages(Stream& stream, const VerifyPagesParams& params) override { inner_.verify_pages(stream, params); }
  void gather_pages(Stream& stream, const GatherPagesParams& params) override { inner_.gather_pages(stream, params); }
  void scatter_pages(Stream& stream, const ScatterPagesParams& params) override {
    inner_.scatter_pages(stream, params);
  }
  void digest_pages(Stream& stream, const DigestPagesParams& params) override { inner_.digest_pages(stream, params); }
  void digest_tokens(Stream& stream, const DigestTokensParams& params) override {
    inner_.digest_tokens(stream, params);
  }
  void check_digests(Stream& stream, const CheckDigestsParams& params) override {
    inner_.check_digests(stream, params);
  }
  void sample_tokens(Stream& stream, const SampleTokensParams& params) override {
    inner_.sample_tokens(stream, params);
  }

 protected:
  Backend& inner() { return inner_; }

 private:
  Backend& inner_;
};

}  // namespace tessera::ops
