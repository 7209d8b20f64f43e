#include "tessera/text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>

#include "tessera/base/limits.h"
#include "tessera/text/byte_level.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The smallest file that has everything.
json::object valid_file() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
    "added_tokens": [
      {"id": 6, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
       "special": true},
      {"id": 7, "content": "<think>", "special": false}
    ],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
    ]},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "Ġ": 2, "1": 3, "ab": 4, "aab": 5}, "merges": ["a b", ["a", "ab"]]}
  })")
      .as_object();
}

// The error of the valid file with one thing changed.
std::string error_with(const std::function<void(json::object&)>& change) {
  json::object file = valid_file();
  change(file);
  const auto tokenizer = Tokenizer::parse(json::serialize(file));
  return tokenizer.has_value() ? "none" : tokenizer.error().to_string();
}

json::object& model(json::object& file) { return file.at("model").as_object(); }
json::object& added(json::object& file) { return file.at("added_tokens").as_array().at(0).as_object(); }
json::array& steps(json::object& file) { return file.at("pre_tokenizer").as_object().at("pretokenizers").as_array(); }
json::object& step(json::object& file, std::size_t index) { return steps(file).at(index).as_object(); }

TEST(TokenizerJson, ReadsMergesInBothSpellings) {
  const auto tokenizer = Tokenizer::parse(json::serialize(valid_file()));
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  EXPECT_THAT((*tokenizer)->encode("aab ab11b"), ElementsAre(5, 2, 4, 3, 3, 1));
  EXPECT_EQ((*tokenizer)->vocab_size(), 8);
  EXPECT_EQ((*tokenizer)->token_id("<think>"), 7);
}

TEST(TokenizerJson, TakesWholeWordsWhereMergesAreIgnored) {
  json::object file = valid_file();
  model(file)["vocab"].as_object()["bb"] = 8;
  EXPECT_THAT((*Tokenizer::parse(json::serialize(file)))->encode("bb"), ElementsAre(1, 1));
  model(file)["ignore_merges"] = true;
  EXPECT_THAT((*Tokenizer::parse(json::serialize(file)))->encode("bb abb"), ElementsAre(8, 2, 4, 1));
}

TEST(TokenizerJson, IdsMayHaveHoles) {
  json::object file = valid_file();
  added(file)["id"] = 100;
  const auto tokenizer = Tokenizer::parse(json::serialize(file));
  ASSERT_TRUE(tokenizer.has_value());
  EXPECT_EQ((*tokenizer)->vocab_size(), 101);
  EXPECT_TRUE((*tokenizer)->contains(100));
  EXPECT_FALSE((*tokenizer)->contains(99));
  EXPECT_EQ((*tokenizer)->decode(std::vector{99, 100}, SpecialTokens::kKeep), "<|end|>");
}

TEST(TokenizerJson, RefusesAFileThatIsNotOne) {
  const auto error = [](std::string_view text) { return Tokenizer::parse(text).error().to_string(); };
  EXPECT_THAT(error("{\"version\": "), HasSubstr("data_loss: not valid JSON at byte 12"));
  EXPECT_EQ(error("[]"), "invalid_argument: : is an array, expected an object");
  EXPECT_EQ(error("{}"), "invalid_argument: decoder: is missing");
  EXPECT_EQ(error_with([](auto& f) { f["version"] = "2.0"; }), "unimplemented: version: is '2.0', expected 1.0");
  EXPECT_EQ(error_with([](auto& f) { f["extra"] = 1; }), "unimplemented: extra: is not a field that is understood");
  EXPECT_EQ(error_with([](auto& f) { f.erase("model"); }), "invalid_argument: model: is missing");
  EXPECT_EQ(error_with([](auto& f) { f.erase("pre_tokenizer"); }), "invalid_argument: pre_tokenizer: is missing");
}

