#include "text_files.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::app {

base::Result<TextFiles> load_text_files(const std::filesystem::path& dir, std::string_view chat_format) {
  TextFiles files;
  TESSERA_ASSIGN_OR_RETURN(files.tokenizer, text::Tokenizer::load(dir));
  if (chat_format != "auto") {
    auto named = text::ChatFormat::by_name(chat_format, *files.tokenizer);
    if (!named.has_value()) return base::failure(named.error().with_context("--chat-format"));
    files.chat_format = std::move(*named);
    return files;
  }
  auto format = text::ChatFormat::load(dir, *files.tokenizer);
  if (format.has_value()) {
    files.chat_format = std::move(*format);
  } else if (format.error().code() == base::StatusCode::kUnimplemented) {
    files.no_chat = format.error().message();
  } else {
    return base::failure(format.error());
  }
  return files;
}

base::Status check_vocabulary(const std::filesystem::path& dir, const text::Tokenizer& tokenizer,
                              std::int64_t model_vocab_size) {
  if (tokenizer.vocab_size() <= model_vocab_size) return base::ok_status();
  return base::invalid_argument(fmt::format("{}: the tokenizer has {} tokens, the model's vocabulary {}", dir.string(),
                                            tokenizer.vocab_size(), model_vocab_size));
}

}  // namespace tessera::app
