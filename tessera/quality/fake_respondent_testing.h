// A respondent for tests, without a model: tokens are bytes (and a BOS where asked for), answers and scores are what
// the test says. It keeps what it was asked.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/quality/respondent.h"

namespace tessera::quality {

class FakeRespondent : public Respondent {
 public:
  static constexpr TokenId kBos = 256;
  static constexpr TokenId kTurn = 257;  // Before each message's content, and before the answer.

  RespondentInfo information;
  bool has_bos = false;
  std::function<base::Result<Answer>(const ChatQuestion&)> on_chat;
  std::function<base::Result<Answer>(const CompletionQuestion&)> on_complete;
  // The score of tokens[at]; the text is that of the bytes before it.
  std::function<TokenScore(std::span<const TokenId> tokens, std::size_t at)> on_score;

  const RespondentInfo& info() const override { return information; }

  base::Result<Answer> chat(const ChatQuestion& question) override {
    const std::lock_guard lock(mutex_);
    chats.push_back(question);
    TESSERA_RETURN_IF_ERROR(check_length(chat_tokens(question).size() + static_cast<std::size_t>(question.max_tokens)));
    return on_chat(question);
  }
  base::Result<Answer> complete(const CompletionQuestion& question) override {
    const std::lock_guard lock(mutex_);
    completions.push_back(question);
    TESSERA_RETURN_IF_ERROR(check_length(question.prompt.size() + static_cast<std::size_t>(question.max_tokens)));
    return on_complete(question);
  }
  base::Result<std::vector<TokenId>> encode_prompt(std::string_view text) override {
    std::vector<TokenId> tokens = bytes(text);
    if (has_bos) tokens.insert(tokens.begin(), kBos);
    return tokens;
  }
  base::Result<std::vector<TokenId>> encode(std::string_view text) override { return bytes(text); }
  base::Result<std::vector<TokenId>> encode_chat(const ChatQuestion& question) override {
    return chat_tokens(question);
  }
  base::Result<std::vector<TokenScore>> score(std::span<const TokenId> tokens, std::size_t first) override {
    const std::lock_guard lock(mutex_);
    scored.emplace_back(tokens.begin(), tokens.end());
    TESSERA_RETURN_IF_ERROR(check_length(tokens.size()));
    std::vector<TokenScore> scores;
    scores.reserve(tokens.size() - first);
    for (std::size_t i = first; i < tokens.size(); ++i) scores.push_back(on_score(tokens, i));
    return scores;
  }

  static std::string text_of(std::span<const TokenId> tokens) {
    std::string text;
    for (const TokenId token : tokens) {
      if (token < kBos) text += static_cast<char>(token);
    }
    return text;
  }

  std::vector<ChatQuestion> chats;
  std::vector<CompletionQuestion> completions;
  std::vector<std::vector<TokenId>> scored;

 private:
  static std::vector<TokenId> bytes(std::string_view text) {
    std::vector<TokenId> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::vector<TokenId> chat_tokens(const ChatQuestion& question) const {
    std::vector<TokenId> tokens;
    for (const ChatMessage& message : question.messages) {
      tokens.push_back(kTurn);
      for (const char c : message.content) tokens.push_back(static_cast<unsigned char>(c));
    }
    tokens.push_back(kTurn);
    return tokens;
  }
  base::Status check_length(std::size_t tokens) const {
    if (information.context_tokens == 0 || std::cmp_less_equal(tokens, information.context_tokens)) {
      return base::ok_status();
    }
    return base::out_of_range("longer than the context");
  }

  std::mutex mutex_;
};

}  // namespace tessera::quality
