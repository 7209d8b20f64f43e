// Kimi K2 and its successors:
//
//   <|im_system|>tool_declare<|im_middle|>{tools}<|im_end|>                       if tools are declared
//   <|im_user|>{name}<|im_middle|>{content}<|im_end|>                             name: the speaker's, or the role's
//   <|im_assistant|>{name}<|im_middle|>{think}{content}{calls}<|im_end|>
//   <|im_system|>{name}<|im_middle|>{content}<|im_end|>                           system
//   <|im_system|>{name}<|im_middle|>## Return of {id}\n{content}<|im_end|>        tool
//   <|im_assistant|>assistant<|im_middle|>                                        the generation prompt
//
// {calls} is <|tool_calls_section_begin|>, for each call <|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}
// <|tool_call_end|>, then <|tool_calls_section_end|>. Models that reason have <think>{reasoning}</think> as {think},
// empty for turns up to and including the last assistant's turn without calls; K2.5 and later have the generation
// prompt open it, or close it at once where thinking is off.
//
// The models expect ids of the form functions.NAME:INDEX, where INDEX counts the calls of the conversation. Ids of that
// form are written as they are; others are replaced, in the calls and in the results that answer them, by the count of
// calls so far, or the next index that no other call has.
//
// A developer's message is a system message whose role is written "developer"; it keeps no default system text away.
// Nor does the template of K2-Thinking of which a loop does not stop (see Variant::history) keep as much reasoning.
//
// kimi_k27_code is written from descriptions of its template (K2.6's with thinking on and all reasoning kept), which
// was not at hand; so it is never chosen from a checkpoint, only by name.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "tessera/text/chat_families.h"
#include "tessera/text/typescript_tools.h"

namespace tessera::text {
namespace {

constexpr std::array<std::string_view, 5> kMarkers = {"<|im_user|>", "<|im_assistant|>", "<|im_system|>",
                                                      "<|im_middle|>", "<|im_end|>"};
constexpr std::array<std::string_view, 5> kToolMarkers = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                                                          "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                                          "<|tool_call_end|>"};
constexpr std::array<std::string_view, 2> kThinkMarkers = {"<think>", "</think>"};
constexpr std::array<std::string_view, 2> kStops = {"<|im_end|>", "[EOS]"};

constexpr std::string_view kKimiSystem = "You are Kimi, an AI assistant created by Moonshot AI.";
// models/tessera-pocket, a checkpoint of K2's format.
constexpr std::string_view kPocketSystem = "You are tessera-pocket, a small assistant.";

enum class Reasoning {
  kNone,
  kAlways,       // K2-Thinking: opens <think> itself.
  kSwitched,     // K2.5: the generation prompt opens it.
  kPreservable,  // K2.6: the reasoning of all turns can be kept.
  kPreserved,    // K2.7-Code: always reasons, and all of it is kept.
};
enum class ToolStyle { kJson, kTypescript };
// Which assistant's turn without calls is the last whose reasoning is left out.
enum class History {
  kToLastAnswer,
  kToFirstAnswer,  // A form of K2-Thinking's template, whose search goes on after it has found the last one.
};

struct Variant {
  std::string_view name;
  Reasoning reasoning;
  ToolStyle tools;
  std::string_view default_system;  // Empty: none is put in.
  std::string_view after_default_system;
  History history = History::kToLastAnswer;
};

// K2's template leaves a newline behind its default system message.
constexpr std::array<Variant, 5> kVariants = {{
    {"kimi_k2", Reasoning::kNone, ToolStyle::kJson, kKimiSystem, "\n"},
    {"kimi_k2_thinking", Reasoning::kAlways, ToolStyle::kJson, kKimiSystem, ""},
    {"kimi_k25", Reasoning::kSwitched, ToolStyle::kTypescript, "", ""},
    {"kimi_k26", Reasoning::kPreservable, ToolStyle::kTypescript, "", ""},
    {"kimi_k27_code", Reasoning::kPreserved, ToolStyle::kTypescript, "", ""},
}};
constexpr auto kNames = names_of(kVariants);

// functions.NAME:INDEX.
bool is_kimi_id(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  const std::size_t colon = id.rfind(':');
  return id.starts_with(kPrefix) && colon != std::string_view::npos && colon > kPrefix.size() &&
         colon + 1 < id.size() && id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
}

// The ids with which calls are written, and results name them.
class CallIds {
 public:
  explicit CallIds(const std::vector<ChatMessage>& messages) {
    for (const ChatMessage& message : messages) {
      for (const ToolCall& call : message.tool_calls) {
        if (is_kimi_id(call.id)) take(std::string_view(call.id).substr(call.id.rfind(':') + 1));
      }
    }
  }

  // The calls of the next assistant's message: results name the latest calls of their id.
  void begin_message(const ChatMessage& message) {
    for (const ToolCall& call : message.tool_calls) {
      const auto known = by_id_.find(call.id);
      if (known == by_id_.end()) continue;
      unanswered_ -= known->second.unanswered();
      by_id_.erase(known);
    }
  }