TEST(TokenizerJson, RefusesWhatWouldChangeTheText) {
  EXPECT_EQ(error_with([](auto& f) { f["truncation"] = json::object{{"max_length", 5}}; }),
            "unimplemented: truncation: only null is supported");
  EXPECT_EQ(error_with([](auto& f) { f["padding"] = json::object(); }),
            "unimplemented: padding: only null is supported");
  EXPECT_EQ(error_with([](auto& f) { f["normalizer"] = {{"type", "NFC"}}; }), "none");
  EXPECT_EQ(error_with([](auto& f) { f["normalizer"] = {{"type", "NFKC"}}; }),
            "unimplemented: normalizer: 'NFKC' is not supported, expected null or NFC");
  EXPECT_EQ(error_with([](auto& f) { f["normalizer"] = json::parse(R"({"type":"Sequence","normalizers":[]})"); }),
            "none");
  EXPECT_EQ(error_with([](auto& f) { f["normalizer"] = json::parse(R"({"type":"Sequence","normalizers":[{}]})"); }),
            "unimplemented: normalizer: 'Sequence' is not supported, expected null or NFC");
  EXPECT_EQ(error_with([](auto& f) { f["decoder"] = {{"type", "WordPiece"}}; }),
            "unimplemented: decoder: 'WordPiece' is not supported, expected ByteLevel");
}

TEST(TokenizerJson, RefusesOtherModels) {
  EXPECT_EQ(error_with([](auto& f) { model(f)["type"] = "Unigram"; }),
            "unimplemented: model.type: 'Unigram' is not supported, expected BPE");
  EXPECT_EQ(error_with([](auto& f) { model(f)["dropout"] = 0.1; }),
            "unimplemented: model.dropout: only null and 0.0 are supported");
  EXPECT_EQ(error_with([](auto& f) { model(f)["dropout"] = 0.0; }), "none");
  EXPECT_EQ(error_with([](auto& f) { model(f)["byte_fallback"] = true; }),
            "unimplemented: model.byte_fallback: true is not supported");
  EXPECT_EQ(error_with([](auto& f) { model(f)["byte_fallback"] = 1; }),
            "invalid_argument: model.byte_fallback: is a number, expected a boolean");
  EXPECT_EQ(error_with([](auto& f) { model(f)["continuing_subword_prefix"] = "##"; }),
            "unimplemented: model.continuing_subword_prefix: only null and \"\" are supported");
  EXPECT_EQ(error_with([](auto& f) { model(f)["end_of_word_suffix"] = "</w>"; }),
            "unimplemented: model.end_of_word_suffix: only null and \"\" are supported");
  EXPECT_EQ(error_with([](auto& f) { model(f)["end_of_word_suffix"] = ""; }), "none");
  EXPECT_EQ(error_with([](auto& f) { model(f)["cache_capacity"] = 1; }),
            "unimplemented: model.cache_capacity: is not a field that is understood");
  EXPECT_EQ(error_with([](auto& f) { model(f)["unk_token"] = "<|end|>"; }),
            "unimplemented: model.unk_token: only null is supported where a byte has no token, and 00 has none");
}

TEST(TokenizerJson, AcceptsAnUnknownTokenThatCanNeverBeNeeded) {
  EXPECT_EQ(error_with([](auto& f) {
              model(f)["unk_token"] = "<|end|>";
              for (int byte = 0; byte < 256; ++byte) {
                model(f)["vocab"].as_object().emplace(byte_letter(static_cast<unsigned char>(byte)), 1000 + byte);
              }
            }),
            "none");
}

TEST(TokenizerJson, RefusesVocabulariesThatContradictThemselves) {
  const std::string range = " is not an integer from 0 to 2097151";
  const auto vocab = [](json::object& file) -> json::object& { return model(file).at("vocab").as_object(); };
  EXPECT_EQ(error_with([&](auto& f) { vocab(f)["x"] = -1; }),
            "invalid_argument: model.vocab: the id of token 'x'" + range);
  EXPECT_EQ(error_with([&](auto& f) { vocab(f)["x"] = base::limits::kVocabularyMax; }),
            "invalid_argument: model.vocab: the id of token 'x'" + range);
  EXPECT_EQ(error_with([&](auto& f) { vocab(f)["x"] = 18446744073709551615u; }),
            "invalid_argument: model.vocab: the id of token 'x'" + range);
  EXPECT_EQ(error_with([&](auto& f) { vocab(f)["x"] = 1.5; }),
            "invalid_argument: model.vocab: the id of token 'x'" + range);
  EXPECT_EQ(error_with([&](auto& f) { vocab(f)["x"] = "8"; }),
            "invalid_argument: model.vocab: the id of token 'x'" + range);
  EXPECT_EQ(error_with([&](auto& f) { vocab(f)["x"] = 4; }),
            "invalid_argument: model.vocab: tokens 'ab' and 'x' have the same id 4");
  EXPECT_EQ(error_with([&](auto& f) { model(f)["vocab"] = json::array(); }),
            "invalid_argument: model.vocab: is an array, expected an object");
}

