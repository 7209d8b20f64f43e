#include "tessera/text/oniguruma.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "tessera/text/golden_lines.h"
#include "tessera/text/regex_splitter.h"
#include "tests/support/sanitized.h"

namespace tessera::text {
namespace {

std::string error(std::string_view pattern) {
  const auto translated = parse_oniguruma(pattern);
  return translated.has_value() ? "none" : translated.error().to_string();
}

std::string utf8(unsigned c) {
  std::string bytes;
  if (c < 0x80) return {static_cast<char>(c)};
  const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  bytes.push_back(static_cast<char>((0xF00 >> length) | (c >> (6 * (length - 1)))));
  for (int i = length - 2; i >= 0; --i) bytes.push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
  return bytes;
}

// Every property that patterns may use, for every code point, against what the library counts in.
TEST(Oniguruma, PropertiesHoldForTheLibrarysCodePoints) {
  std::ifstream file(goldens_dir() / "tokenizer" / "character_classes.txt");
  std::size_t properties = 0;
  for (std::string line; std::getline(file, line); ++properties) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<bool> expected(0x110000);
    for (std::string range; words >> range;) {
      const std::size_t dash = range.find('-');
      const unsigned long first = std::stoul(range.substr(0, dash), nullptr, 16);
      const unsigned long last = std::stoul(range.substr(dash + 1), nullptr, 16);
      for (unsigned long c = first; c <= last; ++c) expected.at(c) = true;
    }
    const base::Result<RegexSplitter> splitter =
        name == "digits" ? RegexSplitter::create_digits(DigitGrouping::kEach) : RegexSplitter::create(name);
    ASSERT_TRUE(splitter.has_value()) << name << ": " << splitter.error().to_string();
    std::vector<std::string_view> pieces;
    std::size_t differences = 0;
    for (unsigned c = 0; c < 0x110000; c += tests::kSanitized ? 7 : 1) {
      if (c >= 0xD800 && c < 0xE000) continue;
      // Twice the character: two pieces if it matches, one if not.
      const std::string twice = utf8(c) + utf8(c);
      pieces.clear();
      splitter->split(twice, pieces);
      if ((pieces.size() == 2) != expected[c] && ++differences < 5) {
        ADD_FAILURE() << name << " at " << std::hex << c << ": expected " << expected[c];
      }
    }
    EXPECT_EQ(differences, 0u) << name;
  }
  EXPECT_EQ(properties, 13u);
}

TEST(Oniguruma, RefusesByNameWhatTheTwoLanguagesReadDifferently) {
  const auto uses = [](std::string_view what) {
    return "unimplemented: the pattern uses " + std::string(what) + ", which is not supported";
  };
  EXPECT_EQ(error(R"(\h+)"), uses(R"('\h')"));
  EXPECT_EQ(error(R"(\w+)"), uses(R"('\w')"));
  EXPECT_EQ(error(R"(\d+)"), uses(R"('\d')"));
  EXPECT_EQ(error(R"(a\b)"), uses(R"('\b')"));
  EXPECT_EQ(error(R"(\x41)"), uses(R"('\x')"));
  EXPECT_EQ(error("\\\n"), uses("a backslash before an unprintable character"));
  EXPECT_EQ(error("a.b"), uses("'.' where a character is expected"));
  EXPECT_EQ(error("^a"), uses("'^' where a character is expected"));
  EXPECT_EQ(error("a$"), uses("'$' where a character is expected"));
  EXPECT_EQ(error("*a"), uses("'*' where a character is expected"));
  EXPECT_EQ(error("(?<=a)b"), uses("'(?<'"));
  EXPECT_EQ(error("(?<name>b)"), uses("'(?<'"));
  EXPECT_EQ(error("(?>a)"), uses("'(?>'"));
  EXPECT_EQ(error("(?i)a"), uses("'(?i'"));
  EXPECT_EQ(error("(a)*"), uses("a quantifier other than '?' on a group"));
  EXPECT_EQ(error("(a){2}"), uses("a quantifier other than '?' on a group"));
  EXPECT_EQ(error("(?!a)?"), uses("a quantifier other than '?' on a group"));
  EXPECT_EQ(error("(a)??"), uses("a second quantifier on a group"));
  EXPECT_EQ(error("a{2}+"), uses("a quantifier on a repeat count"));
  EXPECT_EQ(error("a{2}?"), uses("a quantifier on a repeat count"));
  EXPECT_EQ(error("a++?"), uses("a quantifier on a quantifier"));
  EXPECT_EQ(error("a{,3}"), uses("a '{' that is not a repeat count"));
  EXPECT_EQ(error("a{b}"), uses("a '{' that is not a repeat count"));
  EXPECT_EQ(error("a{1"), uses("a '{' that is not a repeat count"));
  EXPECT_EQ(error("a{1,101}"), uses("a repeat count above 100"));
  EXPECT_EQ(error("a{99999999999999999999}"), uses("a repeat count above 100"));
  EXPECT_EQ(error("a{3,2}"), uses("a repeat count whose end is below its beginning"));
  EXPECT_EQ(error(R"([\p{Lu}&&\p{Han}])"), uses("'&&' in a class without a class after it"));
  EXPECT_EQ(error(R"([&&[a]])"), uses("'&&' in a class without anything before it"));
  EXPECT_EQ(error(R"([ab&&[a&&[a]]])"), uses("'&&' in a class inside a class"));
  EXPECT_EQ(error(R"([ab&&[a]b])"), uses("more in a class after '&&[...]'"));
  EXPECT_EQ(error("(?i:'FI)"), uses("'fi' inside (?i:...)"));
  EXPECT_EQ(error("[a[b]]"), uses("'[' inside a class"));
  EXPECT_EQ(error("[[:alpha:]]"), uses("'[' inside a class"));
  EXPECT_EQ(error("[]a]"), uses("an empty class"));
  EXPECT_EQ(error("[-a]"), uses("'-' in a class that is neither between two characters nor last"));
  EXPECT_EQ(error("[a-c-e]"), uses("'-' in a class that is neither between two characters nor last"));
  EXPECT_EQ(error(R"([\s-a])"), uses("'-' in a class that is neither between two characters nor last"));
  EXPECT_EQ(error(R"([a-\s])"), uses("a range in a class that does not end in a character"));
  EXPECT_EQ(error(R"([\S])"), uses(R"('\S')"));
  EXPECT_EQ(error(R"([\P{L}])"), uses(R"('\P')"));
  EXPECT_EQ(error(R"(\p{Greek})"), uses("the property 'Greek'"));
  EXPECT_EQ(error(R"(\p{^L})"), uses("the property '^L'"));
  EXPECT_EQ(error(R"((?i:[a]))"), uses("a class inside (?i:...)"));
  EXPECT_EQ(error(R"((?i:\p{Lu}))"), uses("an escape inside (?i:...)"));
  EXPECT_EQ(error(R"((?i:(a)))"), uses("a group inside (?i:...)"));
  EXPECT_EQ(error("(?i:ß)"), uses("a character beyond ASCII inside (?i:...)"));
  EXPECT_EQ(error(std::string(17, '(') + std::string(17, ')')), uses("groups nested deeper than 16"));
  EXPECT_EQ(error("a)"), uses("a ')' that closes nothing"));
}

// Each of these would be "[...]" of the characters after "=", on code points that tell them apart.
TEST(Oniguruma, IntersectsClasses) {
  const auto members = [](std::string_view pattern) {
    const auto splitter = RegexSplitter::create(pattern);
    EXPECT_TRUE(splitter.has_value()) << pattern;
    std::string found;
    for (const std::string_view c : {"a", "B", "1", "世", "々", "〇", "́", "-", "&"}) {
      std::vector<std::string_view> pieces;
      splitter->split(std::string(c) + std::string(c), pieces);
      if (pieces.size() == 2) found += c;
    }
    return found;
  };
  EXPECT_EQ(members(R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])"), "B́");
  EXPECT_EQ(members(R"([\p{L}\p{N}&&[\p{Han}1]])"), "1世々〇");
  EXPECT_EQ(members(R"([^\p{L}&&[\p{Han}]])"), "aB1〇́-&");
  EXPECT_EQ(members("[a&-]"), "a-&");
}

TEST(Oniguruma, RefusesBrokenPatterns) {
  EXPECT_EQ(error("[z-a]"), "invalid_argument: the pattern has a range whose end is below its beginning");
  EXPECT_EQ(error("\xFF"), "invalid_argument: the pattern is not valid UTF-8");
  EXPECT_EQ(error("(a"), "invalid_argument: the pattern has a '(' that is not closed");
  EXPECT_EQ(error("[a"), "invalid_argument: the pattern has a '[' that is not closed");
  EXPECT_EQ(error("[a-"), "invalid_argument: the pattern has a '[' that is not closed");
  EXPECT_EQ(error("[a\\"), "invalid_argument: the pattern ends in a backslash");
  EXPECT_EQ(error("a\\"), "invalid_argument: the pattern ends in a backslash");
  EXPECT_EQ(error("\\p{L"), "invalid_argument: the pattern has an open '\\p{'");
  EXPECT_EQ(error(std::string(2049, 'a')), "out_of_range: the pattern has 2049 bytes, expected at most 2048");
  EXPECT_EQ(error(std::string(2048, 'a')), "none");
}

}  // namespace
}  // namespace tessera::text
