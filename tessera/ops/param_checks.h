// One function for each op, and for each preparation of several weights at once, that aborts, naming the broken
// condition, where its parameters contradict what the op's header says of shapes, dtypes and host-side values. Backends
// call it first. It reads host memory only; what lies in device memory is for the backend to trust or check.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/ops/mla.h"
#include "tessera/ops/moe.h"
#include "tessera/ops/page_transfer.h"
#include "tessera/ops/sample.h"
#include "tessera/ops/transformer.h"
#include "tessera/ops/verify.h"

namespace tessera::ops {

void check_copy_matrix(const ConstMatrix& from, const Matrix& to);
void check_params(const EmbeddingParams& params);
// The ids themselves, for backends whose device memory is the host's.
void check_token_ids(const EmbeddingParams& params);
void check_params(const RmsNormParams& params);
void check_params(const LayerNormParams& params);
void check_params(const RopeParams& params);
void check_params(const LinearParams& params);
void check_params(const SwigluParams& params);
void check_params(const KvWriteParams& params);
void check_params(const PagedAttentionParams& params);
void check_params(const MlaAttentionParams& params);
void check_params(const DsaSelectParams& params);
void check_params(const MoeRouteParams& params);
void check_params(const MoeExpertsParams& params);
void check_params(const VerifyPagesParams& params);
void check_params(const GatherPagesParams& params);
void check_params(const ScatterPagesParams& params);
void check_params(const DigestPagesParams& params);
void check_params(const DigestTokensParams& params);
void check_params(const CheckDigestsParams& params);
void check_params(const SampleTokensParams& params);

void check_sources(const ExpertSources& sources);
void check_sources(const WeightSource& kv_b_proj, const MlaShape& shape);

// Weights come from files, so that this one refuses and does not abort: ok, or why a backend of that name cannot
// compute with the weight: its shape (of which no backend computes more than element_bytes_max bytes an element), its
// groups, its format in this usage. That a quantized weight has scales is the caller's business, and checked.
base::Status check_source(const WeightSource& source, std::string_view backend, std::int64_t element_bytes_max);

}  // namespace tessera::ops