TEST(TokenizerJson, RefusesMergesThatDoNotFitTheVocabulary) {
  const auto merge = [](const json::value& value) {
    return error_with([&](auto& f) { model(f)["merges"] = json::array{value}; });
  };
  EXPECT_EQ(merge("ab"), "invalid_argument: model.merges[0]: 'ab' is not two tokens with a space between them");
  EXPECT_EQ(merge("a b c"), "invalid_argument: model.merges[0]: 'a b c' is not two tokens with a space between them");
  EXPECT_EQ(merge({"a", "b", "c"}),
            "invalid_argument: model.merges[0]: is neither a string nor an array of two strings");
  EXPECT_EQ(merge({"a", 1}), "invalid_argument: model.merges[0]: is neither a string nor an array of two strings");
  EXPECT_EQ(merge(7), "invalid_argument: model.merges[0]: is neither a string nor an array of two strings");
  EXPECT_EQ(merge("z b"), "invalid_argument: model.merges[0]: token 'z' is not in the vocabulary");
  EXPECT_EQ(merge("b a"), "invalid_argument: model.merges[0]: token 'ba' is not in the vocabulary");
  EXPECT_EQ(merge(" b"), "invalid_argument: model.merges[0]: token '' is not in the vocabulary");
  EXPECT_EQ(error_with([](auto& f) { model(f)["merges"].as_array().push_back("a b"); }),
            "invalid_argument: model.merges[2]: the same pair as in an earlier merge");
  EXPECT_EQ(error_with([](auto& f) { model(f).erase("merges"); }), "invalid_argument: model.merges: is missing");
}

TEST(TokenizerJson, RefusesAddedTokensThatOrdinaryTextCouldBecome) {
  EXPECT_EQ(error_with([](auto& f) {
              added(f)["content"] = "ab";
              added(f)["id"] = 4;
            }),
            "unimplemented: model.merges[0]: makes the added token 'ab' out of ordinary text");
  EXPECT_EQ(error_with([](auto& f) {
              added(f)["content"] = "b";
              added(f)["id"] = 1;
            }),
            "unimplemented: added_tokens: 'b' is also the letter of a byte");
  for (const char* name : {"single_word", "lstrip", "rstrip"}) {
    EXPECT_EQ(error_with([&](auto& f) { added(f)[name] = true; }),
              "unimplemented: added_tokens[0]." + std::string(name) + ": true is not supported");
  }
}

TEST(TokenizerJson, RefusesBrokenAddedTokens) {
  EXPECT_EQ(error_with([](auto& f) { added(f)["content"] = ""; }),
            "invalid_argument: added_tokens[0]: the content is empty");
  EXPECT_EQ(error_with([](auto& f) { added(f).erase("content"); }),
            "invalid_argument: added_tokens[0].content: is missing");
  EXPECT_EQ(error_with([](auto& f) { added(f).erase("id"); }), "invalid_argument: added_tokens[0]: id: is missing");
  EXPECT_EQ(error_with([](auto& f) { added(f)["id"] = -5; }),
            "invalid_argument: added_tokens[0]: the id of token '<|end|>' is not an integer from 0 to 2097151");
  EXPECT_EQ(error_with([](auto& f) { added(f)["id"] = 7; }),
            "invalid_argument: added_tokens[1]: tokens '<|end|>' and '<think>' have the same id 7");
  EXPECT_EQ(error_with([](auto& f) { model(f)["vocab"].as_object()["<|end|>"] = 8; }),
            "invalid_argument: added_tokens[0]: token '<|end|>' has the ids 8 and 6");
  EXPECT_EQ(error_with([](auto& f) { f["added_tokens"].as_array().push_back(f["added_tokens"].as_array()[0]); }),
            "invalid_argument: added_tokens[2]: '<|end|>' appears twice");
  EXPECT_EQ(error_with([](auto& f) { added(f)["color"] = "red"; }),
            "unimplemented: added_tokens[0].color: is not a field that is understood");
  EXPECT_EQ(error_with([](auto& f) { f["added_tokens"].as_array().push_back("x"); }),
            "invalid_argument: added_tokens[2]: is a string, expected an object");
  EXPECT_EQ(error_with([](auto& f) { f["added_tokens"] = nullptr; }), "none");
}

