// How KV is stored and digested, written a second time from the definitions (ops/transformer.h, ops/page_transfer.h)
// by search and by arithmetic in double, sharing nothing with the backends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/ops/kv_layout.h"

namespace tessera::conformance {

// The value of an e4m3 code; NaN for 0x7f and 0xff.
double e4m3_value(std::uint8_t code);
// The code whose value is nearest to x, found by looking at all; the even one of two equally near.
std::uint8_t nearest_e4m3(float x);
// The bfloat16 nearest to x, the even one of two equally near; infinity where it is nearer than the largest.
float nearest_bf16(float x);
// The smallest positive bfloat16 that is not less than x >= 0, found by bisection; its bits.
std::uint16_t bf16_not_less(float x);

struct StoredRow {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<float> values;  // What reading it back gives.
};
// One token's row of one part; all values finite.
StoredRow store_row(const ops::KvLayout& layout, int part, std::span<const float> x);

// XXH3-64 of a row (its parts' data and scales in order), seeded for its layer and slot.
std::uint64_t row_digest(std::uint64_t key, std::int32_t layer, std::int32_t slot,
                         std::span<const std::byte> row_bytes);

}  // namespace tessera::conformance
