#include "tessera/text/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/text/json_reader.h"
#include "tessera/text/python_value.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace json = boost::json;
namespace {

constexpr std::size_t kFileBytesMax = 32 << 20;
constexpr std::size_t kTokenBytesMax = 512;  // Kimi's longest has 256.
constexpr std::int64_t kReservedTokens = 256;

constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::size_t kBlockCharactersMax = 400'000;
constexpr std::size_t kRunCharactersMax = 25'000;

base::Status wrong(const std::string& where, std::string_view what) {
  return base::invalid_argument(fmt::format("{}: {}", where, what));
}

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Of the one right spelling: padded, and no bit set that means nothing.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = base64_value(c);
    if (value < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>((bits >> count) & 0xFFu));
    bits &= (1u << count) - 1;
  }
  if (bits != 0) return std::nullopt;
  return bytes;
}

class Reader {
 public:
  base::Result<Vocabulary> read(std::string_view ranks, const json::value& tokenizer_config) {
    TESSERA_RETURN_IF_ERROR(read_ranks(ranks).with_context("tiktoken.model"));
    add_merges();
    TESSERA_RETURN_IF_ERROR(read_control_tokens(tokenizer_config).with_context("tokenizer_config.json"));
    base::Result<RegexSplitter> splitter = RegexSplitter::create(kKimiPattern);
    if (!splitter.has_value()) return base::failure(splitter.error());
    out_.splitters.push_back(std::move(*splitter));
    out_.merge_order = MergeOrder::kByResult;
    out_.whole_words = WholeWords::kTakeFromVocabulary;
    out_.blocks = TextBlocks::kTiktoken;
    return std::move(out_);
  }

 private:
  base::Status read_ranks(std::string_view file) {
    if (file.size() > kFileBytesMax) {
      return base::out_of_range(fmt::format("has {} bytes, expected at most {}", file.size(), kFileBytesMax));
    }
    lines_ = std::ranges::count(file, '\n') + 1;
    for (std::size_t line = 1; !file.empty(); ++line) {
      const std::size_t end = std::min(file.find('\n'), file.size());
      std::string_view text = file.substr(0, end);
      file.remove_prefix(std::min(end + 1, file.size()));
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (!text.empty()) TESSERA_RETURN_IF_ERROR(read_line(text, fmt::format("line {}", line)));
    }
    for (std::size_t i = 0; i < out_.tokens.size(); ++i) {
      if (!out_.tokens[i].has_value()) return base::invalid_argument(fmt::format("no token has rank {}", i));
      id_of_.emplace(out_.tokens[i]->bytes, static_cast<std::int32_t>(i));
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      if (!id_of_.contains(std::string_view(&c, 1))) {
        return base::invalid_argument(fmt::format("no token is the byte {:02x} by itself", byte));
      }
    }
    if (id_of_.size() == out_.tokens.size()) return {};
    for (std::size_t i = 0; i < out_.tokens.size(); ++i) {
      const std::int32_t first = id_of_.at(out_.tokens[i]->bytes);
      if (static_cast<std::size_t>(first) != i) {
        return base::invalid_argument(fmt::format("the tokens of ranks {} and {} are the same", first, i));
      }
    }
    return {};
  }

