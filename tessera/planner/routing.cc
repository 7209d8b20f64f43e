#include "tessera/planner/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "tessera/base/check.h"
#include "tessera/weights/safetensors.h"

namespace tessera::planner {

namespace {

constexpr std::string_view kUniform = "uniform";
constexpr std::string_view kZipf = "zipf:";
constexpr double kExponentMax = 10.0;

}  // namespace

base::Result<Routing> parse_routing(std::string_view text) {
  if (text == kUniform) return Routing{};
  if (text.starts_with(kZipf)) {
    const std::string_view number = text.substr(kZipf.size());
    Routing routing;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), routing.zipf_exponent);
    const bool whole = error == std::errc{} && end == number.data() + number.size();
    if (whole && routing.zipf_exponent >= 0 && routing.zipf_exponent <= kExponentMax) return routing;
  }
  return base::failure(
      base::invalid_argument(fmt::format("routing {} is unknown, expected uniform or zipf:S with S from 0 to {}",
                                         weights::quote_name(text), kExponentMax)));
}

std::string routing_text(const Routing& routing) {
  return routing.zipf_exponent == 0 ? std::string(kUniform) : fmt::format("{}{}", kZipf, routing.zipf_exponent);
}

std::vector<double> expert_probabilities(const Routing& routing, std::int64_t experts, std::int64_t k) {
  TESSERA_CHECK(experts >= 1 && k >= 1 && k <= experts);
  std::vector<double> probabilities(static_cast<std::size_t>(experts));
  for (std::int64_t e = 0; e < experts; ++e) {
    probabilities[static_cast<std::size_t>(e)] = std::pow(static_cast<double>(e + 1), -routing.zipf_exponent);
  }
  // They descend, so those that reach 1 are the first `capped`; the others share what remains in proportion.
  std::vector<double> tail_sums(probabilities.size() + 1, 0.0);
  for (std::size_t e = probabilities.size(); e-- > 0;) tail_sums[e] = tail_sums[e + 1] + probabilities[e];
  std::size_t capped = 0;
  const auto scale = [&] { return static_cast<double>(k - static_cast<std::int64_t>(capped)) / tail_sums[capped]; };
  while (capped < static_cast<std::size_t>(k) && scale() * probabilities[capped] >= 1.0) ++capped;
  const double c = scale();
  for (std::size_t e = 0; e < probabilities.size(); ++e) probabilities[e] = e < capped ? 1.0 : c * probabilities[e];
  return probabilities;
}

double expected_experts(std::span<const double> probabilities, std::int64_t batch) {
  TESSERA_CHECK(batch >= 0);
  double sum = 0;
  for (const double p : probabilities) {
    // 1 - (1 - p)^batch without the loss of small p.
    sum += p >= 1.0 ? (batch > 0 ? 1.0 : 0.0) : -std::expm1(static_cast<double>(batch) * std::log1p(-p));
  }
  return sum;
}

}  // namespace tessera::planner
