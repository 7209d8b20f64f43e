#include "tessera/text/regex_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <thread>

#include "tessera/text/golden_lines.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string_view> split(const base::Result<RegexSplitter>& splitter, std::string_view text) {
  std::vector<std::string_view> pieces;
  splitter->split(text, pieces);
  return pieces;
}

std::vector<std::string_view> split_digits(DigitGrouping grouping, std::string_view text) {
  std::vector<std::string_view> pieces;
  RegexSplitter::create_digits(grouping).split(text, pieces);
  return pieces;
}

TEST(RegexSplitter, CutsAsTheTokenizersLibrary) {
  std::map<std::string, base::Result<RegexSplitter>> splitters;
  for (const auto& line : golden_lines("tokenizer/splits.jsonl.gz")) {
    const std::string pattern = golden_string(line, "pattern");
    const std::string text = golden_string(line, "text");
    auto at = splitters.find(pattern);
    if (at == splitters.end()) {
      at = splitters.emplace(pattern, RegexSplitter::create(pattern)).first;
      ASSERT_TRUE(at->second.has_value()) << pattern << ": " << at->second.error().to_string();
    }
    std::vector<std::string> expected;
    for (const auto& piece : line.at("pieces").as_array()) expected.emplace_back(piece.as_string());
    EXPECT_THAT(split(at->second, text), ::testing::ElementsAreArray(expected)) << pattern << "\n" << text;
  }
  EXPECT_EQ(splitters.size(), 8u);
}

TEST(RegexSplitter, GroupsDigitsOrNot) {
  EXPECT_THAT(split_digits(DigitGrouping::kEach, "a12½b3"), ElementsAre("a", "1", "2", "½", "b", "3"));
  EXPECT_THAT(split_digits(DigitGrouping::kRuns, "a12½b3"), ElementsAre("a", "12½", "b", "3"));
}

TEST(RegexSplitter, WhatDoesNotMatchIsAPiece) {
  const auto splitter = RegexSplitter::create("b+");
  EXPECT_THAT(split(splitter, ""), IsEmpty());
  EXPECT_THAT(split(splitter, "aaa"), ElementsAre("aaa"));
  EXPECT_THAT(split(splitter, "bb"), ElementsAre("bb"));
  EXPECT_THAT(split(splitter, "abba"), ElementsAre("a", "bb", "a"));
}

TEST(RegexSplitter, TakesNulAndPiecesOfALargerText) {
  using namespace std::string_view_literals;
  EXPECT_THAT(split(RegexSplitter::create("b"), "a\0b\0"sv), ElementsAre("a\0"sv, "b", "\0"sv));
  // The end of the view is the end: what lies behind it is not looked at.
  EXPECT_THAT(split(RegexSplitter::create("b+(?!c)"), "abbc"sv.substr(0, 3)), ElementsAre("a", "bb"));
}

// Greedy, lazy and possessive repeats and options, where what follows needs something back.
TEST(RegexSplitter, GivesBackWhatTheRestNeeds) {
  EXPECT_THAT(split(RegexSplitter::create("[ab]*b"), "abab a"), ElementsAre("abab", " a"));
  EXPECT_THAT(split(RegexSplitter::create("[ab]*?b"), "abab"), ElementsAre("ab", "ab"));
  EXPECT_THAT(split(RegexSplitter::create("[ab]*+b|a"), "ab"), ElementsAre("a", "b"));
  EXPECT_THAT(split(RegexSplitter::create("(?:a|ab)(?:c|bcd)(?!x)"), "abcdx"), ElementsAre("abc", "dx"));
  EXPECT_THAT(split(RegexSplitter::create("(?:ab)?abc"), "ababc abc"), ElementsAre("ababc", " ", "abc"));
  EXPECT_THAT(split(RegexSplitter::create("é{2,3}é"), "éééééé"), ElementsAre("éééé", "éé"));
  EXPECT_THAT(split(RegexSplitter::create("(?=ab)a|b"), "aabb"), ElementsAre("a", "a", "b", "b"));
}

TEST(RegexSplitter, RefusesPatternsThatMatchNothing) {
  for (const std::string_view pattern : {"a*", "", "a|", "(?!a)", "(a)?"}) {
    const auto splitter = RegexSplitter::create(pattern);
    ASSERT_FALSE(splitter.has_value()) << pattern;
    EXPECT_EQ(splitter.error(), base::unimplemented("the pattern can match the empty string"));
  }
}

// Patterns of a hostile file, for which a text could take long: each is refused when it is read.
TEST(RegexSplitter, RefusesExplodingPatterns) {
  std::string options;
  for (int i = 0; i < 20; ++i) options += "a?";
  for (const std::string& pattern :
       {std::string("a*a*a*a*a*a*a*a*x"), std::string("a*b*x"), std::string("a*(?=b*)x"), std::string("a*b++x"),
        options + "x", std::string("a{0,100}a{0,100}x"), std::string("x(?:a+|b)?c*(?!d)")}) {
    const auto splitter = RegexSplitter::create(pattern);
    ASSERT_FALSE(splitter.has_value()) << pattern;
    EXPECT_EQ(splitter.error(),
              base::unimplemented("the pattern repeats so that matching may take more than linear time"));
  }
  for (const std::string_view pattern : {"a*b+c*d?", "a{0,100}x", "a?b?c?d", "a*bc*"}) {
    EXPECT_TRUE(RegexSplitter::create(pattern).has_value()) << pattern;
  }
}

// Runs of every kind of character, up to what a request's body can hold. There is no limit to fail at, and a quadratic
// algorithm would take hours.
TEST(RegexSplitter, CutsLongRunsOfEveryKindOfCharacter) {
  for (const std::string_view pattern :
       {R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
        R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
        R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
        R"(\s+(?!\S)|\s+)"}) {
    const auto splitter = RegexSplitter::create(pattern);
    ASSERT_TRUE(splitter.has_value()) << splitter.error().to_string();
    const auto expect_all = [&](std::string_view unit, std::size_t bytes) {
      std::string text;
      while (text.size() < bytes) text += unit;
      text += "x";
      std::size_t at = 0;
      for (const std::string_view piece : split(splitter, text)) {
        ASSERT_EQ(piece.data(), text.data() + at) << unit;
        at += piece.size();
      }
      EXPECT_EQ(at, text.size()) << unit;
    };
    for (const std::string_view unit :
         {"a",   "A",      "é", "ǅ",  "ʰ", "世", "〇", "한",   "7",      "½",          " ",  "\n",  "\r\n", " \n",
          "\n ", "\u0301", "'", "'s", ".", "€",  "😀", "\x01", "\u2028", "\U0010FFFF", "Aa", "A1 ", "世a"}) {
      expect_all(unit, 1 << 18);
    }
    for (const std::string_view unit : {"A", " "}) expect_all(unit, 16 << 20);
  }
}

TEST(RegexSplitter, ManyThreadsShareOne) {
  const auto splitter = RegexSplitter::create(R"(\p{L}+|\s+)");
  const auto expected = split(splitter, "one two  three 4 fünf");
  std::array<int, 4> wrong{};
  {
    std::vector<std::jthread> threads;
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (int i = 0; i < 2000; ++i) count += split(splitter, "one two  three 4 fünf") == expected ? 0 : 1;
      });
    }
  }
  EXPECT_THAT(wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace tessera::text
