#include "tessera/text/pattern.h"

#include <algorithm>
#include <cstddef>

namespace tessera::text {
namespace {

using Node = Pattern::Node;

constexpr double kWaysMax = 4096;

// In how many ways something can match at one place, which is how often what follows it may be tried: at most
// ways * n^degree, n being the length of the text.
struct Ways {
  int degree = 0;
  double ways = 1;
};

Ways then(Ways a, Ways b) { return {a.degree + b.degree, std::min(a.ways * b.ways, 1e9)}; }
Ways either(Ways a, Ways b) { return {std::max(a.degree, b.degree), std::min(a.ways + b.ways, 1e9)}; }

Ways all_ways(const Node& node) {
  if (node.kind == Pattern::Kind::kClass) {
    // A possessive repeat ends in one way only, but is gone through again each time it is tried.
    if (node.maximum == Pattern::kUnbounded) return {1, 1.0 + node.minimum};
    return {0, 1.0 + node.maximum - (node.minimum == node.maximum ? 1 : 0)};
  }
  Ways sum{0, node.minimum == 0 ? 1.0 : 0.0};
  for (const Pattern::Sequence& sequence : node.choice) {
    Ways product;
    for (const Node& inner : sequence) product = then(product, all_ways(inner));
    sum = either(sum, product);
  }
  return sum;
}

bool can_fail(const Node& node) {
  return node.kind == Pattern::Kind::kLookAhead || node.kind == Pattern::Kind::kNegativeLookAhead ||
         !matches_empty(node);
}

// Of an alternative of the whole pattern. After its last part that can fail nothing is tried twice.
Ways tried_ways(const Pattern::Sequence& sequence) {
  std::size_t last = sequence.size();
  while (last > 0 && !can_fail(sequence[last - 1])) --last;
  Ways product;
  for (std::size_t i = 0; i < last; ++i) {
    const Node& node = sequence[i];
    if (i + 1 == last && node.kind == Pattern::Kind::kClass) {
      // Once past its minimum it has succeeded.
      product = then(product, {0, static_cast<double>(std::max(node.minimum, 1))});
    } else {
      product = then(product, all_ways(node));
    }
  }
  return product;
}

}  // namespace

bool matches_empty(const Pattern::Node& node) {
  return node.kind == Pattern::Kind::kLookAhead || node.kind == Pattern::Kind::kNegativeLookAhead ||
         node.minimum == 0 || (node.kind == Pattern::Kind::kGroup && matches_empty(node.choice));
}

bool matches_empty(const Pattern::Sequence& sequence) {
  return std::ranges::all_of(sequence, [](const Node& node) { return matches_empty(node); });
}

bool matches_empty(const Pattern::Choice& choice) {
  return std::ranges::any_of(choice, [](const Pattern::Sequence& sequence) { return matches_empty(sequence); });
}

base::Status check_linear(const Pattern& pattern) {
  if (matches_empty(pattern.choice)) return base::unimplemented("the pattern can match the empty string");
  Ways sum{0, 0};
  for (const Pattern::Sequence& sequence : pattern.choice) sum = either(sum, tried_ways(sequence));
  if (sum.degree > 1 || sum.ways > kWaysMax) {
    return base::unimplemented("the pattern repeats so that matching may take more than linear time");
  }
  return {};
}

}  // namespace tessera::text
