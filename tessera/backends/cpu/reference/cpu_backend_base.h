// What every CPU backend has in common: memory, streams, copies, and the page ops, which are integer and memory work
// whose results are defined to the bit. A backend derives from it, adds the ops that compute, and may override a page
// op with a faster one.
//
// Thread safety: as ops::Backend; this class has no state of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/ops/backend.h"

namespace tessera::backends::cpu {

// Alignment of every buffer, and of nothing else: a weight used in place has its checkpoint's alignment.
inline constexpr std::int64_t kBufferAlignment = 256;
// A buffer larger than this is refused without asking the system: it can only come from broken arithmetic.
inline constexpr std::int64_t kBufferBytesMax = std::int64_t{1} << 40;

// Every op of a CPU backend is done when its call returns, so there is nothing to wait for.
class CpuStream final : public ops::Stream {
 public:
  void synchronize() override {}
};

class CpuBackendBase : public ops::Backend {
 public:
  base::Status health() const override { return base::ok_status(); }
  // resource_exhausted, naming `what` and the size, when the system has no such memory. Zero bytes give a buffer with
  // a valid pointer to nothing.
  base::Result<ops::Buffer> allocate(std::int64_t bytes, std::string_view what) override;
  std::unique_ptr<ops::Stream> make_stream() override;
  void copy_to_device(ops::Stream& stream, void* device, const void* host, std::int64_t bytes) override;
  void copy_to_host(ops::Stream& stream, void* host, const void* device, std::int64_t bytes) override;
  void fill_zero(ops::Stream& stream, void* device, std::int64_t bytes) override;
  void copy_matrix(ops::Stream& stream, ops::ConstMatrix from, ops::Matrix to) override;

  // Each expert's weights as prepare_weight() makes them, and the up projection as prepare_row_major_weight() does.
  base::Result<ops::ExpertStack> prepare_experts(const ops::ExpertSources& sources) override;
  base::Result<ops::MlaUpProjection> prepare_mla_up(const ops::WeightSource& source,
                                                    const ops::MlaShape& shape) override;

  void verify_pages(ops::Stream& stream, const ops::VerifyPagesParams& params) override;
  void gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) override;
  void scatter_pages(ops::Stream& stream, const ops::ScatterPagesParams& params) override;
  void digest_pages(ops::Stream& stream, const ops::DigestPagesParams& params) override;
  void digest_tokens(ops::Stream& stream, const ops::DigestTokensParams& params) override;
  void check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) override;

 protected:
  // A weight as it lies in the source, row-major and dense: data and scales each in place where they outlive the
  // backend and data is aligned to its elements, else copied. kVector and kRouter weights become F32. unimplemented,
  // naming the format, for a quantized weight whose usage is not kLinear; invalid_argument, naming the shape, for a
  // shape that is empty, overflows, is not [1, n] for a kVector, or does not fit its groups.
  base::Result<ops::Weight> prepare_row_major_weight(const ops::WeightSource& source);
};

}  // namespace tessera::backends::cpu
