// The tokenizer of a checkpoint: byte-level BPE, from Hugging Face's tokenizer.json or Kimi's tiktoken.model.
//
// User text never becomes a control token. encode(text) gives ordinary pieces only: "<|im_end|>" typed by a user is
// cut up like any other text. Control tokens come from the segments of our own rendering (chat_format.h) and from
// nowhere else. (The `tokenizers` library finds added tokens in text; here GLM's /nothink is found in none.)
//
// What is read from tokenizer.json, and what is refused, with a message that names it:
//   model            type BPE; merges as "a b" or ["a","b"]; ignore_merges. Refused: dropout, byte_fallback, prefixes
//   and
//                    suffixes, an unk_token while the vocabulary lacks some of the 256 bytes, merges or ids that
//                    contradict the vocabulary.
//   added_tokens     control tokens, special or not. Refused: lstrip, rstrip, single_word.
//   pre_tokenizer    ByteLevel, or a Sequence of Digits, Split (a Regex, behavior Isolated, not inverted) and, last,
//                    ByteLevel; no add_prefix_space. The Split patterns are Oniguruma's; oniguruma.h says which part of
//                    that language is accepted.
//   normalizer       none, or NFC. Refused: any other.
//   post_processor   none, ByteLevel, TemplateProcessing that puts tokens before the text, or a Sequence of these.
//   decoder          ByteLevel.
//   truncation, padding  none.
// tiktoken.h says the same of tiktoken.model and the control tokens that tokenizer_config.json names for it.
//
// Immutable after load: every const function may be called by any number of threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::text {

struct Vocabulary;

using TokenId = std::int32_t;

// A piece of a rendered prompt: text, which encodes to ordinary pieces, or one token that the rendering itself put
// there. Adjacent text segments are encoded as if they were one.
struct Segment {
  enum class Kind { kText, kToken };
  static Segment of_text(std::string text) { return {Kind::kText, std::move(text), 0}; }
  static Segment of_token(TokenId token) { return {Kind::kToken, {}, token}; }
  friend bool operator==(const Segment&, const Segment&) = default;

  Kind kind = Kind::kText;
  std::string text;   // kText
  TokenId token = 0;  // kToken
};

// What decoding does with tokens for which is_special() holds.
enum class SpecialTokens { kKeep, kSkip };

class Tokenizer {
 public:
  // Reads model_dir/tokenizer.json or, only where there is none, tiktoken.model with tokenizer_config.json; for
  // eos_ids(), the files config.json, generation_config.json and tokenizer_config.json where they exist. Errors name
  // the file and the field. (tokenizer.json goes first because it says all of what it means. Where a folder has both,
  // they are two spellings of one tokenizer, and differ only in texts that cut_as_tiktoken() cuts.)
  static base::Result<std::unique_ptr<Tokenizer>> load(const std::filesystem::path& model_dir);
  // The same from the text of a tokenizer.json alone; eos_ids() is then empty.
  static base::Result<std::unique_ptr<Tokenizer>> parse(std::string_view tokenizer_json);
  // The same from the texts of a tiktoken.model and its tokenizer_config.json.
  static base::Result<std::unique_ptr<Tokenizer>> parse_tiktoken(std::string_view ranks,
                                                                 std::string_view tokenizer_config);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // User text to ordinary pieces; no token for which is_added() holds ever comes out, and no BOS is added.
  //
  // Any bytes are accepted. Each maximal run of bytes that is not well-formed UTF-8 is a word of its own, between the
  // texts before and after it. Where the tokenizer normalizes (NFC: Qwen), each of these texts is normalized first, and
  // below x stands for what that gives: decode(encode(x)) == NFC(x). A byte for which the vocabulary has no token is
  // dropped, as the `tokenizers` library does (SmolLM2 lacks 21: 04, 06, 13, 14, 16, 1d and bytes that begin no
  // assigned character); in every other case decode(encode(x)) == x for well-formed x. Time is O(n log n) in bytes,
  // whatever the text, with the patterns of the families that are served; there is no text for which it fails. At most
  // 2^31 - 1 bytes.
  std::vector<TokenId> encode(std::string_view text) const;
  // A rendered prompt. Token segments must be in the vocabulary.
  std::vector<TokenId> encode(std::span<const Segment> segments) const;

  // encode() gives at least so many tokens. One pass over the bytes, without encoding: every byte that has a token of
  // its own becomes part of one token, and no token stands for more than longest_token_bytes().
  std::int64_t tokens_min(std::string_view text) const;
  std::int64_t tokens_min(std::span<const Segment> segments) const;
  // The most bytes that a token of the vocabulary stands for; at least 1.
  std::int64_t longest_token_bytes() const;

  // Valid UTF-8: the tokens' bytes in a row, ill-formed parts replaced (utf8.h). Ids that the vocabulary does not have
  // add nothing: ask contains() where they have to be refused.
  std::string decode(std::span<const TokenId> ids, SpecialTokens special) const;

  // One more than the largest id. The model's logits may be padded beyond it.
  std::int32_t vocab_size() const;
  // False for ids outside [0, vocab_size()) and for holes in the vocabulary.
  bool contains(TokenId id) const;
  // The bytes that a token stands for, which need not be whole characters. Empty where !contains(id). Valid as long as
  // the tokenizer.
  std::string_view token_bytes(TokenId id) const;
  // A control token by its exact content, for example "<|im_end|>"; empty if added_tokens has none such.
  std::optional<TokenId> token_id(std::string_view content) const;
  // One of added_tokens: it comes only from segments.
  bool is_added(TokenId id) const;
  // One of added_tokens with "special": true: SpecialTokens::kSkip leaves it out of text. (A token such as <think> is
  // added without being special.)
  bool is_special(TokenId id) const;

  // The tokens that end a sequence: eos_token_id of config.json (text_config too) and generation_config.json, eos_token
  // of tokenizer_config.json; sorted, each once. A chat format adds its own (chat_format.h).
  const std::vector<TokenId>& eos_ids() const;
  // What the post_processor puts before a text that is a whole prompt without chat format: BOS for some families,
  // nothing for SmolLM2.
  const std::vector<TokenId>& prompt_prefix_ids() const;

 private:
  struct State;
  static base::Result<std::unique_ptr<Tokenizer>> create(Vocabulary vocabulary);
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tessera::text