  base::Status read_line(std::string_view line, const std::string& where) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return wrong(where, "is not base64, a space and a rank");
    const std::string_view digits = line.substr(space + 1);
    std::int64_t rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    const std::int64_t ranks_max = std::min(lines_, base::limits::kVocabularyMax - kReservedTokens);
    if (error != std::errc() || end != digits.data() + digits.size() || rank < 0 || rank >= ranks_max) {
      return wrong(where, fmt::format("the rank is not an integer from 0 to {}: with {} lines and at most {} tokens "
                                      "others would be missing",
                                      ranks_max - 1, lines_, base::limits::kVocabularyMax));
    }
    if (space > (kTokenBytesMax + 2) / 3 * 4) {
      return wrong(where, fmt::format("a token of more than {} bytes", kTokenBytesMax));
    }
    std::optional<std::string> bytes = decode_base64(line.substr(0, space));
    if (!bytes.has_value()) return wrong(where, "the token is not base64");
    if (std::cmp_greater_equal(rank, out_.tokens.size())) out_.tokens.resize(static_cast<std::size_t>(rank) + 1);
    std::optional<Vocabulary::Token>& token = out_.tokens[static_cast<std::size_t>(rank)];
    if (token.has_value()) return wrong(where, fmt::format("rank {} appears twice", rank));
    token = Vocabulary::Token{*std::move(bytes)};
    return {};
  }

  // Every way in which two tokens make a third.
  void add_merges() {
    for (std::size_t i = 0; i < out_.tokens.size(); ++i) {
      const std::string_view bytes = out_.tokens[i]->bytes;
      for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
        const auto left = id_of_.find(bytes.substr(0, cut));
        if (left == id_of_.end()) continue;
        const auto right = id_of_.find(bytes.substr(cut));
        if (right != id_of_.end()) {
          out_.merges.push_back({left->second, right->second, static_cast<std::int32_t>(i)});
        }
      }
    }
  }

  base::Status read_control_tokens(const json::value& root) {
    TESSERA_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::from(root, ""));
    TESSERA_ASSIGN_OR_RETURN(const JsonObject named, config.object("added_tokens_decoder"));
    const auto first = static_cast<std::int64_t>(out_.tokens.size());
    out_.tokens.resize(out_.tokens.size() + kReservedTokens);
    std::unordered_map<std::string, std::int64_t> id_of_content;
    const auto add = [&](std::int64_t id, std::string content, bool special) {
      out_.tokens[static_cast<std::size_t>(id)] = Vocabulary::Token{content, false};
      out_.added.push_back({static_cast<std::int32_t>(id), std::move(content), special});
    };
    for (const auto& [key, value] : named.fields()) {
      const std::string where = named.where(key);
      std::int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < first || id >= first + kReservedTokens) {
        return wrong(where, fmt::format("is not an id from {} to {}, the {} after the ranks of tiktoken.model", first,
                                        first + kReservedTokens - 1, kReservedTokens));
      }
      if (out_.tokens[static_cast<std::size_t>(id)].has_value()) return wrong(where, "the id appears twice");
      TESSERA_ASSIGN_OR_RETURN(const JsonObject token, JsonObject::from(value, where));
      TESSERA_RETURN_IF_ERROR(
          token.check_names({"content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
      TESSERA_ASSIGN_OR_RETURN(const std::string_view content, token.string("content"));
      TESSERA_ASSIGN_OR_RETURN(const bool special, token.boolean("special", false));
      // As in tokenizer.json: such tokens would have to be found in user text, which never becomes one.
      for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
        TESSERA_ASSIGN_OR_RETURN(const bool is_set, token.boolean(flag, false));
        if (is_set) return wrong(token.where(flag), "is true, expected false");
      }
      if (content.empty()) return wrong(where, "the content is empty");
      if (!id_of_content.emplace(content, id).second) {
        return wrong(where,
                     fmt::format("'{}' is also the content of {}", content, id_of_content.at(std::string(content))));
      }
      add(id, std::string(content), special);
    }
    for (std::int64_t id = first; id < first + kReservedTokens; ++id) {
      if (out_.tokens[static_cast<std::size_t>(id)].has_value()) continue;
      std::string content = fmt::format("<|reserved_token_{}|>", id);
      if (const auto taken = id_of_content.find(content); taken != id_of_content.end()) {
        return base::invalid_argument(fmt::format("added_tokens_decoder: '{}' is the content of {}, and the name of {}",
                                                  content, taken->second, id));
      }
      add(id, std::move(content), true);
    }
    return {};
  }

  Vocabulary out_;
  std::int64_t lines_ = 0;                                    // Of the file, and one more if it ends in a line end.
  std::unordered_map<std::string_view, std::int32_t> id_of_;  // Of the ranks; views of out_.tokens.
};

}  // namespace

base::Result<Vocabulary> parse_tiktoken(std::string_view ranks, std::string_view tokenizer_config) {
  base::Result<json::value> config = parse_json(tokenizer_config);
  if (!config.has_value()) return base::failure(config.error().with_context("tokenizer_config.json"));
  return Reader().read(ranks, *config);
}

void cut_as_tiktoken(std::string_view text, std::vector<std::string_view>& blocks) {
  std::size_t begin = 0;
  std::size_t block_characters = 0;  // Since the last multiple of kBlockCharactersMax.
  std::size_t run_characters = 0;    // That are all space, or none.
  bool run_is_space = false;
  for (std::size_t at = 0; at < text.size();) {
    const bool is_space = is_python_space(utf8_code_point(text.substr(at)));
    if (block_characters == kBlockCharactersMax) {
      blocks.push_back(text.substr(begin, at - begin));
      begin = at;
      block_characters = 0;
      run_characters = 0;
    }
    if (run_characters > 0 && is_space == run_is_space) {
      if (run_characters == kRunCharactersMax) {
        blocks.push_back(text.substr(begin, at - begin));
        begin = at;
        run_characters = 0;
      }
    } else {
      run_characters = 0;
      run_is_space = is_space;
    }
    ++run_characters;
    ++block_characters;
    at += utf8_length(text[at]);
  }
  if (begin < text.size()) blocks.push_back(text.substr(begin));
}

}  // namespace tessera::text
