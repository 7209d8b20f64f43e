// WikiText-2: how well a model foresees articles of Wikipedia. As lm-evaluation-harness does it (task wikitext): each
// article is one text, its upstream spacing undone; its tokens are scored in windows of the model's context that
// overlap by one token; the sum is divided by the words and bytes of the article as upstream has it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quality/likelihood.h"
#include "tessera/quality/task.h"

namespace tessera::quality {

TaskEntry wikitext_task();

// The articles of a file of the raw edition, in order: each begins at a line " = Title = " and ends before the newline
// of the next one's. What is before the first, if there is more than white space, is an article too. This is how the
// published document-level edition (EleutherAI/wikitext_document_level) is made.
std::vector<std::string> wikitext_articles(std::string_view text);

// Upstream's tokenized spacing (" , ", " @-@ ", " ( a ) ") undone by the harness's wikitext_detokenizer, to the letter,
// with what that gets wrong.
std::string wikitext_detokenize(std::string_view page);

// Windows that score each token of `text` once: the first begins with `prefix`, the others with the token before them,
// as far as fits. A window has at most `window` tokens and the one before them (the harness's get_rolling_token_windows
// with context_len 1, made disjoint). window > 0.
std::vector<ScoredTokens> rolling_windows(std::span<const TokenId> text, TokenId prefix, std::size_t window);

}  // namespace tessera::quality
