// How a family of models wants a conversation written, and how it writes its answers: natively, one file a family
// (chat_kimi.cc, chat_glm.cc, chat_qwen.cc, chat_smollm2.cc), chosen in chat_format.cc. No template from a model folder
// is ever executed.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/text/conversation.h"
#include "tessera/text/output_parser.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

// Immutable: any number of threads at once.
class ChatFormat {
 public:
  // The format of the checkpoint, by the model_type of its config.json, the control tokens of its tokenizer and, where
  // it has one, by its template (tokenizer_config.json or chat_template.jinja), which is recognized, not run.
  // kUnimplemented, naming what was found, if no native format fits: such a model serves completions only. kNotFound,
  // naming the marker, if the tokenizer lacks one that the format needs. The tokenizer is not kept.
  static base::Result<std::unique_ptr<const ChatFormat>> load(const std::filesystem::path& model_dir,
                                                              const Tokenizer& tokenizer);
  // The format of that name, whatever the checkpoint says. kInvalidArgument, with the names, if there is none such;
  // kNotFound, naming the marker, if the tokenizer lacks one that the format needs.
  static base::Result<std::unique_ptr<const ChatFormat>> by_name(std::string_view name, const Tokenizer& tokenizer);
  // The names that by_name() knows.
  static std::vector<std::string_view> names();
  virtual ~ChatFormat() = default;

  // "smollm2", "kimi_k2", ...: what by_name() takes.
  virtual std::string_view name() const = 0;
  // As segments for Tokenizer::encode(). Refused are an empty conversation and what the family cannot express: the text
  // begins with "thinking:", "preserve_thinking:", "reasoning_effort:", "tools:", or the place in "messages".
  virtual base::Result<std::vector<Segment>> render(const Conversation& conversation,
                                                    const RenderOptions& options) const = 0;
  // How the answer to such a rendering is written: of `options`, whether the model thinks decides where it begins.
  virtual OutputSyntax output_syntax(const RenderOptions& options) const = 0;
  // The tokens that end an assistant's message, sorted; those of Tokenizer::eos_ids() are among them.
  virtual const std::vector<TokenId>& stop_token_ids() const = 0;
};

}  // namespace tessera::text
