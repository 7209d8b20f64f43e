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
#include "tessera/text/eos_tokens.h"
#include "tessera/text/json_reader.h"
#include "tessera/text/nfc.h"
#include "tessera/text/regex_splitter.h"
#include "tessera/text/tiktoken.h"
#include "tessera/text/tokenizer_json.h"
#include "tessera/text/utf8.h"
#include "tessera/text/vocabulary.h"

namespace tessera::text {
namespace {

constexpr std::uint8_t kPresent = 1;
constexpr std::uint8_t kAdded = 2;
constexpr std::uint8_t kSpecial = 4;

// What one call of encode() works with.
struct EncodeScratch {
  Bpe::Scratch bpe;
  std::string normalized;
  std::vector<std::string_view> pieces;
  std::vector<std::string_view> cut;
};

// Calls on_valid with each maximal part that is well-formed UTF-8 and on_ill_formed with each that lies between, in
// order.
template <typename OnValid, typename OnIllFormed>
void for_each_part(std::string_view text, const OnValid& on_valid, const OnIllFormed& on_ill_formed) {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) on_valid(text.substr(0, valid));
    text.remove_prefix(valid);
    std::size_t ill_formed = 0;
    while (ill_formed < text.size()) {
      const Utf8Unit unit = next_utf8_unit(text.substr(ill_formed));
      if (unit.kind == Utf8Unit::Kind::kCharacter) break;
      ill_formed += unit.length;
    }
    if (ill_formed > 0) on_ill_formed(text.substr(0, ill_formed));
    text.remove_prefix(ill_formed);
  }
}

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
  Normalization normalization = Normalization::kNone;
  TextBlocks blocks = TextBlocks::kWhole;
  std::vector<RegexSplitter> splitters;
  std::array<bool, 256> has_token{};  // Of each byte; a byte without one may be dropped.
  std::int64_t longest_token_bytes = 1;
  std::vector<TokenId> eos_ids;
  std::vector<TokenId> prompt_prefix_ids;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

base::Result<std::unique_ptr<Tokenizer>> Tokenizer::create(Vocabulary vocabulary) {
  auto state = std::make_unique<State>();
  std::array<TokenId, 256> byte_ids{};
  byte_ids.fill(-1);
  std::vector<TokenId> words;  // Ordinary tokens that text is made of.
  state->tokens.resize(vocabulary.tokens.size());
  for (const Vocabulary::Added& added : vocabulary.added) {
    state->tokens[static_cast<std::size_t>(added.id)].flags = kAdded | (added.special ? kSpecial : 0);
    state->added.emplace(added.content, added.id);
  }
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (!vocabulary.tokens[i].has_value()) continue;
    const auto id = static_cast<TokenId>(i);
    State::Token& token = state->tokens[i];
    token.flags |= kPresent;
    token.bytes = std::move(vocabulary.tokens[i]->bytes);
    if (!vocabulary.tokens[i]->spelled) continue;
    state->longest_token_bytes = std::max(state->longest_token_bytes, std::ssize(token.bytes));
    if (token.bytes.size() == 1) {
      byte_ids[static_cast<unsigned char>(token.bytes.front())] = id;
      state->has_token[static_cast<unsigned char>(token.bytes.front())] = true;
    }
    if (token.flags == kPresent) words.push_back(id);
  }
  std::size_t repeated = 0;
  state->bpe = Bpe::create(byte_ids, vocabulary.merges, vocabulary.merge_order, repeated);
  if (!state->bpe.has_value()) {
    return base::failure(
        base::invalid_argument(fmt::format("model.merges[{}]: the same pair as in an earlier merge", repeated)));
  }
  state->add_words(words, vocabulary.whole_words);
  state->splitters = std::move(vocabulary.splitters);
  state->normalization = vocabulary.normalization;
  state->blocks = vocabulary.blocks;
  state->prompt_prefix_ids = std::move(vocabulary.prompt_prefix_ids);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state)));
}

base::Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json) {
  TESSERA_ASSIGN_OR_RETURN(Vocabulary vocabulary, parse_tokenizer_json(tokenizer_json));
  return create(std::move(vocabulary));
}

