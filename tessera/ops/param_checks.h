// One function for each op that aborts, naming the broken condition, where its parameters contradict what the op's
// header says of shapes, dtypes and host-side values. Backends call it first. It reads host memory only; what lies in
// device memory is for the backend to trust or check.
#pragma once

#include "tessera/ops/page_transfer.h"
#include "tessera/ops/sample.h"
#include "tessera/ops/transformer.h"
#include "tessera/ops/verify.h"

namespace tessera::ops {

void check_params(const EmbeddingParams& params);
void check_params(const RmsNormParams& params);
void check_params(const RopeParams& params);
void check_params(const LinearParams& params);
void check_params(const SwigluParams& params);
void check_params(const KvWriteParams& params);
void check_params(const PagedAttentionParams& params);
void check_params(const VerifyPagesParams& params);
void check_params(const GatherPagesParams& params);
void check_params(const ScatterPagesParams& params);
void check_params(const DigestPagesParams& params);
void check_params(const SampleTokensParams& params);

}  // namespace tessera::ops
