// Reading tokenizer.json: what tokenizer.h says is accepted, checked; the rest refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/text/bpe.h"
#include "tessera/text/regex_splitter.h"

namespace tessera::text {

enum class WholeWords { kMerge, kTakeFromVocabulary };  // ignore_merges

// A tokenizer.json whose parts fit together: ids in [0, limits::kVocabularyMax), each with one content.
struct TokenizerJson {
  struct Added {
    std::int32_t id;
    std::string content;
    bool special;
  };
  std::vector<std::optional<std::string>> tokens;  // By id, as spelled in the file; added tokens are among them.
  std::vector<Added> added;
  std::vector<Merge> merges;  // By rank. None results in an added token.
  WholeWords whole_words = WholeWords::kMerge;
  std::vector<RegexSplitter> splitters;  // In order: each cuts the pieces of the one before.
  std::vector<std::int32_t> prompt_prefix_ids;
};

base::Result<TokenizerJson> parse_tokenizer_json(std::string_view text);

}  // namespace tessera::text