base::Result<std::unique_ptr<Tokenizer>> Tokenizer::parse_tiktoken(std::string_view ranks,
                                                                   std::string_view tokenizer_config) {
  TESSERA_ASSIGN_OR_RETURN(Vocabulary vocabulary, text::parse_tiktoken(ranks, tokenizer_config));
  return create(std::move(vocabulary));
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
  if (normalization == Normalization::kNfc) text = to_nfc(text, scratch.normalized);
  scratch.pieces.clear();
  if (blocks == TextBlocks::kTiktoken) {
    cut_as_tiktoken(text, scratch.pieces);
  } else {
    scratch.pieces.push_back(text);
  }
  for (const RegexSplitter& splitter : splitters) {
    scratch.cut.clear();
    for (const std::string_view piece : scratch.pieces) splitter.split(piece, scratch.cut);
    scratch.pieces.swap(scratch.cut);
  }
  for (const std::string_view piece : scratch.pieces) encode_word(piece, scratch, ids);
}

void Tokenizer::State::encode_text(std::string_view text, EncodeScratch& scratch, std::vector<TokenId>& ids) const {
  for_each_part(
      text, [&](std::string_view valid) { encode_valid(valid, scratch, ids); },
      [&](std::string_view ill_formed) { encode_word(ill_formed, scratch, ids); });
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
  const auto spelled = [this](std::string_view bytes) {
    return std::ranges::count_if(bytes, [this](char byte) { return has_token[static_cast<unsigned char>(byte)]; });
  };
  if (normalization == Normalization::kNone) return spelled(text);
  // What is encoded is counted, and NFC makes some texts shorter.
  std::int64_t count = 0;
  std::string buffer;
  for_each_part(
      text, [&](std::string_view valid) { count += spelled(to_nfc(valid, buffer)); },
      [&](std::string_view ill_formed) { count += spelled(ill_formed); });
  return count;
}

std::int64_t Tokenizer::tokens_min(std::string_view text) const {
  return base::ceil_div(state_->spelled_bytes(text), state_->longest_token_bytes);
}

std::int64_t Tokenizer::tokens_min(std::span<const Segment> segments) const {
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  std::string joined;  // Adjacent texts, whose characters NFC may join.
  for (const Segment& segment : segments) {
    if (segment.kind == Segment::Kind::kToken) {
      ++tokens;
      bytes += state_->spelled_bytes(joined);
      joined.clear();
    } else if (state_->normalization == Normalization::kNone) {
      bytes += state_->spelled_bytes(segment.text);
    } else {
      joined += segment.text;
    }
  }
  bytes += state_->spelled_bytes(joined);
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

namespace {

base::Result<std::unique_ptr<Tokenizer>> load_tokenizer_json(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  base::Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::parse(text);
  if (!tokenizer.has_value()) return base::failure(tokenizer.error().with_context(path.string()));
  return tokenizer;
}

base::Result<std::unique_ptr<Tokenizer>> load_tiktoken(const std::filesystem::path& model_dir) {
  TESSERA_ASSIGN_OR_RETURN(const std::string ranks, read_text_file(model_dir / "tiktoken.model"));
  const base::Result<std::string> config = read_text_file(model_dir / "tokenizer_config.json");
  if (!config.has_value()) {
    // Not as kNotFound, which says that the folder has no tokenizer.
    return base::failure(base::invalid_argument(
        fmt::format("{}: tiktoken.model needs it for the names of the control tokens", config.error().message())));
  }
  base::Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::parse_tiktoken(ranks, *config);
  if (!tokenizer.has_value()) return base::failure(tokenizer.error().with_context(model_dir.string()));
  return tokenizer;
}

}  // namespace

base::Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::filesystem::path& model_dir) {
  std::error_code ignored;
  const bool ranks_only = !std::filesystem::exists(model_dir / "tokenizer.json", ignored) &&
                          std::filesystem::exists(model_dir / "tiktoken.model", ignored);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                           ranks_only ? load_tiktoken(model_dir) : load_tokenizer_json(model_dir / "tokenizer.json"));
  TESSERA_ASSIGN_OR_RETURN(tokenizer->state_->eos_ids, read_eos_ids(model_dir, *tokenizer));
  return tokenizer;
}

}  // namespace tessera::text
