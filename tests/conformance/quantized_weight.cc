#include "tests/conformance/quantized_weight.h"

#include <cmath>
#include <cstring>

#include "tests/conformance/independent.h"

namespace tessera::conformance {

namespace {

template <typename T>
void append(std::vector<std::byte>& to, T value) {
  const std::size_t at = to.size();
  to.resize(at + sizeof(T));
  std::memcpy(to.data() + at, &value, sizeof(T));
}

std::uint16_t bf16_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

// A scale that is no power of two, so that every product with it is rounded.
float random_scale(Random& random, double spread) {
  return static_cast<float>(spread * (0.5 + random.uniform()) * std::ldexp(1.0, static_cast<int>(random.below(3)) - 1));
}

// Normally distributed values as codes of the given scale; never NaN.
std::uint8_t random_e4m3(Random& random, double of) {
  const float x = static_cast<float>(std::fmax(-448.0, std::fmin(448.0, static_cast<double>(random.normal()) * of)));
  return nearest_e4m3(x);
}

void fill_fp8(StoredWeight& w, Random& random, double spread) {
  const bool blocks = w.format == ops::WeightFormat::kF8Block128;
  const std::int64_t blocks_a_row = blocks ? (w.cols + 127) / 128 : 1;
  const std::int64_t scale_rows = blocks ? (w.rows + 127) / 128 : w.rows;
  std::vector<float> scales;
  for (std::int64_t i = 0; i < scale_rows * blocks_a_row; ++i) {
    scales.push_back(random_scale(random, spread / 100.0));
    append(w.scales, scales.back());
  }
  for (std::int64_t n = 0; n < w.rows; ++n) {
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const std::uint8_t code = random_e4m3(random, 100.0);
      append(w.data, code);
      const std::int64_t scale = blocks ? n / 128 * blocks_a_row + k / 128 : n;
      w.values.at(n, k) =
          static_cast<float>(e4m3_value(code) * static_cast<double>(scales[static_cast<std::size_t>(scale)]));
    }
  }
}

void fill_int4(StoredWeight& w, Random& random, double spread) {
  for (std::int64_t n = 0; n < w.rows; ++n) {
    float scale = 0.0f;
    std::uint32_t word = 0;
    for (std::int64_t k = 0; k < w.cols; ++k) {
      if (k % w.group_size == 0) {
        scale = nearest_bf16(random_scale(random, spread / 4.0));
        append(w.scales, bf16_bits(scale));
      }
      const int q = static_cast<int>(random.below(16)) - 8;
      word |= static_cast<std::uint32_t>(q + 8) << (4 * (k % 8));
      if (k % 8 == 7) {
        append(w.data, word);
        word = 0;
      }
      w.values.at(n, k) = static_cast<float>(q * static_cast<double>(scale));
    }
  }
}

}  // namespace

ops::WeightSource StoredWeight::source(ops::WeightUsage usage) const {
  ops::WeightSource source;
  source.format = format;
  source.usage = usage;
  source.rows = rows;
  source.cols = cols;
  source.data = data.data();
  source.scales = scales.empty() ? nullptr : scales.data();
  source.group_size = group_size;
  return source;
}

StoredWeight random_stored_weight(Random& random, ops::WeightFormat format, std::int64_t rows, std::int64_t cols,
                                  std::int32_t group_size, double spread) {
  StoredWeight w;
  w.format = format;
  w.rows = rows;
  w.cols = cols;
  w.group_size = format == ops::WeightFormat::kInt4Group ? group_size : 0;
  w.values = HostMatrix(rows, cols);
  switch (format) {
    case ops::WeightFormat::kF32:
    case ops::WeightFormat::kBF16:
      for (float& value : w.values.values) {
        value = static_cast<float>(spread * static_cast<double>(random.normal()));
        if (format == ops::WeightFormat::kBF16) {
          value = nearest_bf16(value);
          append(w.data, bf16_bits(value));
        } else {
          append(w.data, value);
        }
      }
      break;
    case ops::WeightFormat::kF8Block128:
    case ops::WeightFormat::kF8Channel:
      fill_fp8(w, random, spread);
      break;
    case ops::WeightFormat::kInt4Group:
      fill_int4(w, random, spread);
      break;
  }
  return w;
}

std::vector<WeightCase> weight_cases() {
  using ops::WeightFormat;
  return {{WeightFormat::kF32, 0},        {WeightFormat::kBF16, 0},       {WeightFormat::kF8Block128, 0},
          {WeightFormat::kF8Channel, 0},  {WeightFormat::kInt4Group, 32}, {WeightFormat::kInt4Group, 64},
          {WeightFormat::kInt4Group, 128}};
}

std::string case_text(const WeightCase& weight_case) {
  std::string text = ops::weight_format_name(weight_case.format);
  if (weight_case.group_size > 0) text += " of " + std::to_string(weight_case.group_size);
  return text;
}

}  // namespace tessera::conformance
