// How likely a model finds given texts after another: the instrument of tasks that offer choices.
//
// How a pair is cut into tokens is the rule of the field's common harness (EleutherAI's lm-evaluation-harness,
// TemplateLM._encode_pair): white space that the context ends with moves to the continuation; the whole is encoded as a
// prompt begins (with BOS where the tokenizer puts it); of its tokens the first n are the context's, n being the number
// that the context has when it is encoded alone, and the others are scored.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/distribution_source.h"
#include "tessera/quality/respondent.h"

namespace tessera::quality {

// tokens[first] and all after it are to be scored; 0 < first < tokens.size().
struct ScoredTokens {
  std::vector<TokenId> tokens;
  std::size_t first = 0;
};

struct Likelihood {
  double logprob = 0.0;    // Sum over the tokens, natural logarithm.
  std::size_t tokens = 0;  // That were scored.
  bool is_greedy = true;   // Each was the likeliest where it stood.
};

// One for each continuation, in their order. A continuation all of which merged into the context's last token is scored
// by the whole's last token. invalid_argument: the whole has fewer than two tokens (context or continuation is empty);
// else as the respondent fails.
base::Result<std::vector<ScoredTokens>> encode_continuations(Respondent& respondent, std::string_view context,
                                                             std::span<const std::string> continuations);

// As the respondent fails; internal: it gave another number of scores than there are tokens.
base::Result<Likelihood> likelihood(Respondent& respondent, const ScoredTokens& tokens);

// Of each continuation after the context.
base::Result<std::vector<Likelihood>> likelihoods(Respondent& respondent, std::string_view context,
                                                  std::span<const std::string> continuations);

// The pair as a passage to lead plans through.
base::Result<Passage> encode_passage(Respondent& respondent, std::string_view context, const std::string& continuation);

}  // namespace tessera::quality
