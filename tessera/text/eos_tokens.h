// Which tokens end a sequence, by what a model folder's configuration files say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

// All that any file names, sorted, each once: eos_token_id (an id, or a list of at most limits::kStopTokensMax ids) of
// config.json, of its text_config and of generation_config.json; eos_token (a string, or an object with "content") of
// tokenizer_config.json. A file that is not there names none. Refuses ids and contents that the tokenizer does not
// have.
base::Result<std::vector<TokenId>> read_eos_ids(const std::filesystem::path& model_dir, const Tokenizer& tokenizer);

}  // namespace tessera::text
