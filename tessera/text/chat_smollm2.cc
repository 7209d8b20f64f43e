// SmolLM2: ChatML with a default system prompt, as in the template that its checkpoints carry:
//
//   <|im_start|>{role}\n{content}<|im_end|>\n      for each message
//   <|im_start|>assistant\n                        the generation prompt
//
// preceded by a system message with the default text if the first message is not a system message. No BOS: what the
// tokenizer calls BOS is <|im_start|>. No tools and no calls.
#include <fmt/format.h>

#include <array>

#include "tessera/text/chat_families.h"

namespace tessera::text {
namespace {

constexpr std::array<std::string_view, 2> kMarkers = {"<|im_start|>", "<|im_end|>"};
constexpr std::array<std::string_view, 1> kStops = {"<|im_end|>"};
constexpr std::array<std::string_view, 1> kNames = {"smollm2"};
constexpr std::string_view kDefaultSystem = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

class Smollm2ChatFormat : public FamilyChatFormat {
 public:
  explicit Smollm2ChatFormat(ChatTokens tokens) : FamilyChatFormat(kNames[0], std::move(tokens)) {}

  OutputSyntax output_syntax(const RenderOptions& /*options*/) const override { return {}; }

 private:
  ChatAbilities abilities() const override { return {}; }

  base::Status write(const Conversation& conversation, const RenderOptions& options, PromptWriter& out) const override {
    if (!conversation.tools.empty()) {
      return base::invalid_argument("tools: the chat format smollm2 has no place for them");
    }
    const std::vector<ChatMessage>& messages = conversation.messages;
    if (!is_system(messages.front().role)) {
      out.markup("<|im_start|>system\n").markup(kDefaultSystem).markup("<|im_end|>\n");
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].tool_calls.empty()) {
        return base::invalid_argument(
            fmt::format("messages[{}].tool_calls: the chat format smollm2 has no place for them", i));
      }
      const Role role = is_system(messages[i].role) ? Role::kSystem : messages[i].role;
      out.markup("<|im_start|>").markup(role_name(role)).markup("\n");
      out.text(content_of(messages[i])).markup("<|im_end|>\n");
    }
    if (options.generation_prompt == GenerationPrompt::kAdd) out.markup("<|im_start|>assistant\n");
    return {};
  }
};

// The tokens alone do not tell an instruction-tuned checkpoint from a base model; the template's text does.
std::string_view recognize_smollm2(const ChatCheckpoint& checkpoint) {
  return checkpoint.model_type == "llama" && checkpoint.template_says(kDefaultSystem) ? kNames[0] : "";
}

base::Result<std::unique_ptr<const ChatFormat>> create_smollm2(std::string_view name,
                                                               const ChatCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(ChatTokens tokens, ChatTokens::create(name, checkpoint.tokenizer, kMarkers, kStops));
  return std::make_unique<const Smollm2ChatFormat>(std::move(tokens));
}

}  // namespace

const ChatFamily kSmollm2Family = {kNames, recognize_smollm2, create_smollm2};

}  // namespace tessera::text
