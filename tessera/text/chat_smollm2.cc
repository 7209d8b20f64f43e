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
#include "tessera/text/chat_markup.h"

namespace tessera::text {
namespace {

constexpr std::array<std::string_view, 2> kMarkers = {"<|im_start|>", "<|im_end|>"};
constexpr std::array<std::string_view, 1> kStops = {"<|im_end|>"};
constexpr std::array<std::string_view, 1> kNames = {"smollm2"};
constexpr std::string_view kDefaultSystem = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

class Smollm2ChatFormat : public ChatFormat {
 public:
  Smollm2ChatFormat(Markup markup, std::vector<TokenId> stop_token_ids)
      : markup_(std::move(markup)), stop_token_ids_(std::move(stop_token_ids)) {}

  std::string_view name() const override { return kNames[0]; }
  const std::vector<TokenId>& stop_token_ids() const override { return stop_token_ids_; }

  base::Result<std::vector<Segment>> render(const Conversation& conversation,
                                            const RenderOptions& options) const override {
    TESSERA_RETURN_IF_ERROR(check_conversation(conversation));
    TESSERA_RETURN_IF_ERROR(check_options(name(), options, {}));
    if (!conversation.tools.empty()) {
      return base::failure(base::invalid_argument("tools: the chat format smollm2 has no place for them"));
    }
    const std::vector<ChatMessage>& messages = conversation.messages;
    PromptWriter out(markup_);
    if (!is_system(messages.front().role)) {
      out.markup("<|im_start|>system\n").markup(kDefaultSystem).markup("<|im_end|>\n");
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].tool_calls.empty()) {
        return base::failure(base::invalid_argument(
            fmt::format("messages[{}].tool_calls: the chat format smollm2 has no place for them", i)));
      }
      out.markup("<|im_start|>")
          .markup(role_name(is_system(messages[i].role) ? Role::kSystem : messages[i].role))
          .markup("\n");
      out.text(messages[i].content.value_or("")).markup("<|im_end|>\n");
    }
    if (options.generation_prompt == GenerationPrompt::kAdd) out.markup("<|im_start|>assistant\n");
    return out.take();
  }

  OutputSyntax output_syntax(const RenderOptions& /*options*/) const override { return {}; }

 private:
  Markup markup_;
  std::vector<TokenId> stop_token_ids_;
};

// The tokens alone do not tell an instruction-tuned checkpoint from a base model; the template's text does.
std::string_view recognize_smollm2(const ChatCheckpoint& checkpoint) {
  const bool has_default = checkpoint.chat_template.find(kDefaultSystem) != std::string::npos;
  return checkpoint.model_type == "llama" && has_default ? kNames[0] : "";
}

base::Result<std::unique_ptr<const ChatFormat>> create_smollm2(std::string_view name,
                                                               const ChatCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(Markup markup, Markup::create(name, checkpoint.tokenizer, kMarkers));
  TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> stops, chat_stop_ids(name, checkpoint.tokenizer, kStops));
  return std::make_unique<const Smollm2ChatFormat>(std::move(markup), std::move(stops));
}

}  // namespace

const ChatFamily kSmollm2Family = {kNames, recognize_smollm2, create_smollm2};

}  // namespace tessera::text
