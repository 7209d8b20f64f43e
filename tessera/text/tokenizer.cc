#include "tessera/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/text/bpe.h"
#include "tessera/text/byte_level.h"
#include "tessera/text/eos_tokens.h"
#include "tessera/text/json_reader.h"
#include "tessera/text/regex_splitter.h"
#include "tessera/text/tokenizer_json.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr std::uint8_t kPresent = 1;
constexpr std::uint8_t kAdded = 2;
constexpr std::uint8_t kSpecial = 4;

// What one call of encode() works with.
struct EncodeScratch {
  RegexSplitter::Scratch match;
  Bpe::Scratch bpe;
  std::vector<std::string_view> pieces;
  std::vector<std::string_view> cut;
};

}  // namespace

struct Tokenizer::State {
  struct Token {
    std::string bytes;
    std::uint8_t flags = 0;
  };

  bool has(TokenId id, std::uint8_t flag) const {
    return id >= 0 && static_cast<std::size_t>(id) < tokens.size() &&
           (tokens[static_cast<std::size_t>(id)].flags & flag) != 0;
  }
  void add_words(const std::vector<TokenId>& spelled, WholeWords which);
  std::int64_t spelled_bytes(std::string_view text) const;
  void encode_text(std::string_view text, EncodeScratch& scratch, std::vector<TokenId>& ids) const;
  void encode_valid(std::string_view text, EncodeScratch& scratch, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& ids) const;

  std::vector<Token> tokens;                       // By id.
  std::unordered_map<std::string, TokenId> added;  // By content.
  // Whole words by bytes, which `tokens` holds: what merging would make one token of, only found faster, and with
  // ignore_merges also what it would not.
  std::unordered_map<std::string_view, TokenId> words;
  std::optional<Bpe> bpe;  // Always there.
  std::vector<RegexSplitter> splitters;
  std::array<bool, 256> has_token{};  // Of each byte; a byte without one may be dropped.
  std::int64_t longest_token_bytes = 1;
  std::vector<TokenId> eos_ids;
  std::vector<TokenId> prompt_prefix_ids;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

base::Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json) {
  TESSERA_ASSIGN_OR_RETURN(TokenizerJson file, parse_tokenizer_json(tokenizer_json));
  auto state = std::make_unique<State>();
  std::array<TokenId, 256> byte_ids{};
  byte_ids.fill(-1);
  std::vector<TokenId> spelled;  // Ordinary tokens that the alphabet spells.
  state->tokens.resize(file.tokens.size());
  for (const TokenizerJson::Added& added : file.added) {
    state->tokens[static_cast<std::size_t>(added.id)].flags = kAdded | (added.special ? kSpecial : 0);
    state->added.emplace(added.content, added.id);
  }
  for (std::size_t i = 0; i < file.tokens.size(); ++i) {
    if (!file.tokens[i].has_value()) continue;
    const auto id = static_cast<TokenId>(i);
    State::Token& token = state->tokens[i];
    token.flags |= kPresent;
    std::optional<std::string> bytes = bytes_of_letters(*file.tokens[i]);
    if (!bytes.has_value()) {
      // An added token, as a rule: it stands for itself, as in the library.
      token.bytes = std::move(*file.tokens[i]);
      continue;
    }
    token.bytes = std::move(*bytes);
    state->longest_token_bytes = std::max(state->longest_token_bytes, std::ssize(token.bytes));
    if (token.bytes.size() == 1) {
      byte_ids[static_cast<unsigned char>(token.bytes.front())] = id;
      state->has_token[static_cast<unsigned char>(token.bytes.front())] = true;
    }
    if (token.flags == kPresent) spelled.push_back(id);
  }
  std::size_t repeated = 0;
  state->bpe = Bpe::create(byte_ids, file.merges, repeated);
  if (!state->bpe.has_value()) {
    return base::failure(
        base::invalid_argument(fmt::format("model.merges[{}]: the same pair as in an earlier merge", repeated)));
  }
  state->add_words(spelled, file.whole_words);
  state->splitters = std::move(file.splitters);
  state->prompt_prefix_ids = std::move(file.prompt_prefix_ids);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state)));
}

void Tokenizer::State::add_words(const std::vector<TokenId>& spelled, WholeWords which) {
  Bpe::Scratch scratch;
  std::vector<TokenId> merged;
  words.reserve(spelled.size());
  for (const TokenId id : spelled) {
    const std::string& bytes = tokens[static_cast<std::size_t>(id)].bytes;
    merged.clear();
    if (which == WholeWords::kMerge) bpe->encode(bytes, scratch, merged);
    const bool merges_whole = merged.size() == 1 && merged.front() == id;
    if (merges_whole || which == WholeWords::kTakeFromVocabulary) words.emplace(bytes, id);
  }
}

