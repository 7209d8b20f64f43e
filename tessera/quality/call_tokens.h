// Right tool calls as tokens, in the model's own way of writing them.
#pragma once

#include <span>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/respondent.h"

namespace tessera::quality {

// `prompt`: respondent.encode_chat(question). The calls' tokens are what a conversation that goes on after them has
// between the prompt and the end that both share (the end of a turn and the beginning of the next answer). Empty where
// the model's format does not write it so.
base::Result<std::vector<TokenId>> call_tokens(const ChatQuestion& question, std::span<const TokenId> prompt,
                                               const std::vector<ToolCall>& calls, Respondent& respondent);

}  // namespace tessera::quality
