// A backend that passes everything on to another one: the base of those that change one thing for a test.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/ops/backend.h"

namespace tessera::tests {

class ForwardingBackend : public ops::Backend {
 public:
  explicit ForwardingBackend(ops::Backend& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  bool supports(ops::KvFormat format) const override { return inner_.supports(format); }
  base::Status health() const override { return inner_.health(); }
  base::Result<ops::Buffer> allocate(std::int64_t bytes, std::string_view what) override {
    return inner_.allocate(bytes, what);
  }
  std::unique_ptr<ops::Stream> make_stream() override { return inner_.make_stream(); }
  void copy_to_device(ops::Stream& stream, void* device, const void* host, std::int64_t bytes) override {
    inner_.copy_to_device(stream, device, host, bytes);
  }
  void copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) override {
    inner_.copy_to_host(stream, host, device, bytes);
  }
  void fill_zero(ops::Stream& stream, void* device, std::int64_t bytes) override {
    inner_.fill_zero(stream, device, bytes);
  }
  void copy_matrix(ops::Stream& stream, ops::ConstMatrix from, ops::Matrix to) override {
    inner_.copy_matrix(stream, from, to);
  }
  base::Result<ops::Weight> prepare_weight(const ops::WeightSource& source) override {
    return inner_.prepare_weight(source);
  }
  base::Result<ops::ExpertStack> prepare_experts(const ops::ExpertSources& sources) override {
    return inner_.prepare_experts(sources);
  }
  base::Result<ops::MlaUpProjection> prepare_mla_up(const ops::WeightSource& source,
                                                    const ops::MlaShape& shape) override {
    return inner_.prepare_mla_up(source, shape);
  }
  std::int64_t moe_experts_scratch_bytes(const ops::ExpertStack& experts, std::int32_t num_experts_per_tok,
                                         std::int64_t tokens) const override {
    return inner_.moe_experts_scratch_bytes(experts, num_experts_per_tok, tokens);
  }
  std::int64_t mla_attention_scratch_bytes(const ops::MlaShape& shape, std::int64_t tokens,
                                           std::int64_t context_tokens_max) const override {
    return inner_.mla_attention_scratch_bytes(shape, tokens, context_tokens_max);
  }
  std::int64_t dsa_select_scratch_bytes(std::int32_t index_n_heads, std::int32_t index_head_dim, std::int64_t tokens,
                                        std::int64_t context_tokens_max) const override {
    return inner_.dsa_select_scratch_bytes(index_n_heads, index_head_dim, tokens, context_tokens_max);
  }
  void embedding(ops::Stream& stream, const ops::EmbeddingParams& params) override { inner_.embedding(stream, params); }
  void rms_norm(ops::Stream& stream, const ops::RmsNormParams& params) override { inner_.rms_norm(stream, params); }
  void layer_norm(ops::Stream& stream, const ops::LayerNormParams& params) override {
    inner_.layer_norm(stream, params);
  }
  void rope(ops::Stream& stream, const ops::RopeParams& params) override { inner_.rope(stream, params); }
  void linear(ops::Stream& stream, const ops::LinearParams& params) override { inner_.linear(stream, params); }
  void swiglu(ops::Stream& stream, const ops::SwigluParams& params) override { inner_.swiglu(stream, params); }
  void kv_write(ops::Stream& stream, const ops::KvWriteParams& params) override { inner_.kv_write(stream, params); }
  void paged_attention(ops::Stream& stream, const ops::PagedAttentionParams& params) override {
    inner_.paged_attention(stream, params);
  }
  void mla_attention(ops::Stream& stream, const ops::MlaAttentionParams& params) override {
    inner_.mla_attention(stream, params);
  }
  void dsa_select(ops::Stream& stream, const ops::DsaSelectParams& params) override {
    inner_.dsa_select(stream, params);
  }
  void moe_route(ops::Stream& stream, const ops::MoeRouteParams& params) override { inner_.moe_route(stream, params); }
  void moe_experts(ops::Stream& stream, const ops::MoeExpertsParams& params) override {
    inner_.moe_experts(stream, params);
  }
  void verify_pages(ops::Stream& stream, const ops::VerifyPagesParams& params) override {
    inner_.verify_pages(stream, params);
  }
  void gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) override {
    inner_.gather_pages(stream, params);
  }
  void scatter_pages(ops::Stream& stream, const ops::ScatterPagesParams& params) override {
    inner_.scatter_pages(stream, params);
  }
  void digest_pages(ops::Stream& stream, const ops::DigestPagesParams& params) override {
    inner_.digest_pages(stream, params);
  }
  void digest_tokens(ops::Stream& stream, const ops::DigestTokensParams& params) override {
    inner_.digest_tokens(stream, params);
  }
  void check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) override {
    inner_.check_digests(stream, params);
  }
  void sample_tokens(ops::Stream& stream, const ops::SampleTokensParams& params) override {
    inner_.sample_tokens(stream, params);
  }

 private:
  ops::Backend& inner_;
};

}  // namespace tessera::tests
