#include "tessera/text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <unordered_map>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/text/byte_level.h"
#include "tessera/text/json_reader.h"

namespace tessera::text {
namespace json = boost::json;
namespace {

// The GPT-2 pattern, which ByteLevel applies with use_regex.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

base::Status wrong(const std::string& where, std::string_view what) {
  return base::invalid_argument(fmt::format("{}: {}", where, what));
}

base::Status unsupported(const std::string& where, std::string_view what) {
  return base::unimplemented(fmt::format("{}: {}", where, what));
}

// Fails unless the field is absent, null or false.
base::Status expect_false(const JsonObject& object, std::string_view name) {
  TESSERA_ASSIGN_OR_RETURN(const bool value, object.boolean(name, false));
  return value ? unsupported(object.where(name), "true is not supported") : base::ok_status();
}

// Fails unless the field is absent or null.
base::Status expect_null(const JsonObject& object, std::string_view name) {
  return object.find(name) == nullptr ? base::ok_status() : unsupported(object.where(name), "only null is supported");
}

// Fails unless the field is absent, null or the empty string.
base::Status expect_empty(const JsonObject& object, std::string_view name) {
  const json::value* value = object.find(name);
  if (value == nullptr || (value->is_string() && value->get_string().empty())) return {};
  return unsupported(object.where(name), "only null and \"\" are supported");
}

class Reader {
 public:
  base::Result<Vocabulary> read(const json::value& root) {
    TESSERA_ASSIGN_OR_RETURN(const JsonObject file, JsonObject::from(root, ""));
    TESSERA_RETURN_IF_ERROR(file.check_names({"version", "truncation", "padding", "added_tokens", "normalizer",
                                              "pre_tokenizer", "post_processor", "decoder", "model"}));
    if (file.find("version") != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(const std::string_view version, file.string("version"));
      if (version != "1.0") return base::failure(unsupported("version", fmt::format("is '{}', expected 1.0", version)));
    }
    TESSERA_RETURN_IF_ERROR(expect_null(file, "truncation"));
    TESSERA_RETURN_IF_ERROR(expect_null(file, "padding"));
    TESSERA_RETURN_IF_ERROR(read_normalizer(file));
    TESSERA_RETURN_IF_ERROR(check_decoder(file));
    TESSERA_ASSIGN_OR_RETURN(const JsonObject model, file.object("model"));
    TESSERA_RETURN_IF_ERROR(read_vocabulary(model));
    TESSERA_RETURN_IF_ERROR(read_added_tokens(file));
    TESSERA_RETURN_IF_ERROR(read_model(model));
    TESSERA_RETURN_IF_ERROR(read_pre_tokenizer(file));
    if (const json::value* value = file.find("post_processor"); value != nullptr) {
      TESSERA_RETURN_IF_ERROR(read_post_processor(*value, "post_processor"));
    }
    decode_letters();
    return std::move(out_);
  }

 private:
  base::Status read_normalizer(const JsonObject& file) {
    if (file.find("normalizer") == nullptr) return {};
    TESSERA_ASSIGN_OR_RETURN(const JsonObject normalizer, file.object("normalizer"));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view type, normalizer.string("type"));
    if (type == "NFC") {
      TESSERA_RETURN_IF_ERROR(normalizer.check_names({"type"}));
      out_.normalization = Normalization::kNfc;
      return {};
    }
    if (type == "Sequence") {
      TESSERA_ASSIGN_OR_RETURN(const json::array* steps, normalizer.array("normalizers"));
      if (steps->empty()) return {};
    }
    return unsupported("normalizer", fmt::format("'{}' is not supported, expected null or NFC", type));
  }

  static base::Status check_decoder(const JsonObject& file) {
    TESSERA_ASSIGN_OR_RETURN(const JsonObject decoder, file.object("decoder"));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view type, decoder.string("type"));
    if (type == "ByteLevel") return {};
    return unsupported("decoder", fmt::format("'{}' is not supported, expected ByteLevel", type));
  }

