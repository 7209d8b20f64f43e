#include "tessera/quality/call_tokens.h"

#include <algorithm>
#include <cstddef>

namespace tessera::quality {

base::Result<std::vector<TokenId>> call_tokens(const ChatQuestion& question, std::span<const TokenId> prompt,
                                               const std::vector<ToolCall>& calls, Respondent& respondent) {
  ChatQuestion longer = question;
  longer.messages.push_back({.role = "assistant", .content = {}, .calls = calls});
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> whole, respondent.encode_chat(longer));
  const std::span<const TokenId> all(whole);
  if (all.size() <= prompt.size() || !std::ranges::equal(all.first(prompt.size()), prompt)) {
    return std::vector<TokenId>{};
  }
  std::size_t shared = 0;
  const std::size_t most = std::min(prompt.size(), all.size() - prompt.size());
  while (shared < most && prompt[prompt.size() - 1 - shared] == all[all.size() - 1 - shared]) ++shared;
  const std::span<const TokenId> tokens = all.subspan(prompt.size(), all.size() - prompt.size() - shared);
  return std::vector<TokenId>(tokens.begin(), tokens.end());
}

}  // namespace tessera::quality
