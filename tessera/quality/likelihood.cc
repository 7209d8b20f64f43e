#include "tessera/quality/likelihood.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/quality/python_space.h"

namespace tessera::quality {

base::Result<std::vector<ScoredTokens>> encode_continuations(Respondent& respondent, std::string_view context,
                                                             std::span<const std::string> continuations) {
  const std::string_view kept = context.substr(0, context.size() - trailing_space(context));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> context_tokens, respondent.encode_prompt(kept));
  std::vector<ScoredTokens> all;
  all.reserve(continuations.size());
  for (const std::string& continuation : continuations) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> whole, respondent.encode_prompt(std::string(context) + continuation));
    if (whole.size() < 2) {
      return base::failure(base::invalid_argument(
          fmt::format("'{}{}' has fewer than two tokens: there is nothing to score", context, continuation)));
    }
    const std::size_t first = std::clamp<std::size_t>(context_tokens.size(), 1, whole.size() - 1);
    all.push_back({std::move(whole), first});
  }
  return all;
}

base::Result<Likelihood> likelihood(Respondent& respondent, const ScoredTokens& tokens) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenScore> scores, respondent.score(tokens.tokens, tokens.first));
  if (scores.size() != tokens.tokens.size() - tokens.first) {
    return base::failure(base::internal_error(
        fmt::format("asked for the scores of {} tokens, got {}", tokens.tokens.size() - tokens.first, scores.size())));
  }
  Likelihood sum;
  for (const TokenScore& score : scores) {
    sum.logprob += score.logprob;
    sum.is_greedy = sum.is_greedy && score.is_best;
  }
  sum.tokens = scores.size();
  return sum;
}

base::Result<std::vector<Likelihood>> likelihoods(Respondent& respondent, std::string_view context,
                                                  std::span<const std::string> continuations) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ScoredTokens> pairs,
                           encode_continuations(respondent, context, continuations));
  std::vector<Likelihood> all;
  all.reserve(pairs.size());
  for (const ScoredTokens& pair : pairs) {
    TESSERA_ASSIGN_OR_RETURN(const Likelihood one, likelihood(respondent, pair));
    all.push_back(one);
  }
  return all;
}

base::Result<Passage> encode_passage(Respondent& respondent, std::string_view context,
                                     const std::string& continuation) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ScoredTokens> pairs,
                           encode_continuations(respondent, context, {&continuation, 1}));
  const ScoredTokens& pair = pairs.front();
  const auto middle = pair.tokens.begin() + static_cast<std::ptrdiff_t>(pair.first);
  Passage passage;
  passage.prompt.assign(pair.tokens.begin(), middle);
  passage.continuation.assign(middle, pair.tokens.end());
  return passage;
}

}  // namespace tessera::quality
