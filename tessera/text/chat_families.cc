#include "tessera/text/chat_families.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::text {

std::string listed(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

namespace {

base::Status check_options(std::string_view format, const RenderOptions& options, const ChatAbilities& abilities) {
  const auto refuse = [format](std::string_view what) {
    return base::invalid_argument(fmt::format("{}, with the chat format {}", what, format));
  };
  using KeepReasoning = ChatAbilities::KeepReasoning;
  if (options.thinking.has_value()) {
    if (*options.thinking && abilities.thinking == Thinking::kNever) {
      return refuse("thinking: true is not possible: the model does not reason");
    }
    if (!*options.thinking && abilities.thinking == Thinking::kAlways) {
      return refuse("thinking: false is not possible: the model always reasons");
    }
  }
  if (options.keep_reasoning.has_value()) {
    if (*options.keep_reasoning && abilities.keep_reasoning == KeepReasoning::kNo) {
      return refuse("preserve_thinking: true (clear_thinking: false) is not possible");
    }
    if (!*options.keep_reasoning && abilities.keep_reasoning == KeepReasoning::kAlways) {
      return refuse("preserve_thinking: false (clear_thinking: true) is not possible");
    }
  }
  if (options.reasoning_effort.has_value()) {
    if (abilities.reasoning_efforts.empty()) return refuse("reasoning_effort: cannot be chosen");
    if (std::ranges::find(abilities.reasoning_efforts, *options.reasoning_effort) ==
        abilities.reasoning_efforts.end()) {
      return refuse(fmt::format("reasoning_effort: '{}' is not known, expected one of {}", *options.reasoning_effort,
                                listed(abilities.reasoning_efforts)));
    }
  }
  return {};
}

}  // namespace

base::Result<ChatTokens> ChatTokens::create(std::string_view format, const Tokenizer& tokenizer,
                                            std::span<const std::string_view> markers,
                                            std::span<const std::string_view> stops) {
  TESSERA_ASSIGN_OR_RETURN(Markup markup, Markup::create(format, tokenizer, markers));
  TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> ids, chat_stop_ids(format, tokenizer, stops));
  return ChatTokens{std::move(markup), std::move(ids)};
}

base::Result<std::vector<Segment>> FamilyChatFormat::render(const Conversation& conversation,
                                                            const RenderOptions& options) const {
  if (conversation.messages.empty()) return base::failure(base::invalid_argument("messages: is empty"));
  TESSERA_RETURN_IF_ERROR(check_options(name_, options, abilities()));
  PromptWriter out(tokens_.markup);
  TESSERA_RETURN_IF_ERROR(write(conversation, options, out));
  return out.take();
}

base::Result<std::vector<PythonValue>> parse_tools(const Conversation& conversation, ValueBudget& budget) {
  std::vector<PythonValue> tools;
  tools.reserve(conversation.tools.size());
  for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
    base::Result<PythonValue> tool = parse_python_json(conversation.tools[i].source, budget);
    if (!tool.has_value()) {
      return base::failure(base::invalid_argument(tool.error().message()).with_context(fmt::format("tools[{}]", i)));
    }
    tools.push_back(*std::move(tool));
  }
  return tools;
}

base::Result<PythonValue> parse_arguments(const Conversation& conversation, std::size_t message_index,
                                          std::size_t call_index, ValueBudget& budget) {
  const std::string& text = conversation.messages[message_index].tool_calls[call_index].arguments;
  if (text.empty()) return PythonValue{.kind = PythonValue::Kind::kDict};
  const auto where = [&] {
    return fmt::format("messages[{}].tool_calls[{}].function.arguments", message_index, call_index);
  };
  base::Result<PythonValue> value = parse_python_json(text, budget);
  if (!value.has_value()) {
    return base::failure(base::invalid_argument(value.error().message()).with_context(where()));
  }
  if (!value->is(PythonValue::Kind::kDict)) {
    return base::failure(base::invalid_argument("is not the JSON text of an object").with_context(where()));
  }
  return value;
}

std::optional<InlineReasoning> split_reasoning(std::string_view content, ReasoningNewlines newlines) {
  constexpr std::string_view kBegin = "<think>";
  constexpr std::string_view kEnd = "</think>";
  const std::size_t first = content.find(kEnd);
  if (first == std::string_view::npos) return std::nullopt;
  InlineReasoning parts{content.substr(0, first), content.substr(content.rfind(kEnd) + kEnd.size())};
  if (newlines == ReasoningNewlines::kStrip) parts.reasoning = strip_trailing_newlines(parts.reasoning);
  const std::size_t begin = parts.reasoning.rfind(kBegin);
  if (begin != std::string_view::npos) parts.reasoning.remove_prefix(begin + kBegin.size());
  if (newlines == ReasoningNewlines::kStrip) {
    parts.reasoning = strip_leading_newlines(parts.reasoning);
    parts.content = strip_leading_newlines(parts.content);
  }
  return parts;
}

}  // namespace tessera::text
