// Qwen2.5 and Qwen3:
//
//   <|im_start|>system\n{content}{tools}<|im_end|>\n       {content} of a first system message, or Qwen2.5's default
//   <|im_start|>{role}\n{content}<|im_end|>\n              further system messages, users
//   <|im_start|>assistant\n{think}{content}{calls}<|im_end|>\n
//   <|im_start|>user{results}<|im_end|>\n                  once for results in a row
//   <|im_start|>assistant\n                                the generation prompt
//
// A call is <tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>, with a newline before it unless it
// begins the message; a result is \n<tool_response>\n{content}\n</tool_response>. {think} is
// <think>\n{reasoning}\n</think>\n\n for turns after the last user's question, if there is reasoning or the turn is the
// conversation's last; Qwen3's generation prompt has an empty one where thinking is off, and Qwen3-Thinking-2507's
// opens it. Qwen2.5 writes arguments anew from what they mean, Qwen3 as they came. A content that is null is the empty
// text.
#include <algorithm>
#include <array>

#include "tessera/text/chat_families.h"

namespace tessera::text {
namespace {

constexpr std::array<std::string_view, 4> kMarkers = {"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"};
// Qwen3's vocabulary has these too; for Qwen2.5 they are text.
constexpr std::array<std::string_view, 4> kQwen3Markers = {"<tool_response>", "</tool_response>", "<think>",
                                                           "</think>"};
constexpr std::array<std::string_view, 2> kStops = {"<|im_end|>", "<|endoftext|>"};

constexpr std::string_view kQwen25System = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
constexpr std::string_view kToolsBegin =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsEnd =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
    "</tool_call>";

enum class Version { kQwen25, kQwen3, kQwen3Instruct2507, kQwen3Thinking2507 };

struct Variant {
  std::string_view name;
  Version version;
};

constexpr std::array<Variant, 4> kVariants = {{
    {"qwen25", Version::kQwen25},
    {"qwen3", Version::kQwen3},
    {"qwen3_instruct_2507", Version::kQwen3Instruct2507},
    {"qwen3_thinking_2507", Version::kQwen3Thinking2507},
}};
constexpr auto kNames = names_of(kVariants);

// A rendering under way.
struct Rendering {
  const Conversation& conversation;
  std::size_t after_last_query;
  PromptWriter& out;
  ValueBudget budget = {};
};

class QwenChatFormat : public FamilyChatFormat {
 public:
  QwenChatFormat(const Variant& variant, ChatTokens tokens)
      : FamilyChatFormat(variant.name, std::move(tokens)), variant_(variant) {}

  OutputSyntax output_syntax(const RenderOptions& options) const override {
    OutputSyntax syntax{ReasoningSyntax::kNone, ToolCallSyntax::kHermes};
    if (!reasons()) return syntax;
    const bool inside =
        variant_.version == Version::kQwen3Thinking2507 && options.generation_prompt == GenerationPrompt::kAdd;
    syntax.reasoning = inside ? ReasoningSyntax::kInside : ReasoningSyntax::kOutside;
    return syntax;
  }

 private:
  base::Status write(const Conversation& conversation, const RenderOptions& options, PromptWriter& out) const override {
    const std::vector<ChatMessage>& messages = conversation.messages;
    Rendering rendering{conversation, end_of_queries(messages), out};
    TESSERA_RETURN_IF_ERROR(write_beginning(rendering));
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const std::string_view content = content_of(message);
      switch (message.role) {
        case Role::kSystem:
        case Role::kDeveloper:
          if (i == 0) break;
          out.markup("<|im_start|>system\n").text(content).markup("<|im_end|>\n");
          break;
        case Role::kUser:
          out.markup("<|im_start|>user\n").text(content).markup("<|im_end|>\n");
          break;
        case Role::kAssistant:
          TESSERA_RETURN_IF_ERROR(write_answer(i, rendering));
          break;
        case Role::kTool:
          if (i == 0 || messages[i - 1].role != Role::kTool) out.markup("<|im_start|>user");
          out.markup("\n<tool_response>\n").text(content).markup("\n</tool_response>");
          if (i + 1 == messages.size() || messages[i + 1].role != Role::kTool) out.markup("<|im_end|>\n");
          break;
      }
    }
    if (options.generation_prompt == GenerationPrompt::kAdd) {
      out.markup("<|im_start|>assistant\n");
      if (variant_.version == Version::kQwen3Thinking2507) {
        out.markup("<think>\n");
      } else if (variant_.version == Version::kQwen3 && !options.thinking.value_or(true)) {
        out.markup("<think>\n\n</think>\n\n");
      }
    }
    return {};
  }

  bool reasons() const {
    return variant_.version == Version::kQwen3 || variant_.version == Version::kQwen3Thinking2507;
  }

  ChatAbilities abilities() const override {
    switch (variant_.version) {
      case Version::kQwen3:
        return {.thinking = Thinking::kChoice};
      case Version::kQwen3Thinking2507:
        return {.thinking = Thinking::kAlways};
      case Version::kQwen25:
      case Version::kQwen3Instruct2507:
        break;
    }
    return {.thinking = Thinking::kNever};
  }

