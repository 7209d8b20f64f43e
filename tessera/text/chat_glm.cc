// GLM-4.5 and its successors:
//
//   [gMASK]<sop>
//   <|system|>Reasoning Effort: Max                     GLM-5.2, where thinking is on
//   <|system|>\n# Tools...                              if tools are declared
//   <|system|>{nl}{content}
//   <|user|>{nl}{content}                               GLM-4.5: /nothink behind it where thinking is off
//   <|assistant|>{nl}{think}{nl}{content}{nl}{calls}    each with its {nl} only where it is not empty
//   <|observation|>{results}                            once for results in a row
//   <|assistant|>                                       the generation prompt
//
// {nl} is a newline for GLM-4.5 and 4.6, nothing later. A call is <tool_call>NAME, a pair of <arg_key>KEY</arg_key> and
// <arg_value>VALUE</arg_value> for each argument and </tool_call>, in GLM-4.5 on lines of their own; string values are
// written raw, others as JSON. A result is <tool_response>{content}</tool_response>. {think} is
// <think>{reasoning}</think> for turns after the last user's; for others it says that there is none, in words that
// differ by version. GLM-4.7 and later can keep the reasoning of all turns, and have the generation prompt open
// <think>.
//
// A content that is null is rendered as the empty text, as servers that run the templates do and later versions of the
// templates themselves; the earlier versions would print Python's None.
#include <algorithm>
#include <array>

#include "tessera/text/chat_families.h"

namespace tessera::text {
namespace {

constexpr std::array<std::string_view, 16> kMarkers = {
    "[gMASK]",     "<sop>",        "<|system|>",      "<|user|>",        "<|assistant|>", "<|observation|>",
    "<think>",     "</think>",     "<tool_call>",     "</tool_call>",    "<arg_key>",     "</arg_key>",
    "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>"};
constexpr std::array<std::string_view, 3> kStops = {"<|endoftext|>", "<|user|>", "<|observation|>"};
constexpr std::array<std::string_view, 2> kEfforts = {"high", "max"};

enum class Layout { kLines, kCompact };
enum class Version { kGlm45, kGlm47, kGlm51, kGlm52 };

struct Variant {
  std::string_view name;
  Version version;
};

constexpr std::array<Variant, 5> kVariants = {{
    {"glm45", Version::kGlm45},
    {"glm47", Version::kGlm47},
    {"glm5", Version::kGlm47},
    {"glm51", Version::kGlm51},
    {"glm52", Version::kGlm52},
}};
constexpr auto kNames = names_of(kVariants);

constexpr std::string_view kToolsBegin =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr std::string_view kToolsEnd =
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n";
constexpr std::string_view kCallInLines =
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>";
constexpr std::string_view kCallCompact =
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

// Where a message stands in its conversation.
struct Turns {
  std::size_t after_last_user = 0;  // The index behind the last user's message.
  // By message: whether a user's turn, of which it is part, has an assistant's message that says what it reasoned.
  std::vector<bool> turn_reasoned = {};
};

Turns turns_of(const std::vector<ChatMessage>& messages) {
  Turns turns{.turn_reasoned = std::vector<bool>(messages.size(), false)};
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= messages.size(); ++i) {
    if (i < messages.size() && messages[i].role != Role::kUser) continue;
    bool reasoned = false;
    for (std::size_t j = begin; j < i; ++j) {
      reasoned = reasoned || (messages[j].role == Role::kAssistant && messages[j].reasoning.has_value());
    }
    const bool after_user = begin > 0 || (!messages.empty() && messages.front().role == Role::kUser);
    for (std::size_t j = begin; j < i; ++j) turns.turn_reasoned[j] = reasoned && after_user;
    if (i < messages.size()) turns.after_last_user = i + 1;
    begin = i;
  }
  return turns;
}

// A rendering under way.
struct Rendering {
  const Conversation& conversation;
  const RenderOptions& options;
  Turns turns;
  PromptWriter& out;
  ValueBudget budget = {};
};

class GlmChatFormat : public FamilyChatFormat {
 public:
  GlmChatFormat(const Variant& variant, ChatTokens tokens)
      : FamilyChatFormat(variant.name, std::move(tokens)), variant_(variant) {}