TEST(TokenizerJson, RefusesOtherPreTokenizers) {
  const std::string at = "pre_tokenizer.pretokenizers";
  EXPECT_EQ(error_with([](auto& f) { step(f, 1)["type"] = "Whitespace"; }),
            "unimplemented: " + at + "[1].type: 'Whitespace' is not supported, expected Digits, Split or ByteLevel");
  EXPECT_EQ(error_with([](auto& f) { steps(f).pop_back(); }),
            "unimplemented: " + at + "[1]: is Digits, but ByteLevel must come last, and only there");
  EXPECT_EQ(error_with([](auto& f) { step(f, 0) = step(f, 2); }),
            "unimplemented: " + at + "[0]: is ByteLevel, but ByteLevel must come last, and only there");
  EXPECT_EQ(error_with([](auto& f) { steps(f).clear(); }),
            "unimplemented: " + at + ": has 0 entries, expected 1 to 16");
  EXPECT_EQ(error_with([](auto& f) { steps(f).insert(steps(f).begin(), 16, steps(f)[0]); }),
            "unimplemented: " + at + ": has 19 entries, expected 1 to 16");
  EXPECT_EQ(error_with([](auto& f) { step(f, 2)["add_prefix_space"] = true; }),
            "unimplemented: " + at + "[2].add_prefix_space: only false is supported");
  EXPECT_EQ(error_with([](auto& f) { step(f, 2).erase("add_prefix_space"); }),
            "unimplemented: " + at + "[2].add_prefix_space: only false is supported");
  EXPECT_EQ(error_with([](auto& f) { step(f, 1)["more"] = 1; }),
            "unimplemented: " + at + "[1].more: is not a field that is understood");
  EXPECT_EQ(error_with([](auto& f) { step(f, 0)["behavior"] = "Removed"; }),
            "unimplemented: " + at + "[0].behavior: 'Removed' is not supported, expected Isolated");
  EXPECT_EQ(error_with([](auto& f) { step(f, 0)["invert"] = true; }),
            "unimplemented: " + at + "[0].invert: true is not supported");
  EXPECT_EQ(error_with([](auto& f) { step(f, 0)["pattern"] = {{"String", " "}}; }),
            "unimplemented: " + at + "[0].pattern.String: is not a field that is understood");
  EXPECT_EQ(error_with([](auto& f) { step(f, 0)["pattern"] = {{"Regex", "\\w+"}}; }),
            "unimplemented: " + at + "[0].pattern.Regex: the pattern uses '\\w', which is not supported");
  EXPECT_EQ(error_with([](auto& f) { f["pre_tokenizer"] = {{"type", "Metaspace"}}; }),
            "unimplemented: pre_tokenizer: is Metaspace, but ByteLevel must come last, and only there");
}

TEST(TokenizerJson, ReadsWhatThePostProcessorPutsBeforeAText) {
  const auto prefix = [](const char* processor) {
    json::object file = valid_file();
    file["post_processor"] = json::parse(processor);
    const auto tokenizer = Tokenizer::parse(json::serialize(file));
    return tokenizer.has_value() ? ::testing::PrintToString((*tokenizer)->prompt_prefix_ids())
                                 : tokenizer.error().to_string();
  };
  EXPECT_EQ(prefix(R"({"type": "ByteLevel", "trim_offsets": false})"), "{}");
  const char* bos = R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}},
       {"SpecialToken": {"id": "<think>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [], "special_tokens": {}}]})";
  EXPECT_EQ(prefix(bos), "{ 6, 7 }");
  EXPECT_EQ(prefix(R"({"type": "BertProcessing"})"),
            "unimplemented: post_processor.type: 'BertProcessing' is not supported, expected ByteLevel, "
            "TemplateProcessing or a Sequence of them");
  EXPECT_EQ(
      prefix(R"({"type": "TemplateProcessing", "single": [{"Sequence": {}}, {"SpecialToken": {"id": "<|end|>"}}]})"),
      "unimplemented: post_processor.single[1]: tokens after the text are not supported");
  EXPECT_EQ(prefix(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "ab"}}, {"Sequence": {}}]})"),
            "invalid_argument: post_processor.single[0]: 'ab' is not one of added_tokens");
  EXPECT_EQ(prefix(R"({"type": "TemplateProcessing", "single": []})"),
            "invalid_argument: post_processor.single: the text does not appear in it");
}

}  // namespace
}  // namespace tessera::text