  std::string written(const ToolCall& call) {
    std::string id = call.id;
    if (!is_kimi_id(call.id)) {
      next_ = std::max(next_, calls_);
      while (taken_.contains(next_)) ++next_;
      id = fmt::format("functions.{}:{}", call.name, next_++);
    }
    ++calls_;
    ++unanswered_;
    by_id_[call.id].written.push_back(id);
    return id;
  }

  // For a result. Calls of one id in one message are answered in order; another result is of the last of them. Without
  // an id: the one call that has no result yet; empty if there is not one.
  std::optional<std::string> answered(std::string_view id) {
    auto calls = by_id_.find(id);
    if (id.empty() && (calls == by_id_.end() || calls->second.unanswered() == 0)) {
      if (unanswered_ != 1) return std::nullopt;
      calls = std::ranges::find_if(by_id_, [](const auto& entry) { return entry.second.unanswered() == 1; });
    }
    if (calls == by_id_.end()) return std::string(id);
    Calls& named = calls->second;
    if (named.unanswered() == 0) return named.written.back();
    --unanswered_;
    return named.written[named.answered++];
  }

  std::size_t unanswered() const { return unanswered_; }

 private:
  // Of one id.
  struct Calls {
    std::vector<std::string> written;
    std::size_t answered = 0;

    std::size_t unanswered() const { return written.size() - answered; }
  };

  void take(std::string_view digits) {
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc()) taken_.insert(index);
  }

  std::set<std::int64_t> taken_;  // Indices of ids that stay.
  std::int64_t calls_ = 0;
  std::int64_t next_ = 0;  // Greater than every index that was given.
  std::map<std::string, Calls, std::less<>> by_id_;
  std::size_t unanswered_ = 0;
};

class KimiChatFormat : public FamilyChatFormat {
 public:
  KimiChatFormat(const Variant& variant, ChatTokens tokens)
      : FamilyChatFormat(variant.name, std::move(tokens)), variant_(variant) {}

  OutputSyntax output_syntax(const RenderOptions& options) const override {
    OutputSyntax syntax{ReasoningSyntax::kNone, ToolCallSyntax::kKimi};
    if (variant_.reasoning == Reasoning::kNone) return syntax;
    const bool inside =
        opens_reasoning() && options.thinking.value_or(true) && options.generation_prompt == GenerationPrompt::kAdd;
    syntax.reasoning = inside ? ReasoningSyntax::kInside : ReasoningSyntax::kOutside;
    return syntax;
  }

 private:
  base::Status write(const Conversation& conversation, const RenderOptions& options, PromptWriter& out) const override {
    const std::vector<ChatMessage>& messages = conversation.messages;
    if (!conversation.tools.empty()) {
      TESSERA_ASSIGN_OR_RETURN(const std::string tools, declared(conversation));
      out.markup("<|im_system|>tool_declare<|im_middle|>").text(tools).markup("<|im_end|>");
    }
    if (!variant_.default_system.empty() && messages.front().role != Role::kSystem) {
      out.markup("<|im_system|>system<|im_middle|>").markup(variant_.default_system).markup("<|im_end|>");
      out.markup(variant_.after_default_system);
    }
    const bool keep_all = variant_.reasoning == Reasoning::kPreserved || options.keep_reasoning.value_or(false);
    const std::size_t history_end = keep_all ? 0 : end_of_history(messages);
    CallIds ids(messages);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      out.markup(begin_of(message.role)).text(message.name.empty() ? role_name(message.role) : message.name);
      out.markup("<|im_middle|>");
      if (message.role == Role::kAssistant && variant_.reasoning != Reasoning::kNone) {
        // Where thinking is off, reasoning is written only if it was asked to be kept.
        const bool kept = i >= history_end && (options.thinking.value_or(true) || keep_all);
        out.markup("<think>").text(kept ? message.reasoning.value_or("") : "").markup("</think>");
      }
      if (message.role == Role::kTool) {
        const std::optional<std::string> id = ids.answered(message.tool_call_id);
        if (!id.has_value()) {
          return base::invalid_argument(
              fmt::format("messages[{}].tool_call_id: is missing, and {} earlier calls have no result yet; the chat "
                          "format {} needs the id of the call",
                          i, ids.unanswered(), variant_.name));
        }
        out.markup("## Return of ").text(*id).markup("\n");
      }
      out.text(content_of(message));
      if (message.role == Role::kAssistant) write_calls(message, ids, out);
      out.markup("<|im_end|>");
    }
    if (options.generation_prompt == GenerationPrompt::kAdd) {
      out.markup("<|im_assistant|>assistant<|im_middle|>");
      if (opens_reasoning()) out.markup(options.thinking.value_or(true) ? "<think>" : "<think></think>");
    }
    return {};
  }