  OutputSyntax output_syntax(const RenderOptions& options) const override {
    const bool inside =
        opens_reasoning() && options.thinking.value_or(true) && options.generation_prompt == GenerationPrompt::kAdd;
    return {inside ? ReasoningSyntax::kInside : ReasoningSyntax::kOutside, ToolCallSyntax::kGlm};
  }

 private:
  base::Status write(const Conversation& conversation, const RenderOptions& options, PromptWriter& out) const override {
    const std::vector<ChatMessage>& messages = conversation.messages;
    const bool thinking = options.thinking.value_or(true);
    Rendering rendering{conversation, options, turns_of(messages), out};
    out.markup("[gMASK]<sop>");
    if (variant_.version == Version::kGlm52 && thinking) {
      out.markup(options.reasoning_effort == "high" ? "<|system|>Reasoning Effort: High"
                                                    : "<|system|>Reasoning Effort: Max");
    }
    if (!conversation.tools.empty()) TESSERA_RETURN_IF_ERROR(write_tools(rendering));
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const std::string_view content = content_of(message);
      switch (message.role) {
        case Role::kSystem:
        case Role::kDeveloper:
          out.markup("<|system|>").markup(newline()).text(content);
          break;
        case Role::kUser:
          out.markup("<|user|>").markup(newline()).text(content);
          if (in_lines() && !thinking && !content.ends_with("/nothink")) out.markup("/nothink");
          break;
        case Role::kAssistant:
          TESSERA_RETURN_IF_ERROR(write_answer(i, rendering));
          break;
        case Role::kTool:
          if (i == 0 || messages[i - 1].role != Role::kTool) out.markup("<|observation|>");
          out.markup(in_lines() ? "\n<tool_response>\n" : "<tool_response>").text(content);
          out.markup(in_lines() ? "\n</tool_response>" : "</tool_response>");
          break;
      }
    }
    if (options.generation_prompt == GenerationPrompt::kAdd) {
      out.markup("<|assistant|>");
      if (!thinking) {
        out.markup(newline()).markup(no_reasoning(variant_.version));
      } else if (opens_reasoning()) {
        out.markup("<think>");
      }
    }
    return {};
  }

  bool in_lines() const { return variant_.version == Version::kGlm45; }
  bool opens_reasoning() const { return variant_.version != Version::kGlm45; }
  // From GLM-5.1 on, reasoning is written as it came, even if it is empty.
  bool writes_reasoning_raw() const {
    return variant_.version == Version::kGlm51 || variant_.version == Version::kGlm52;
  }
  std::string_view newline() const { return in_lines() ? "\n" : ""; }
  static std::string_view no_reasoning(Version version) {
    return version == Version::kGlm47 || version == Version::kGlm51 ? "</think>" : "<think></think>";
  }

  ChatAbilities abilities() const override {
    using KeepReasoning = ChatAbilities::KeepReasoning;
    ChatAbilities abilities{.thinking = Thinking::kChoice};
    if (variant_.version != Version::kGlm45) abilities.keep_reasoning = KeepReasoning::kChoice;
    if (variant_.version == Version::kGlm52) abilities.reasoning_efforts = kEfforts;
    return abilities;
  }