  // The first system message, which holds the tools too.
  base::Status write_beginning(Rendering& rendering) const {
    const Conversation& conversation = rendering.conversation;
    PromptWriter& out = rendering.out;
    const ChatMessage& first = conversation.messages.front();
    const bool has_system = is_system(first.role);
    const bool has_default = variant_.version == Version::kQwen25;
    if (!has_system && !has_default && conversation.tools.empty()) return {};
    out.markup("<|im_start|>system\n");
    if (has_system) {
      out.text(content_of(first));
    } else if (has_default) {
      out.markup(kQwen25System);
    }
    if (!conversation.tools.empty()) {
      if (has_system || has_default) out.markup("\n\n");
      out.markup(kToolsBegin);
      TESSERA_ASSIGN_OR_RETURN(const std::vector<PythonValue> tools, parse_tools(conversation, rendering.budget));
      for (const PythonValue& tool : tools) {
        std::string text;
        append_python_json(tool, JsonSpacing::kSpaces, text);
        out.markup("\n").text(text);
      }
      out.markup(kToolsEnd);
    }
    out.markup("<|im_end|>\n");
    return {};
  }

  // The index behind the last user's message that is a question, not the result of a tool written as one. The number of
  // messages if there is none.
  static std::size_t end_of_queries(const std::vector<ChatMessage>& messages) {
    for (std::size_t i = messages.size(); i > 0; --i) {
      const ChatMessage& message = messages[i - 1];
      if (message.role != Role::kUser) continue;
      const std::string_view content = content_of(message);
      if (!content.starts_with("<tool_response>") || !content.ends_with("</tool_response>")) return i;
    }
    return messages.size();
  }

  base::Status write_answer(std::size_t index, Rendering& rendering) const {
    const Conversation& conversation = rendering.conversation;
    PromptWriter& out = rendering.out;
    const ChatMessage& message = conversation.messages[index];
    std::string_view content = content_of(message);
    // Qwen2.5 begins the line of its content, or of the first call, with the newline that the others put behind the
    // role.
    const bool newline_later = variant_.version == Version::kQwen25 && !message.tool_calls.empty();
    out.markup(newline_later && content.empty() ? "<|im_start|>assistant" : "<|im_start|>assistant\n");
    if (reasons()) {
      std::string_view reasoning;
      if (message.reasoning.has_value()) {
        reasoning = *message.reasoning;
      } else if (const auto parts = split_reasoning(content, ReasoningNewlines::kStrip)) {
        reasoning = parts->reasoning;
        content = parts->content;
      }
      const bool is_last = index + 1 == conversation.messages.size();
      if (index >= rendering.after_last_query && (is_last || !reasoning.empty())) {
        out.markup("<think>\n").text(strip_newlines(reasoning)).markup("\n</think>\n\n");
        out.text(strip_leading_newlines(content));
      } else {
        out.text(content);
      }
    } else {
      out.text(content);
    }
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      const ToolCall& call = message.tool_calls[i];
      if (newline_later || i > 0 || !content.empty()) out.markup("\n");
      out.markup("<tool_call>\n{\"name\": \"").text(call.name).markup("\", \"arguments\": ");
      if (variant_.version == Version::kQwen25) {
        TESSERA_ASSIGN_OR_RETURN(const PythonValue arguments,
                                 parse_arguments(conversation, index, i, rendering.budget));
        std::string text;
        append_python_json(arguments, JsonSpacing::kSpaces, text);
        out.text(text);
      } else {
        out.text(call.arguments);
      }
      out.markup("}\n</tool_call>");
    }
    out.markup("<|im_end|>\n");
    return {};
  }

  Variant variant_;
};

std::string_view recognize_qwen(const ChatCheckpoint& checkpoint) {
  const auto says = [&](std::string_view words) { return checkpoint.template_says(words); };
  if (!says("<|im_start|>") || !says("<args-json-object>")) return "";
  if (checkpoint.model_type == "qwen2") return says(kQwen25System) && !says("<think>") ? "qwen25" : "";
  if (checkpoint.model_type != "qwen3") return "";
  if (!says("<think>")) return "qwen3_instruct_2507";
  return says("enable_thinking") ? "qwen3" : "qwen3_thinking_2507";
}

base::Result<std::unique_ptr<const ChatFormat>> create_qwen(std::string_view name, const ChatCheckpoint& checkpoint) {
  const Variant variant = *std::ranges::find(kVariants, name, &Variant::name);
  std::vector<std::string_view> markers(kMarkers.begin(), kMarkers.end());
  if (variant.version != Version::kQwen25) markers.insert(markers.end(), kQwen3Markers.begin(), kQwen3Markers.end());
  TESSERA_ASSIGN_OR_RETURN(ChatTokens tokens, ChatTokens::create(name, checkpoint.tokenizer, markers, kStops));
  return std::make_unique<const QwenChatFormat>(variant, std::move(tokens));
}

}  // namespace

const ChatFamily kQwenFamily = {kNames, recognize_qwen, create_qwen};

}  // namespace tessera::text
