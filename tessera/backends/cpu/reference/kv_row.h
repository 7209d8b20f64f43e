// One token's row of one part of the KV cache: from floats to stored bytes and back. The exact meaning of "stored in
// this format" (ops/transformer.h, KvWriteParams) for every CPU op.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/dtype.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::backends::cpu {

// Whether the part can store all of its elements as finite numbers.
bool kv_row_is_storable(const ops::KvLayout& layout, int part, const float* x);

// The BF16 scale of a group of values whose largest magnitude is the finite amax: amax / 448 rounded up, 1 for 0.
base::BF16 kv_f8_scale(float amax);
// The F32 scale of index keys: amax / 448 itself, 1 for 0.
float index_key_scale(float amax);

// Stores the part's elements. `scales` is used where the part has scales. In FP8, a scale group that holds NaN or
// infinity becomes zeros under a NaN scale, so that its elements read as NaN: attention passes that on, dsa_select
// takes such a key last. Neither pointer needs alignment.
void encode_kv_row(const ops::KvLayout& layout, int part, const float* x, std::byte* data, std::byte* scales);

// Reads `count` elements from `first` on. Each is exact in F32, but for index keys in FP8, whose value is the F32
// product of code and scale.
void decode_kv_row(const ops::KvLayout& layout, int part, const std::byte* data, const std::byte* scales,
                   std::int64_t first, std::int64_t count, float* out);

// The scale group that an element belongs to.
inline std::int64_t kv_scale_group(const ops::KvPart& part, std::int64_t element) {
  return element < part.first_group ? 0 : 1 + (element - part.first_group) / part.other_groups;
}

}  // namespace tessera::backends::cpu
