// How many different experts a batch touches in one layer.
//
// Tokens choose independently; a token takes k of E experts. If expert e is among a token's k with probability p_e
// (which sum to k), a batch of B tokens touches sum_e 1 - (1 - p_e)^B of them on average: exactly, by the linearity of
// expectation, however a token's k choices depend on each other.
//
// Uniform: p_e = k / E, so E * (1 - (1 - k/E)^B). Zipf with exponent s: p_e = min(1, c / e^s) for e = 1 .. E, with the
// c that makes them sum to k; s = 0 is uniform.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::planner {

struct Routing {
  double zipf_exponent = 0;  // 0: uniform.
};

// "uniform", or "zipf:S" with 0 <= S <= 10.
base::Result<Routing> parse_routing(std::string_view text);
std::string routing_text(const Routing& routing);

// p_e of every expert, descending; 1 <= k <= experts.
std::vector<double> expert_probabilities(const Routing& routing, std::int64_t experts, std::int64_t k);

double expected_experts(std::span<const double> probabilities, std::int64_t batch);

}  // namespace tessera::planner