  base::Status write_tools(Rendering& rendering) const {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<PythonValue> tools,
                             parse_tools(rendering.conversation, rendering.budget));
    PromptWriter& out = rendering.out;
    out.markup(kToolsBegin);
    for (const PythonValue& tool : tools) {
      std::string text;
      if (writes_reasoning_raw()) {
        text = function_text(tool);
      } else {
        append_python_json(tool, JsonSpacing::kSpaces, text);
      }
      if (!text.empty()) out.text(text).markup("\n");
    }
    out.markup(kToolsEnd).markup(in_lines() ? kCallInLines : kCallCompact);
    return {};
  }

  // From GLM-5.1 on: the function alone, without two of its fields, whose names are not escaped. Empty for one that the
  // client loads later.
  static std::string function_text(const PythonValue& declaration) {
    const PythonValue* function = declaration.find("function");
    if (function == nullptr) function = &declaration;
    const PythonValue* deferred = function->find("defer_loading");
    if (deferred != nullptr && deferred->truthy()) return "";
    std::string text = "{";
    for (const auto& [key, value] : function->members) {
      if (key == "defer_loading" || key == "strict") continue;
      if (text.size() > 1) text += ", ";
      text += '"' + key + "\": ";
      append_python_json(value, JsonSpacing::kSpaces, text);
    }
    return text + "}";
  }

  // The reasoning of an assistant's message, which `content` loses if it was written in it. Empty: the message has none
  // to speak of, which differs from an empty one.
  std::optional<std::string_view> reasoning_of(const ChatMessage& message, std::size_t index, const Turns& turns,
                                               bool thinking, std::string_view& content) const {
    if (message.reasoning.has_value()) return *message.reasoning;
    const ReasoningNewlines newlines = writes_reasoning_raw() ? ReasoningNewlines::kKeep : ReasoningNewlines::kStrip;
    if (const auto parts = split_reasoning(content, newlines)) {
      content = parts->content;
      return parts->reasoning;
    }
    if (variant_.version != Version::kGlm51) return std::nullopt;
    const bool is_recent = index >= turns.after_last_user;
    if (is_recent ? thinking : turns.turn_reasoned[index]) return "";
    return std::nullopt;
  }

  base::Status write_answer(std::size_t index, Rendering& rendering) const {
    const Conversation& conversation = rendering.conversation;
    const RenderOptions& options = rendering.options;
    const Turns& turns = rendering.turns;
    PromptWriter& out = rendering.out;
    const ChatMessage& message = conversation.messages[index];
    std::string_view content = content_of(message);
    const auto reasoning = reasoning_of(message, index, turns, options.thinking.value_or(true), content);
    const bool kept = options.keep_reasoning.value_or(false) || index >= turns.after_last_user;
    out.markup("<|assistant|>").markup(newline());
    if (kept && reasoning && (writes_reasoning_raw() || !reasoning->empty())) {
      const std::string_view text = writes_reasoning_raw() ? *reasoning : python_strip(*reasoning);
      out.markup("<think>").text(text).markup("</think>");
    } else {
      out.markup(no_reasoning(variant_.version));
    }
    content = python_strip(content);
    if (!content.empty()) out.markup(newline()).text(content);
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const PythonValue arguments, parse_arguments(conversation, index, i, rendering.budget));
      out.markup(newline()).markup("<tool_call>").text(message.tool_calls[i].name).markup(newline());
      for (const auto& [key, value] : arguments.members) {
        std::string text;
        if (value.is(PythonValue::Kind::kString)) {
          text = value.text;
        } else {
          append_python_json(value, JsonSpacing::kSpaces, text);
        }
        out.markup("<arg_key>").text(key).markup("</arg_key>").markup(newline());
        out.markup("<arg_value>").text(text).markup("</arg_value>").markup(newline());
      }
      out.markup("</tool_call>");
    }
    return {};
  }

  Variant variant_;
};

std::string_view recognize_glm(const ChatCheckpoint& checkpoint) {
  const std::string_view type = checkpoint.model_type;
  const auto says = [&](std::string_view words) { return checkpoint.template_says(words); };
  if ((type != "glm4_moe" && type != "glm_moe_dsa") || !checkpoint.chat_template.starts_with("[gMASK]<sop>")) return "";
  // GLM-5.3's, which is another format.
  if (says("'low'")) return "";
  if (says("Reasoning Effort: ")) return "glm52";
  if (says("thinking_indices")) return "glm51";
  if (says("clear_thinking")) return type == "glm4_moe" ? "glm47" : "glm5";
  return says("/nothink") ? "glm45" : "";
}

base::Result<std::unique_ptr<const ChatFormat>> create_glm(std::string_view name, const ChatCheckpoint& checkpoint) {
  const Variant variant = *std::ranges::find(kVariants, name, &Variant::name);
  std::vector<std::string_view> markers(kMarkers.begin(), kMarkers.end());
  if (variant.version == Version::kGlm45) markers.push_back("/nothink");
  TESSERA_ASSIGN_OR_RETURN(ChatTokens tokens, ChatTokens::create(name, checkpoint.tokenizer, markers, kStops));
  return std::make_unique<const GlmChatFormat>(variant, std::move(tokens));
}

}  // namespace

const ChatFamily kGlmFamily = {kNames, recognize_glm, create_glm};

}  // namespace tessera::text