void Tokenizer::State::encode_word(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& ids) const {
  if (const auto whole = words.find(word); whole != words.end()) {
    ids.push_back(whole->second);
  } else {
    bpe->encode(word, scratch.bpe, ids);
  }
}

void Tokenizer::State::encode_valid(std::string_view text, EncodeScratch& scratch, std::vector<TokenId>& ids) const {
  scratch.pieces.assign(1, text);
  for (const RegexSplitter& splitter : splitters) {
    scratch.cut.clear();
    for (const std::string_view piece : scratch.pieces) splitter.split(piece, scratch.match, scratch.cut);
    scratch.pieces.swap(scratch.cut);
  }
  for (const std::string_view piece : scratch.pieces) encode_word(piece, scratch, ids);
}

void Tokenizer::State::encode_text(std::string_view text, EncodeScratch& scratch, std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) encode_valid(text.substr(0, valid), scratch, ids);
    text.remove_prefix(valid);
    std::size_t ill_formed = 0;
    while (ill_formed < text.size()) {
      const Utf8Unit unit = next_utf8_unit(text.substr(ill_formed));
      if (unit.kind == Utf8Unit::Kind::kCharacter) break;
      ill_formed += unit.length;
    }
    if (ill_formed > 0) encode_word(text.substr(0, ill_formed), scratch, ids);
    text.remove_prefix(ill_formed);
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  EncodeScratch scratch;
  state_->encode_text(text, scratch, ids);
  return ids;
}

std::vector<TokenId> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<TokenId> ids;
  EncodeScratch scratch;
  std::string text;
  for (const Segment& segment : segments) {
    if (segment.kind == Segment::Kind::kText) {
      text += segment.text;
      continue;
    }
    TESSERA_CHECK(contains(segment.token), fmt::format("token {} is not in the vocabulary", segment.token));
    state_->encode_text(text, scratch, ids);
    text.clear();
    ids.push_back(segment.token);
  }
  state_->encode_text(text, scratch, ids);
  return ids;
}

std::int64_t Tokenizer::State::spelled_bytes(std::string_view text) const {
  std::int64_t count = 0;
  for (const char byte : text) count += has_token[static_cast<unsigned char>(byte)] ? 1 : 0;
  return count;
}

std::int64_t Tokenizer::tokens_min(std::string_view text) const {
  return base::ceil_div(state_->spelled_bytes(text), state_->longest_token_bytes);
}

std::int64_t Tokenizer::tokens_min(std::span<const Segment> segments) const {
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  for (const Segment& segment : segments) {
    if (segment.kind == Segment::Kind::kToken) ++tokens;
    bytes += state_->spelled_bytes(segment.text);
  }
  return tokens + base::ceil_div(bytes, state_->longest_token_bytes);
}

std::int64_t Tokenizer::longest_token_bytes() const { return state_->longest_token_bytes; }

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialTokens special) const {
  std::string text;
  Utf8Assembler assembler;
  for (const TokenId id : ids) {
    if (special == SpecialTokens::kSkip && is_special(id)) continue;
    assembler.push(token_bytes(id), text);
  }
  assembler.flush(text);
  return text;
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(state_->tokens.size()); }
bool Tokenizer::contains(TokenId id) const { return state_->has(id, kPresent); }
bool Tokenizer::is_added(TokenId id) const { return state_->has(id, kAdded); }
bool Tokenizer::is_special(TokenId id) const { return state_->has(id, kSpecial); }

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return contains(id) ? std::string_view(state_->tokens[static_cast<std::size_t>(id)].bytes) : std::string_view();
}

std::optional<TokenId> Tokenizer::token_id(std::string_view content) const {
  const auto found = state_->added.find(std::string(content));
  return found == state_->added.end() ? std::nullopt : std::optional(found->second);
}

const std::vector<TokenId>& Tokenizer::eos_ids() const { return state_->eos_ids; }
const std::vector<TokenId>& Tokenizer::prompt_prefix_ids() const { return state_->prompt_prefix_ids; }

base::Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "tokenizer.json";
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  base::Result<std::unique_ptr<Tokenizer>> tokenizer = parse(text);
  if (!tokenizer.has_value()) return base::failure(tokenizer.error().with_context(path.string()));
  TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> eos_ids, read_eos_ids(model_dir, **tokenizer));
  (*tokenizer)->state_->eos_ids = std::move(eos_ids);
  return tokenizer;
}

}  // namespace tessera::text
