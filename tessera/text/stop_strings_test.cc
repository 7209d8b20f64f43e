#include "tessera/text/stop_strings.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "tessera/base/limits.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::size_t> matched;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

StopStringMatcher matcher(const std::vector<std::string>& stops) {
  auto created = StopStringMatcher::create(stops);
  EXPECT_TRUE(created.has_value());
  return std::move(*created);
}

// The definition: the match that ends first, the longest of those; what is before it.
Outcome whole(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      if (std::string_view(text).substr(0, end).ends_with(stops[i]) &&
          (!best || stops[i].size() > stops[*best].size())) {
        best = i;
      }
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

Outcome in_pieces(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStringMatcher stop = matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += stop.push(piece);
  outcome.text += stop.flush();
  outcome.matched = stop.matched();
  return outcome;
}

TEST(StopStringMatcher, HoldsBackWhatCouldBeginAStopString) {
  StopStringMatcher stop = matcher({"\n\nUser:"});
  EXPECT_EQ(stop.push("Paris.\n"), "Paris.");
  EXPECT_EQ(stop.push("\n"), "");
  EXPECT_EQ(stop.push("\nUs"), "\n") << "three line ends: the match can begin only with the second";
  EXPECT_EQ(stop.push("ually"), "\n\nUsually");
  EXPECT_EQ(stop.push(" so.\n\nUser"), " so.");
  EXPECT_EQ(stop.matched(), std::nullopt);
  EXPECT_EQ(stop.push(": and more"), "");
  EXPECT_EQ(stop.matched(), 0u);
  EXPECT_EQ(stop.push("x"), "");
  EXPECT_EQ(stop.flush(), "");
}

TEST(StopStringMatcher, GivesBackWhatItHeldWhenTheTextEnds) {
  StopStringMatcher stop = matcher({"END", "END OF"});
  EXPECT_EQ(stop.push("the EN"), "the ");
  EXPECT_EQ(stop.flush(), "EN");
  EXPECT_EQ(stop.matched(), std::nullopt);
}

TEST(StopStringMatcher, TheFirstToBeCompleteWins) {
  EXPECT_EQ(in_pieces({"abcd", "bc"}, {"xabcd"}), (Outcome{"xa", 1}));
  EXPECT_EQ(in_pieces({"c", "abc", "bc"}, {"xa", "bc"}), (Outcome{"x", 1}));
  EXPECT_EQ(in_pieces({"same", "same"}, {"the same"}), (Outcome{"the ", 0}));
}

TEST(StopStringMatcher, WithoutStopStringsEverythingPasses) {
  StopStringMatcher stop = matcher({});
  EXPECT_EQ(stop.push("anything"), "anything");
  EXPECT_EQ(stop.flush(), "");
}

TEST(StopStringMatcher, EmitsWholeCharacters) {
  // All of these begin with the same two bytes.
  const std::vector<std::string> stops = {"世丗"};
  StopStringMatcher stop = matcher(stops);
  std::string out;
  for (const std::string piece : {"丕", "世", "世", "丏", "世"}) {
    const std::string part = stop.push(piece);
    EXPECT_TRUE(is_valid_utf8(part));
    out += part;
  }
  EXPECT_EQ(out + stop.flush(), "丕世世丏世");
}

TEST(StopStringMatcher, EqualsTheDefinitionHoweverTheTextIsCut) {
  EXPECT_TRUE(rc::check("pieces equal the whole", [] {
    const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
    const auto stops = *rc::gen::container<std::vector<std::string>>(*rc::gen::inRange<std::size_t>(0, 5),
                                                                     rc::gen::resize(6, rc::gen::nonEmpty(letters)));
    const auto pieces = *rc::gen::container<std::vector<std::string>>(letters);
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    const Outcome expected = whole(stops, text);
    RC_ASSERT(in_pieces(stops, pieces) == expected);
    RC_ASSERT(in_pieces(stops, {text}) == expected);
    // What is sent early is never taken back: each prefix of the stream is a prefix of the result.
    StopStringMatcher stop = matcher(stops);
    std::string sent;
    for (const std::string& piece : pieces) {
      sent += stop.push(piece);
      RC_ASSERT(expected.text.starts_with(sent));
    }
  }));
}

TEST(StopStringMatcher, HoldsBackNoMoreThanItMust) {
  EXPECT_TRUE(rc::check("held text begins a stop string", [] {
    const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b'));
    const std::vector<std::string> stops = {*rc::gen::nonEmpty(letters)};
    const auto text = *letters;
    StopStringMatcher stop = matcher(stops);
    const std::string sent = stop.push(text);
    if (stop.matched()) return;
    RC_ASSERT(stops[0].starts_with(text.substr(sent.size())));
  }));
}

TEST(StopStringMatcher, RefusesWhatIsOutsideTheLimits) {
  const auto message = [](std::vector<std::string> stops) {
    const auto created = StopStringMatcher::create(stops);
    return created.has_value() ? "none" : created.error().to_string();
  };
  EXPECT_EQ(message({"a", ""}), "invalid_argument: stop[1]: is empty");
  EXPECT_EQ(message(std::vector<std::string>(17, "a")), "out_of_range: stop: 17 strings, expected at most 16");
  EXPECT_EQ(message({std::string(257, 'a')}), "out_of_range: stop[0]: 257 bytes, expected at most 256");
  EXPECT_EQ(message({"\xFF"}), "invalid_argument: stop[0]: is not valid UTF-8");
  EXPECT_EQ(message(std::vector<std::string>(16, std::string(256, 'a'))), "none");
}

}  // namespace
}  // namespace tessera::text
