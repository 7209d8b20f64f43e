// Everything a device can do. One class a backend implements all of it; models and engines hold an ops::Backend& and
// never know which. Each op's meaning is written at its parameters. Ops are enqueued on a stream; parameters are
// copied, what they point at must stay valid until the stream has run them. Wrong shapes or dtypes are programmer's
// errors (checked).
//
// Thread safety: any number of threads may call one backend, each on a stream of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/ops/buffer.h"
#include "tessera/ops/mla.h"
#include "tessera/ops/moe.h"
#include "tessera/ops/page_transfer.h"
#include "tessera/ops/sample.h"
#include "tessera/ops/stream.h"
#include "tessera/ops/transformer.h"
#include "tessera/ops/verify.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

class Backend {
 public:
  virtual ~Backend() = default;

  // "reference", "simd (avx2)", ...: for logs and /get_server_info.
  virtual std::string_view name() const = 0;
  // KV formats that attention, KV write and gather support here.
  virtual bool supports(KvFormat format) const = 0;
  // Ok until the device has failed; from then on, for the backend's life, what failed first. Work that was enqueued
  // since may not have run, and every copy_to_host since the last good synchronize fills its target with 0xff bytes: no
  // verdict passes and no token is a token. The engine ends, and so does its process (a device's error is sticky).
  virtual base::Status health() const = 0;

  // Memory. `what` names the buffer in the error when it cannot be had.
  virtual base::Result<Buffer> allocate(std::int64_t bytes, std::string_view what) = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual void copy_to_device(Stream& stream, void* device, const void* host, std::int64_t bytes) = 0;
  virtual void copy_to_host(Stream& stream, void* host, const void* device, std::int64_t bytes) = 0;
  virtual void fill_zero(Stream& stream, void* device, std::int64_t bytes) = 0;
  // to = from, both on the device, of equal shape and dtype, not overlapping.
  virtual void copy_matrix(Stream& stream, ConstMatrix from, Matrix to) = 0;

  // Brings a weight into this backend's layout. Refuses formats and shapes that it cannot compute with.
  virtual base::Result<Weight> prepare_weight(const WeightSource& source) = 0;
  virtual base::Result<ExpertStack> prepare_experts(const ExpertSources& sources) = 0;
  // `source` is kv_b_proj, usage kLinear.
  virtual base::Result<MlaUpProjection> prepare_mla_up(const WeightSource& source, const MlaShape& shape) = 0;

  // Scratch memory that an op's parameters must bring, for batches of at most `tokens` tokens. `context_tokens_max`
  // bounds the kv_len of a row. An engine asks with the longest context of its model, before it knows how many tokens
  // its pages will hold. So scratch never grows with tokens times context: what an op keeps for each token and position
  // it keeps for a block of tokens at a time. The context adds at most 256 bytes for each of its tokens (256 MiB for
  // 2^20), or 64 MiB where that is more, and 4 MiB for each of the backend's threads.
  virtual std::int64_t moe_experts_scratch_bytes(const ExpertStack& experts, std::int32_t num_experts_per_tok,
                                                 std::int64_t tokens) const = 0;
  virtual std::int64_t mla_attention_scratch_bytes(const MlaShape& shape, std::int64_t tokens,
                                                   std::int64_t context_tokens_max) const = 0;
  virtual std::int64_t dsa_select_scratch_bytes(std::int32_t index_n_heads, std::int32_t index_head_dim,
                                                std::int64_t tokens, std::int64_t context_tokens_max) const = 0;

  // Layers.
  virtual void embedding(Stream& stream, const EmbeddingParams& params) = 0;
  virtual void rms_norm(Stream& stream, const RmsNormParams& params) = 0;
  virtual void layer_norm(Stream& stream, const LayerNormParams& params) = 0;
  virtual void rope(Stream& stream, const RopeParams& params) = 0;
  virtual void linear(Stream& stream, const LinearParams& params) = 0;
  virtual void swiglu(Stream& stream, const SwigluParams& params) = 0;
  virtual void kv_write(Stream& stream, const KvWriteParams& params) = 0;
  virtual void paged_attention(Stream& stream, const PagedAttentionParams& params) = 0;
  virtual void mla_attention(Stream& stream, const MlaAttentionParams& params) = 0;
  virtual void dsa_select(Stream& stream, const DsaSelectParams& params) = 0;
  virtual void moe_route(Stream& stream, const MoeRouteParams& params) = 0;
  virtual void moe_experts(Stream& stream, const MoeExpertsParams& params) = 0;

  // Pages.
  virtual void verify_pages(Stream& stream, const VerifyPagesParams& params) = 0;
  virtual void gather_pages(Stream& stream, const GatherPagesParams& params) = 0;
  virtual void scatter_pages(Stream& stream, const ScatterPagesParams& params) = 0;
  virtual void digest_pages(Stream& stream, const DigestPagesParams& params) = 0;
  virtual void digest_tokens(Stream& stream, const DigestTokensParams& params) = 0;
  virtual void check_digests(Stream& stream, const CheckDigestsParams& params) = 0;

  // Sampling.
  virtual void sample_tokens(Stream& stream, const SampleTokensParams& params) = 0;
};

}  // namespace tessera::ops
