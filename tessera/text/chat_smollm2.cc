// SmolLM2: ChatML with a default system prompt, as in the template that its checkpoints carry:
//
//   <|im_start|>{role}\n{content}<|im_end|>\n      for each message
//   <|im_start|>assistant\n                        the generation prompt
//
// preceded by a system message with the default text if the first message is not a system message. No BOS: what the
// tokenizer calls BOS is <|im_start|>.
#include <algorithm>
#include <utility>

#include "tessera/text/chat_families.h"

namespace tessera::text {
namespace {

constexpr std::string_view kDefaultSystem = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

class Smollm2ChatFormat : public ChatFormat {
 public:
  Smollm2ChatFormat(TokenId im_start, TokenId im_end, std::vector<TokenId> stop_token_ids)
      : im_start_(im_start), im_end_(im_end), stop_token_ids_(std::move(stop_token_ids)) {}

  std::string_view name() const override { return "smollm2"; }
  const std::vector<TokenId>& stop_token_ids() const override { return stop_token_ids_; }

  base::Result<std::vector<Segment>> render(const Conversation& conversation,
                                            const RenderOptions& options) const override {
    const std::vector<ChatMessage>& messages = conversation.messages;
    if (messages.empty()) return base::failure(base::invalid_argument("messages: is empty"));
    std::vector<Segment> segments;
    segments.reserve(4 * (messages.size() + 2));
    if (messages.front().role != Role::kSystem) add_message(Role::kSystem, kDefaultSystem, segments);
    for (const ChatMessage& message : messages) add_message(message.role, message.content.value_or(""), segments);
    if (options.generation_prompt == GenerationPrompt::kAdd) begin_message(Role::kAssistant, "", segments);
    return segments;
  }
  OutputSyntax output_syntax(const RenderOptions& /*options*/) const override { return {}; }

 private:
  void begin_message(Role role, std::string_view content, std::vector<Segment>& segments) const {
    std::string text(role_name(role));
    text += '\n';
    text += content;
    segments.push_back(Segment::of_token(im_start_));
    segments.push_back(Segment::of_text(std::move(text)));
  }

  void add_message(Role role, std::string_view content, std::vector<Segment>& segments) const {
    begin_message(role, content, segments);
    segments.push_back(Segment::of_token(im_end_));
    segments.push_back(Segment::of_text("\n"));
  }

  TokenId im_start_;
  TokenId im_end_;
  std::vector<TokenId> stop_token_ids_;
};

}  // namespace

std::unique_ptr<const ChatFormat> smollm2_chat_format(const ChatCheckpoint& checkpoint) {
  const auto im_start = checkpoint.tokenizer.token_id("<|im_start|>");
  const auto im_end = checkpoint.tokenizer.token_id("<|im_end|>");
  // The tokens alone do not tell an instruction-tuned checkpoint from a base model; the template's text does.
  if (checkpoint.model_type != "llama" || !im_start || !im_end ||
      checkpoint.chat_template.find(kDefaultSystem) == std::string::npos) {
    return nullptr;
  }
  std::vector<TokenId> stops = checkpoint.tokenizer.eos_ids();
  if (!std::binary_search(stops.begin(), stops.end(), *im_end)) {
    stops.insert(std::upper_bound(stops.begin(), stops.end(), *im_end), *im_end);
  }
  return std::make_unique<const Smollm2ChatFormat>(*im_start, *im_end, std::move(stops));
}

}  // namespace tessera::text
