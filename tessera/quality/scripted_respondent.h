// For tests: a respondent whose answers a test writes, over the bundled model's real tokens and chat format.
#pragma once

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/quality/respondent.h"
#include "tessera/quality/task.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/conversation.h"
#include "tessera/text/tokenizer.h"

namespace tessera::quality {

// Answers with what `on_chat`, `on_complete` and `on_score` say; each of them must be set where it is asked.
class ScriptedRespondent : public Respondent {
 public:
  ScriptedRespondent()
      : tokenizer_(text::Tokenizer::load(model_dir()).value()),
        format_(text::ChatFormat::load(model_dir(), *tokenizer_).value()) {}

  static std::filesystem::path model_dir() {
    return std::filesystem::path(TESSERA_SOURCE_DIR) / "models" / "tessera-pocket";
  }
  static DataFolders folders() {
    return {.data = std::filesystem::path(TESSERA_SOURCE_DIR) / "data" / "evaluation",
            .pocket_tasks = model_dir() / "tasks"};
  }

  std::function<base::Result<Answer>(const ChatQuestion&)> on_chat;
  std::function<base::Result<Answer>(const CompletionQuestion&)> on_complete;
  std::function<base::Result<std::vector<TokenScore>>(std::span<const TokenId>, std::size_t)> on_score;

  const RespondentInfo& info() const override { return info_; }
  base::Result<Answer> chat(const ChatQuestion& question) override { return on_chat(question); }
  base::Result<Answer> complete(const CompletionQuestion& question) override { return on_complete(question); }
  base::Result<std::vector<TokenId>> encode_prompt(std::string_view text) override { return encode(text); }
  base::Result<std::vector<TokenId>> encode(std::string_view text) override { return tokenizer_->encode(text); }
  base::Result<std::vector<TokenScore>> score(std::span<const TokenId> tokens, std::size_t first) override {
    return on_score(tokens, first);
  }

  // As the server does it: the message as the API has it, rendered by the model's own format.
  base::Result<std::vector<TokenId>> encode_chat(const ChatQuestion& question) override {
    text::Conversation conversation;
    for (const ChatMessage& message : question.messages) {
      text::ChatMessage rendered{.role = text::parse_role(message.role).value(), .content = message.content};
      rendered.name = message.name;
      rendered.tool_call_id = message.tool_call_id;
      for (const ToolCall& call : message.calls) rendered.tool_calls.push_back({call.id, call.name, call.arguments});
      conversation.messages.push_back(std::move(rendered));
    }
    if (!question.tools.empty()) {
      const boost::json::value tools = boost::json::parse(question.tools);
      for (const boost::json::value& tool : tools.as_array()) {
        conversation.tools.push_back({.declaration = tool.as_object(), .source = boost::json::serialize(tool)});
      }
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<text::Segment> segments, format_->render(conversation, {}));
    return tokenizer_->encode(segments);
  }

 private:
  RespondentInfo info_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<const text::ChatFormat> format_;
};

}  // namespace tessera::quality
