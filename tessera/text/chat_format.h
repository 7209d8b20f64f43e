// How a family of models wants a conversation written: natively, one file a family (chat_smollm2.cc; Kimi, GLM and Qwen
// will be chat_kimi.cc, chat_glm.cc, chat_qwen.cc), chosen in chat_format.cc. No template from a model folder is ever
// executed.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

enum class Role { kSystem, kUser, kAssistant, kTool };

// "system", "user", "assistant", "tool".
std::string_view role_name(Role role);
// From the API's spelling; "developer" is the newer word for system. Anything else is refused by name.
base::Result<Role> parse_role(std::string_view name);

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;  // Any text: markers in it stay text.
  std::string name;     // The speaker's, optional. Families whose template ignores names ignore it.
};

// Whether the rendering ends with the beginning of the assistant's next message.
enum class GenerationPrompt { kAdd, kOmit };

struct RenderOptions {
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
};

// Immutable: any number of threads at once.
class ChatFormat {
 public:
  // The format of the checkpoint, by the model_type of its config.json, the control tokens of its tokenizer and, where
  // it has one, by its template (tokenizer_config.json or chat_template.jinja), which is recognized, not run.
  // kUnimplemented, naming what was found, if no native format fits: such a model serves completions only. The
  // tokenizer is not kept.
  static base::Result<std::unique_ptr<const ChatFormat>> load(const std::filesystem::path& model_dir,
                                                              const Tokenizer& tokenizer);
  virtual ~ChatFormat() = default;

  // "smollm2"
  virtual std::string_view name() const = 0;
  // The conversation as segments for Tokenizer::encode(). An empty conversation is refused, and so is what the family
  // cannot express; the message names the index of the chat message.
  virtual base::Result<std::vector<Segment>> render(std::span<const ChatMessage> messages,
                                                    const RenderOptions& options) const = 0;
  // The tokens that end an assistant's message, sorted; those of Tokenizer::eos_ids() are among them.
  virtual const std::vector<TokenId>& stop_token_ids() const = 0;
};

}  // namespace tessera::text
