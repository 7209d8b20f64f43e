// One token's row of one part of the KV cache: from floats to stored bytes and back. The exact meaning of "stored in
// this format" (ops/transformer.h, KvWriteParams) for every CPU op.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/dtype.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::backends::cpu {

// Whether the format can store all n values as finite numbers.
bool kv_row_is_storable(ops::KvFormat format, const float* x, std::int64_t n);

// The scale of a group whose largest magnitude is the finite amax: amax / 448 rounded up to BF16, 1 for 0.
base::BF16 kv_f8_scale(float amax);

// Stores part.elements floats. `scales` is used in FP8 only. In FP8, a scale group that holds NaN or infinity becomes
// zeros under a NaN scale, so that whatever reads it sees NaN. Neither pointer needs alignment.
void encode_kv_row(ops::KvFormat format, const ops::KvPart& part, const float* x, std::byte* data, std::byte* scales);

// Reads n = count elements from `first` on; each is exact in F32 (element times scale has 12 significant bits).
void decode_kv_row(ops::KvFormat format, const ops::KvPart& part, const std::byte* data, const std::byte* scales,
                   std::int64_t first, std::int64_t count, float* out);

// The scale group that an element belongs to.
inline std::int64_t kv_scale_group(const ops::KvPart& part, std::int64_t element) {
  return element < part.first_group ? 0 : 1 + (element - part.first_group) / part.other_groups;
}

}  // namespace tessera::backends::cpu
