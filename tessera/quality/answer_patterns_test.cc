// The judge of every case is a golden that lm-evaluation-harness, or Python's re with the published patterns, wrote
// (tools/oracles/make_evaluation_goldens.py).
#include "tessera/quality/answer_patterns.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/quality/asking.h"
#include "tessera/quality/choice_scores.h"
#include "tessera/text/golden_lines.h"
#include "tessera/text/utf8.h"

namespace tessera::quality {
namespace {

using text::golden_lines;
using text::golden_string;

std::string letter_of(std::optional<char> letter, std::string_view none) {
  return letter.has_value() ? std::string(1, *letter) : std::string(none);
}

TEST(AnswerPatterns, NumbersAreTheHarness) {
  int strict_found = 0;
  int right = 0;
  for (const auto& line : golden_lines("evaluation/numbers.jsonl.gz")) {
    const std::string text = golden_string(line, "text");
    const std::string strict = strict_number(text);
    const std::string flexible = flexible_number(text);
    EXPECT_EQ(strict, golden_string(line, "strict")) << text;
    EXPECT_EQ(flexible, golden_string(line, "flexible")) << text;
    const std::string expected = golden_string(line, "right");
    EXPECT_EQ(same_number(strict, expected), line.at("strict_right").as_bool()) << text << " against " << expected;
    EXPECT_EQ(same_number(flexible, expected), line.at("flexible_right").as_bool()) << text << " against " << expected;
    strict_found += strict != kNoAnswer ? 1 : 0;
    right += same_number(flexible, expected) ? 1 : 0;
  }
  // The goldens hold enough of both kinds to tell a rule from another.
  EXPECT_GT(strict_found, 100);
  EXPECT_GT(right, 150);
}

TEST(AnswerPatterns, LettersAreTheHarnessAndTheAuthors) {
  int exact_found = 0;
  int only_flexible = 0;
  for (const auto& line : golden_lines("evaluation/letters.jsonl.gz")) {
    const std::string text = golden_string(line, "text");
    EXPECT_EQ(letter_of(stated_letter(text), kNoAnswer), golden_string(line, "exact")) << text;
    EXPECT_EQ(letter_of(any_letter(text), ""), golden_string(line, "flexible")) << text;
    exact_found += stated_letter(text).has_value() ? 1 : 0;
    only_flexible += !stated_letter(text).has_value() && any_letter(text).has_value() ? 1 : 0;
  }
  EXPECT_GT(exact_found, 100);
  EXPECT_GT(only_flexible, 100);
}

TEST(AnswerPatterns, BytesThatAreNoTextHarmNothing) {
  for (const std::string& text :
       {std::string("\xff"
                    "A\xff"),
        std::string("answer:\xc2"), std::string("\x80"), std::string("B\xe2\x82"), std::string("####\0 1", 7)}) {
    any_letter(text);
    EXPECT_EQ(strict_number(text), kNoAnswer);
    EXPECT_FALSE(stated_letter(text).has_value());
  }
  EXPECT_EQ(any_letter("\xff"
                       "A\xff"),
            'A');
}

TEST(ChoiceScores, AreTheHarness) {
  int differ = 0;
  for (const auto& line : golden_lines("evaluation/choices.jsonl.gz")) {
    std::vector<std::string> choices;
    choices.reserve(line.at("choices").as_array().size());
    for (const auto& choice : line.at("choices").as_array()) choices.emplace_back(choice.as_string());
    std::vector<double> logprobs;
    logprobs.reserve(choices.size());
    for (const auto& logprob : line.at("logprobs").as_array()) logprobs.push_back(logprob.to_number<double>());
    const auto right = static_cast<std::size_t>(line.at("right").as_int64());
    EXPECT_EQ(likeliest(logprobs) == right ? 1.0 : 0.0, line.at("acc").to_number<double>()) << line;
    EXPECT_EQ(likeliest_by_length(logprobs, choices) == right ? 1.0 : 0.0, line.at("acc_norm").to_number<double>())
        << line;
    differ += likeliest(logprobs) != likeliest_by_length(logprobs, choices) ? 1 : 0;
  }
  EXPECT_GT(differ, 30);
}

TEST(Shown, KeepsBothEndsOfWhatIsTooLong) {
  EXPECT_EQ(shown("short"), "short");
  EXPECT_EQ(shown(std::string(kShownBytes, 'x')).size(), kShownBytes);
  std::string text = "begin";
  for (int i = 0; i < 400; ++i) text += "\u6c34";
  text += "end";
  const std::string cut = shown(text);
  EXPECT_LE(cut.size(), kShownBytes);
  EXPECT_TRUE(cut.starts_with("begin\u6c34"));
  EXPECT_TRUE(
      cut.ends_with("\u6c34"
                    "end"));
  EXPECT_TRUE(text::is_valid_utf8(cut));
}

}  // namespace
}  // namespace tessera::quality