  base::Status read_vocabulary(const JsonObject& model) {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view type, model.string("type"));
    if (type != "BPE") return unsupported("model.type", fmt::format("'{}' is not supported, expected BPE", type));
    TESSERA_RETURN_IF_ERROR(
        model.check_names({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                           "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
    TESSERA_ASSIGN_OR_RETURN(const JsonObject vocabulary, model.object("vocab"));
    for (const auto& [content, value] : vocabulary.fields()) {
      TESSERA_RETURN_IF_ERROR(add_token(std::string_view(content), value, "model.vocab"));
    }
    return {};
  }

  base::Status add_token(std::string_view content, const json::value& value, const std::string& where) {
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= base::limits::kVocabularyMax) {
      return wrong(where, fmt::format("the id of token '{}' is not an integer from 0 to {}", content,
                                      base::limits::kVocabularyMax - 1));
    }
    const std::int64_t id = value.get_int64();
    if (static_cast<std::size_t>(id) >= out_.tokens.size()) out_.tokens.resize(static_cast<std::size_t>(id) + 1);
    std::optional<Vocabulary::Token>& token = out_.tokens[static_cast<std::size_t>(id)];
    if (token.has_value() && token->bytes != content) {
      return wrong(where, fmt::format("tokens '{}' and '{}' have the same id {}", token->bytes, content, id));
    }
    const auto [known, inserted] = id_of_.try_emplace(std::string(content), static_cast<std::int32_t>(id));
    if (!inserted && known->second != id) {
      return wrong(where, fmt::format("token '{}' has the ids {} and {}", content, known->second, id));
    }
    token = Vocabulary::Token{std::string(content)};
    return {};
  }

  // The file spells tokens in letters of bytes; what is not made of these stands for itself, as in the library.
  void decode_letters() {
    for (std::optional<Vocabulary::Token>& token : out_.tokens) {
      if (!token.has_value()) continue;
      std::optional<std::string> bytes = bytes_of_letters(token->bytes);
      token->spelled = bytes.has_value();
      if (bytes.has_value()) token->bytes = *std::move(bytes);
    }
  }

  base::Status read_added_tokens(const JsonObject& file) {
    if (file.find("added_tokens") == nullptr) return {};
    TESSERA_ASSIGN_OR_RETURN(const json::array* list, file.array("added_tokens"));
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string where = fmt::format("added_tokens[{}]", i);
      TESSERA_ASSIGN_OR_RETURN(const JsonObject entry, JsonObject::from((*list)[i], where));
      TESSERA_RETURN_IF_ERROR(
          entry.check_names({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
      TESSERA_ASSIGN_OR_RETURN(const std::string_view content, entry.string("content"));
      TESSERA_ASSIGN_OR_RETURN(const bool special, entry.boolean("special", false));
      if (content.empty()) return wrong(where, "the content is empty");
      for (const std::string_view name : {"single_word", "lstrip", "rstrip"}) {
        TESSERA_RETURN_IF_ERROR(expect_false(entry, name));
      }
      const json::value* id = entry.find("id");
      if (id == nullptr) return wrong(where, "id: is missing");
      TESSERA_RETURN_IF_ERROR(add_token(content, *id, where));
      const std::int32_t token = id_of_.at(std::string(content));
      if (is_added(token)) return wrong(where, fmt::format("'{}' appears twice", content));
      is_added_.resize(out_.tokens.size());
      is_added_[static_cast<std::size_t>(token)] = true;
      out_.added.push_back({token, std::string(content), special});
    }
    return {};
  }

  bool is_added(std::int32_t id) const {
    return static_cast<std::size_t>(id) < is_added_.size() && is_added_[static_cast<std::size_t>(id)];
  }

  base::Status read_model(const JsonObject& model) {
    if (const json::value* dropout = model.find("dropout"); dropout != nullptr) {
      if (!dropout->is_double() || dropout->get_double() != 0.0) {
        return unsupported("model.dropout", "only null and 0.0 are supported");
      }
    }
    TESSERA_RETURN_IF_ERROR(expect_empty(model, "continuing_subword_prefix"));
    TESSERA_RETURN_IF_ERROR(expect_empty(model, "end_of_word_suffix"));
    TESSERA_RETURN_IF_ERROR(expect_false(model, "byte_fallback"));
    TESSERA_ASSIGN_OR_RETURN(const bool ignore_merges, model.boolean("ignore_merges", false));
    out_.whole_words = ignore_merges ? WholeWords::kTakeFromVocabulary : WholeWords::kMerge;
    TESSERA_RETURN_IF_ERROR(check_bytes(model));
    TESSERA_ASSIGN_OR_RETURN(const json::array* merges, model.array("merges"));
    if (static_cast<std::int64_t>(merges->size()) > base::limits::kVocabularyMax) {
      return base::out_of_range(
          fmt::format("model.merges: {} entries, expected at most {}", merges->size(), base::limits::kVocabularyMax));
    }
    out_.merges.reserve(merges->size());
    for (std::size_t i = 0; i < merges->size(); ++i) {
      TESSERA_RETURN_IF_ERROR(read_merge((*merges)[i], fmt::format("model.merges[{}]", i)));
    }
    return {};
  }

  // No byte may become an added token, nor the unknown token, which is one as a rule.
  base::Status check_bytes(const JsonObject& model) const {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto letter = id_of_.find(byte_letter(static_cast<unsigned char>(byte)));
      if (letter == id_of_.end()) {
        if (model.find("unk_token") == nullptr) continue;
        return unsupported("model.unk_token",
                           fmt::format("only null is supported where a byte has no token, and {:02x} has none", byte));
      }
      if (is_added(letter->second)) {
        return unsupported("added_tokens", fmt::format("'{}' is also the letter of a byte", letter->first));
      }
    }
    return {};
  }

  base::Status read_merge(const json::value& value, const std::string& where) {
    std::string_view left;
    std::string_view right;
    if (value.is_string()) {
      const std::string_view both = value.get_string();
      const std::size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
        return wrong(where, fmt::format("'{}' is not two tokens with a space between them", both));
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else if (value.is_array() && value.get_array().size() == 2 && value.get_array()[0].is_string() &&
               value.get_array()[1].is_string()) {
      left = value.get_array()[0].get_string();
      right = value.get_array()[1].get_string();
    } else {
      return wrong(where, "is neither a string nor an array of two strings");
    }
    Merge merge{};
    for (const auto& [content, id] : {std::pair(std::string(left), &merge.left),
                                      {std::string(right), &merge.right},
                                      {std::string(left) + std::string(right), &merge.result}}) {
      const auto token = id_of_.find(content);
      if (token == id_of_.end()) return wrong(where, fmt::format("token '{}' is not in the vocabulary", content));
      *id = token->second;
    }
    if (is_added(merge.result)) {
      return unsupported(where, fmt::format("makes the added token '{}' out of ordinary text",
                                            out_.tokens[static_cast<std::size_t>(merge.result)]->bytes));
    }
    out_.merges.push_back(merge);
    return {};
  }

  base::Status read_pre_tokenizer(const JsonObject& file) {
    TESSERA_ASSIGN_OR_RETURN(const JsonObject root, file.object("pre_tokenizer"));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view type, root.string("type"));
    if (type != "Sequence") return read_pre_tokenizer_step(root, Position::kLast);
    TESSERA_RETURN_IF_ERROR(root.check_names({"type", "pretokenizers"}));
    TESSERA_ASSIGN_OR_RETURN(const json::array* steps, root.array("pretokenizers"));
    if (steps->empty() || steps->size() > kPreTokenizersMax) {
      return unsupported(root.where("pretokenizers"),
                         fmt::format("has {} entries, expected 1 to {}", steps->size(), kPreTokenizersMax));
    }
    for (std::size_t i = 0; i < steps->size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const JsonObject step,
                               JsonObject::from((*steps)[i], fmt::format("pre_tokenizer.pretokenizers[{}]", i)));
      TESSERA_RETURN_IF_ERROR(
          read_pre_tokenizer_step(step, i + 1 == steps->size() ? Position::kLast : Position::kBefore));
    }
    return {};
  }

  enum class Position { kBefore, kLast };
  static constexpr std::size_t kPreTokenizersMax = 16;

  base::Status read_pre_tokenizer_step(const JsonObject& step, Position position) {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view type, step.string("type"));
    if ((type == "ByteLevel") != (position == Position::kLast)) {
      return unsupported(step.where(), fmt::format("is {}, but ByteLevel must come last, and only there", type));
    }
    if (type == "ByteLevel") {
      TESSERA_RETURN_IF_ERROR(step.check_names({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
      TESSERA_ASSIGN_OR_RETURN(const bool add_prefix_space, step.boolean("add_prefix_space", true));
      if (add_prefix_space) return unsupported(step.where("add_prefix_space"), "only false is supported");
      TESSERA_ASSIGN_OR_RETURN(const bool use_regex, step.boolean("use_regex", true));
      return use_regex ? add_splitter(RegexSplitter::create(kByteLevelPattern), step.where()) : base::ok_status();
    }
    if (type == "Digits") {
      TESSERA_RETURN_IF_ERROR(step.check_names({"type", "individual_digits"}));
      TESSERA_ASSIGN_OR_RETURN(const bool each, step.boolean("individual_digits", false));
      out_.splitters.push_back(RegexSplitter::create_digits(each ? DigitGrouping::kEach : DigitGrouping::kRuns));
      return {};
    }
    if (type == "Split") {
      TESSERA_RETURN_IF_ERROR(step.check_names({"type", "pattern", "behavior", "invert"}));
      TESSERA_ASSIGN_OR_RETURN(const std::string_view behavior, step.string("behavior"));
      if (behavior != "Isolated") {
        return unsupported(step.where("behavior"), fmt::format("'{}' is not supported, expected Isolated", behavior));
      }
      TESSERA_RETURN_IF_ERROR(expect_false(step, "invert"));
      TESSERA_ASSIGN_OR_RETURN(const JsonObject pattern, step.object("pattern"));
      TESSERA_RETURN_IF_ERROR(pattern.check_names({"Regex"}));
      TESSERA_ASSIGN_OR_RETURN(const std::string_view regex, pattern.string("Regex"));
      return add_splitter(RegexSplitter::create(regex), pattern.where("Regex"));
    }
    return unsupported(step.where("type"),
                       fmt::format("'{}' is not supported, expected Digits, Split or ByteLevel", type));
  }

  base::Status add_splitter(base::Result<RegexSplitter> splitter, const std::string& where) {
    if (!splitter.has_value()) return splitter.error().with_context(where);
    out_.splitters.push_back(std::move(*splitter));
    return {};
  }

  // ByteLevel only moves offsets. TemplateProcessing says which tokens surround a text.
  base::Status read_post_processor(const json::value& value, std::string where) {
    TESSERA_ASSIGN_OR_RETURN(const JsonObject step, JsonObject::from(value, std::move(where)));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view type, step.string("type"));
    if (type == "ByteLevel") return {};
    if (type == "TemplateProcessing") return read_template(step);
    if (type != "Sequence") {
      return unsupported(step.where("type"), fmt::format("'{}' is not supported, expected ByteLevel, "
                                                         "TemplateProcessing or a Sequence of them",
                                                         type));
    }
    TESSERA_ASSIGN_OR_RETURN(const json::array* steps, step.array("processors"));
    for (std::size_t i = 0; i < steps->size(); ++i) {
      TESSERA_RETURN_IF_ERROR(read_post_processor((*steps)[i], fmt::format("{}[{}]", step.where("processors"), i)));
    }
    return {};
  }

  base::Status read_template(const JsonObject& step) {
    TESSERA_RETURN_IF_ERROR(step.check_names({"type", "single", "pair", "special_tokens"}));
    if (!out_.prompt_prefix_ids.empty()) return unsupported(step.where(), "a second TemplateProcessing");
    TESSERA_ASSIGN_OR_RETURN(const json::array* single, step.array("single"));
    bool text_seen = false;
    for (std::size_t i = 0; i < single->size(); ++i) {
      const std::string where = fmt::format("{}[{}]", step.where("single"), i);
      TESSERA_ASSIGN_OR_RETURN(const JsonObject item, JsonObject::from((*single)[i], where));
      TESSERA_RETURN_IF_ERROR(item.check_names({"SpecialToken", "Sequence"}));
      if (text_seen) return unsupported(where, "tokens after the text are not supported");
      if (item.find("Sequence") != nullptr) {
        text_seen = true;
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(const JsonObject token, item.object("SpecialToken"));
      TESSERA_ASSIGN_OR_RETURN(const std::string_view content, token.string("id"));
      const auto id = id_of_.find(std::string(content));
      if (id == id_of_.end() || !is_added(id->second)) {
        return wrong(where, fmt::format("'{}' is not one of added_tokens", content));
      }
      out_.prompt_prefix_ids.push_back(id->second);
    }
    return text_seen ? base::ok_status() : wrong(step.where("single"), "the text does not appear in it");
  }

  Vocabulary out_;
  std::unordered_map<std::string, std::int32_t> id_of_;
  std::vector<bool> is_added_;  // By id; may be shorter than the vocabulary.
};

}  // namespace

base::Result<Vocabulary> parse_tokenizer_json(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const json::value root, parse_json(text));
  return Reader().read(root);
}

}  // namespace tessera::text
