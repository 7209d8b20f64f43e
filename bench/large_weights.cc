#include "bench/large_weights.h"

#include <cstring>

#include "tessera/base/arithmetic.h"
#include "tessera/base/dtype.h"

namespace tessera::bench {

namespace {

template <typename T>
void append(std::vector<std::byte>& to, T value, std::int64_t count) {
  const std::size_t at = to.size();
  to.resize(at + static_cast<std::size_t>(count) * sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to.data() + at + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

HostWeight random_host_weight(ops::WeightFormat format, std::int32_t group_size, std::int64_t rows, std::int64_t cols,
                              std::uint64_t seed) {
  HostWeight weight;
  const bool int4 = format == ops::WeightFormat::kInt4Group;
  weight.data.resize(static_cast<std::size_t>(int4 ? rows * cols / 2 : rows * cols));
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = int4 ? static_cast<std::byte>(i)
                    : static_cast<std::byte>(base::to_f8e4m3((static_cast<float>(i) - 127.5f) * 3.5f).bits);
  }
  std::uint64_t state = base::mix64(seed);
  for (std::byte& byte : weight.data) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    byte = codes[static_cast<std::size_t>(state >> 56)];
  }
  switch (format) {
    case ops::WeightFormat::kF8Block128:
      append(weight.scales, 1e-4f, base::ceil_div(rows, 128) * base::ceil_div(cols, 128));
      break;
    case ops::WeightFormat::kF8Channel:
      append(weight.scales, 1e-4f, rows);
      break;
    case ops::WeightFormat::kInt4Group:
      append(weight.scales, base::to_bf16(0.01f), rows * (cols / group_size));
      break;
    case ops::WeightFormat::kF32:
    case ops::WeightFormat::kBF16:
      break;
  }
  weight.source.format = format;
  weight.source.rows = rows;
  weight.source.cols = cols;
  weight.source.data = weight.data.data();
  weight.source.scales = weight.scales.data();
  weight.source.group_size = group_size;
  return weight;
}

}  // namespace tessera::bench
