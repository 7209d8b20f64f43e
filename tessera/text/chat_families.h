// The families that chat_format.cc chooses from, and what they share. To add one: a file chat_<family>.cc, a ChatFamily
// here, an entry in chat_format.cc's list, and goldens of the family's own templates
// (tools/oracles/make_chat_goldens.py).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/chat_format.h"
#include "tessera/text/chat_markup.h"
#include "tessera/text/python_value.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

// What a checkpoint says about itself.
struct ChatCheckpoint {
  const Tokenizer& tokenizer;
  std::string model_type = {};     // Of config.json.
  std::string chat_template = {};  // Empty if it has none, as base models do not.

  bool template_says(std::string_view words) const { return chat_template.find(words) != std::string::npos; }
};

struct ChatFamily {
  // The names of its formats, for --chat-format.
  std::span<const std::string_view> names;
  // The name of the format that the checkpoint's template describes; empty if it is none of this family's.
  std::string_view (*recognize)(const ChatCheckpoint& checkpoint);
  // The format of one of `names`. Of the checkpoint, it needs the tokenizer; the template, where there is one, may
  // choose details.
  base::Result<std::unique_ptr<const ChatFormat>> (*create)(std::string_view name, const ChatCheckpoint& checkpoint);
};

extern const ChatFamily kKimiFamily;
extern const ChatFamily kGlmFamily;
extern const ChatFamily kQwenFamily;
extern const ChatFamily kSmollm2Family;

// The names of a family's variants.
template <typename Variant, std::size_t kCount>
constexpr std::array<std::string_view, kCount> names_of(const std::array<Variant, kCount>& variants) {
  std::array<std::string_view, kCount> names;
  for (std::size_t i = 0; i < kCount; ++i) names[i] = variants[i].name;
  return names;
}

// "a, b, c" for messages.
std::string listed(std::span<const std::string_view> names);

// What a family can do about reasoning; the rest is refused by name.
enum class Thinking : std::uint8_t {
  kNever,   // The model does not reason.
  kAlways,  // It cannot be told not to.
  kChoice,
};
struct ChatAbilities {
  Thinking thinking = Thinking::kNever;
  enum class KeepReasoning : std::uint8_t { kNo, kChoice, kAlways } keep_reasoning = KeepReasoning::kNo;
  std::span<const std::string_view> reasoning_efforts = {};
};

// The part of a checkpoint's vocabulary that a format needs: its markers, and the tokens that end a message. kNotFound,
// naming the format and the marker, if the vocabulary lacks one.
struct ChatTokens {
  Markup markup;
  std::vector<TokenId> stop_token_ids;

  static base::Result<ChatTokens> create(std::string_view format, const Tokenizer& tokenizer,
                                         std::span<const std::string_view> markers,
                                         std::span<const std::string_view> stops);
};

// What the formats of all families do alike.
class FamilyChatFormat : public ChatFormat {
 public:
  std::string_view name() const final { return name_; }
  const std::vector<TokenId>& stop_token_ids() const final { return tokens_.stop_token_ids; }
  base::Result<std::vector<Segment>> render(const Conversation& conversation, const RenderOptions& options) const final;

 protected:
  // `name` is in static memory.
  FamilyChatFormat(std::string_view name, ChatTokens tokens) : name_(name), tokens_(std::move(tokens)) {}

 private:
  virtual ChatAbilities abilities() const = 0;
  // Writes a conversation that is not empty, with options that abilities() allow.
  virtual base::Status write(const Conversation& conversation, const RenderOptions& options,
                             PromptWriter& out) const = 0;

  std::string_view name_;
  ChatTokens tokens_;
};

// A message's content; null is the empty text.
inline std::string_view content_of(const ChatMessage& message) {
  return message.content ? std::string_view(*message.content) : std::string_view();
}

// The declarations of the tools, in order. The error names tools[index].
base::Result<std::vector<PythonValue>> parse_tools(const Conversation& conversation, ValueBudget& budget);

// The arguments of a call as the dict that a template iterates over or dumps; no text at all is an empty one. The error
// names messages[message_index].tool_calls[call_index].
base::Result<PythonValue> parse_arguments(const Conversation& conversation, std::size_t message_index,
                                          std::size_t call_index, ValueBudget& budget);

// Inline reasoning, as templates split it off: what is before the first </think>, from the last <think> before it on,
// and what is after the last </think>.
struct InlineReasoning {
  std::string_view reasoning;
  std::string_view content;
};
enum class ReasoningNewlines : std::uint8_t { kKeep, kStrip };
// Empty if `content` has no </think>.
std::optional<InlineReasoning> split_reasoning(std::string_view content, ReasoningNewlines newlines);

}  // namespace tessera::text
