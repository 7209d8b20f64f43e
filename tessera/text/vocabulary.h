// What a tokenizer is made from, whichever file it came in: tokenizer_json.h and tiktoken.h read one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/text/bpe.h"
#include "tessera/text/regex_splitter.h"

namespace tessera::text {

enum class WholeWords { kMerge, kTakeFromVocabulary };  // ignore_merges of tokenizer.json
enum class Normalization { kNone, kNfc };
enum class TextBlocks { kWhole, kTiktoken };  // Whether tiktoken.h's cut_as_tiktoken() comes before the splitters.

// The parts fit together: ids in [0, limits::kVocabularyMax), each with one content.
struct Vocabulary {
  struct Token {
    std::string bytes;
    bool spelled =
        true;  // False for what no text is made of: an added token's content, or characters that are no bytes.
  };
  struct Added {
    std::int32_t id;
    std::string content;
    bool special;
  };
  std::vector<std::optional<Token>> tokens;  // By id; added tokens are among them.
  std::vector<Added> added;
  std::vector<Merge> merges;  // By rank. None results in an added token.
  MergeOrder merge_order = MergeOrder::kByPlace;
  WholeWords whole_words = WholeWords::kMerge;
  Normalization normalization = Normalization::kNone;
  TextBlocks blocks = TextBlocks::kWhole;
  std::vector<RegexSplitter> splitters;  // In order: each cuts the pieces of the one before.
  std::vector<std::int32_t> prompt_prefix_ids;
};

}  // namespace tessera::text
