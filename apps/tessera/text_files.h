// The text side of a model folder, as every command that opens one takes it: what `serve` refuses, `inspect` calls a
// fault.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"

namespace tessera::app {

struct TextFiles {
  std::unique_ptr<text::Tokenizer> tokenizer;           // Always there.
  std::unique_ptr<const text::ChatFormat> chat_format;  // Null where no format is known for the model.
  std::string no_chat;                                  // Why chat_format is null.
};

// not_found when the folder has no tokenizer.json; every other error is a file that is there and is refused. An unknown
// chat format is no error: such a model serves completions. `chat_format` is "auto", or the name of the format to take
// whatever the checkpoint says; then it is an error if it does not fit the tokenizer.
base::Result<TextFiles> load_text_files(const std::filesystem::path& dir, std::string_view chat_format = "auto");

// Every token of the tokenizer has a row in the model's embedding.
base::Status check_vocabulary(const std::filesystem::path& dir, const text::Tokenizer& tokenizer,
                              std::int64_t model_vocab_size);

}  // namespace tessera::app