  bool opens_reasoning() const {
    return variant_.reasoning != Reasoning::kNone && variant_.reasoning != Reasoning::kAlways;
  }

  ChatAbilities abilities() const override {
    using KeepReasoning = ChatAbilities::KeepReasoning;
    switch (variant_.reasoning) {
      case Reasoning::kNone:
        return {.thinking = Thinking::kNever};
      case Reasoning::kAlways:
        return {.thinking = Thinking::kAlways};
      case Reasoning::kSwitched:
        return {.thinking = Thinking::kChoice};
      case Reasoning::kPreservable:
        return {.thinking = Thinking::kChoice, .keep_reasoning = KeepReasoning::kChoice};
      case Reasoning::kPreserved:
        return {.thinking = Thinking::kAlways, .keep_reasoning = KeepReasoning::kAlways};
    }
    return {};
  }

  static std::string_view begin_of(Role role) {
    switch (role) {
      case Role::kUser:
        return "<|im_user|>";
      case Role::kAssistant:
        return "<|im_assistant|>";
      case Role::kSystem:
      case Role::kDeveloper:
      case Role::kTool:
        break;
    }
    return "<|im_system|>";
  }

  // One more than the index of the last assistant's message whose reasoning is left out.
  std::size_t end_of_history(const std::vector<ChatMessage>& messages) const {
    std::size_t end = 0;
    for (std::size_t i = messages.size(); i > 0; --i) {
      if (messages[i - 1].role != Role::kAssistant || !messages[i - 1].tool_calls.empty()) continue;
      end = i;
      if (variant_.history == History::kToLastAnswer) break;
    }
    return end;
  }

  base::Result<std::string> declared(const Conversation& conversation) const {
    ValueBudget budget;
    PythonValue list{.kind = PythonValue::Kind::kList};
    TESSERA_ASSIGN_OR_RETURN(list.items, parse_tools(conversation, budget));
    list = with_sorted_keys(std::move(list));
    if (variant_.tools == ToolStyle::kTypescript) {
      if (std::optional<std::string> text = typescript_tools(list)) return *std::move(text);
    }
    std::string text;
    append_python_json(list, JsonSpacing::kCompact, text);
    return text;
  }

  static void write_calls(const ChatMessage& message, CallIds& ids, PromptWriter& out) {
    if (message.tool_calls.empty()) return;
    ids.begin_message(message);
    out.markup("<|tool_calls_section_begin|>");
    for (const ToolCall& call : message.tool_calls) {
      out.markup("<|tool_call_begin|>").text(ids.written(call)).markup("<|tool_call_argument_begin|>");
      out.text(call.arguments).markup("<|tool_call_end|>");
    }
    out.markup("<|tool_calls_section_end|>");
  }

  Variant variant_;
};

std::string_view recognize_kimi(const ChatCheckpoint& checkpoint) {
  const std::string_view type = checkpoint.model_type;
  const auto says = [&](std::string_view words) { return checkpoint.template_says(words); };
  if ((type != "kimi_k2" && type != "kimi_k25" && type != "deepseek_v3") || !says("<|im_middle|>")) return "";
  const bool has_default = says(kKimiSystem) || says(kPocketSystem);
  if (says("tools_ts_str")) {
    if (has_default || !says("thinking is false")) return "";
    if (!says("preserve_thinking")) return "kimi_k25";
    return says("preserve_thinking | default(false)") ? "kimi_k26" : "";
  }
  // K2's first templates declared tools in another way, under this heading.
  if (!has_default || says("preserve_thinking") || says("# Tools")) return "";
  return says("<think></think>") ? "kimi_k2_thinking" : "kimi_k2";
}

base::Result<std::unique_ptr<const ChatFormat>> create_kimi(std::string_view name, const ChatCheckpoint& checkpoint) {
  Variant variant = *std::ranges::find(kVariants, name, &Variant::name);
  const auto says = [&](std::string_view words) { return checkpoint.template_says(words); };
  if (says(kPocketSystem)) {
    variant.default_system = kPocketSystem;
    variant.after_default_system = "";
  }
  if (says("last_non_tool_call_assistant_msg") && !says("break")) variant.history = History::kToFirstAnswer;
  std::vector<std::string_view> markers(kMarkers.begin(), kMarkers.end());
  markers.insert(markers.end(), kToolMarkers.begin(), kToolMarkers.end());
  if (variant.reasoning != Reasoning::kNone) markers.insert(markers.end(), kThinkMarkers.begin(), kThinkMarkers.end());
  TESSERA_ASSIGN_OR_RETURN(ChatTokens tokens, ChatTokens::create(name, checkpoint.tokenizer, markers, kStops));
  return std::make_unique<const KimiChatFormat>(variant, std::move(tokens));
}

}  // namespace

const ChatFamily kKimiFamily = {kNames, recognize_kimi, create_kimi};

}  // namespace tessera::text
