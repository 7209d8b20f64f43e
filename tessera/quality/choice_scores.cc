#include "tessera/quality/choice_scores.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/text/utf8.h"

namespace tessera::quality {

std::size_t likeliest(std::span<const double> logprobs) {
  TESSERA_CHECK(!logprobs.empty());
  return static_cast<std::size_t>(std::distance(logprobs.begin(), std::ranges::max_element(logprobs)));
}

std::size_t likeliest_by_length(std::span<const double> logprobs, std::span<const std::string> choices) {
  TESSERA_CHECK(logprobs.size() == choices.size());
  std::vector<double> by_length;
  by_length.reserve(choices.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    std::size_t characters = 0;
    for (std::string_view rest = choices[i]; !rest.empty(); ++characters) {
      rest.remove_prefix(text::next_utf8_unit(rest).length);
    }
    TESSERA_CHECK(characters > 0);
    by_length.push_back(logprobs[i] / static_cast<double>(characters));
  }
  return likeliest(by_length);
}

}  // namespace tessera::quality
