#include "tessera/text/oniguruma.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr std::size_t kPatternBytesMax = 2048;
constexpr int kRepeatMax = 100;

constexpr std::string_view kPunctuation = R"(!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~)";

bool is_punctuation(char c) { return kPunctuation.find(c) != std::string_view::npos; }
bool is_letter(char32_t c) { return (c >= U'A' && c <= U'Z') || (c >= U'a' && c <= U'z'); }
bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || is_letter(static_cast<unsigned char>(c)); }

CodePointSet one(char32_t c) { return CodePointSet::range(c, c); }

// An ASCII character and all that folds to the same.
CodePointSet ignoring_case(char32_t c) {
  CodePointSet set = one(c);
  if (!is_letter(c)) return set;
  set = set.unite(one(c ^ 0x20U));
  if ((c | 0x20U) == U'k') set = set.unite(one(0x212A));  // KELVIN SIGN
  if ((c | 0x20U) == U's') set = set.unite(one(0x17F));   // LATIN SMALL LETTER LONG S
  return set;
}

// One pass over the pattern. Each function consumes what it is named for.
class Parser {
 public:
  explicit Parser(std::string_view pattern) : rest_(pattern) {}

  base::Result<Pattern> run() {
    TESSERA_ASSIGN_OR_RETURN(out_.choice, choice(Depth{0}, Case::kExact));
    if (!rest_.empty()) return base::failure(refusal("a ')' that closes nothing"));
    if (out_.choice.size() > Pattern::kAlternativesMax) {
      return base::failure(refusal(fmt::format("more than {} alternatives", Pattern::kAlternativesMax)));
    }
    TESSERA_RETURN_IF_ERROR(check_linear(out_));
    return std::move(out_);
  }

 private:
  using Node = Pattern::Node;
  enum class Case { kExact, kIgnored };
  struct Depth {
    int value;
  };
  static constexpr int kDepthMax = 16;

  static base::Status refusal(std::string_view what) {
    return base::unimplemented(fmt::format("the pattern uses {}, which is not supported", what));
  }

  bool take(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) return false;
    rest_.remove_prefix(prefix.size());
    return true;
  }

  bool next_is_one_of(std::string_view characters) const {
    return !rest_.empty() && characters.find(rest_.front()) != std::string_view::npos;
  }

  char32_t take_character() {
    const std::size_t length = next_utf8_unit(rest_).length;
    const char32_t c = utf8_code_point(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return c;
  }

  // Up to the end of the pattern or the ')' of the enclosing group, which is left.
  base::Result<Pattern::Choice> choice(Depth depth, Case letters) {
    Pattern::Choice alternatives(1);
    while (!rest_.empty() && rest_.front() != ')') {
      if (take("|")) {
        alternatives.emplace_back();
        continue;
      }
      Node node;
      if (rest_.front() == '(') {
        TESSERA_RETURN_IF_ERROR(group(depth, letters, node));
      } else {
        TESSERA_ASSIGN_OR_RETURN(const CodePointSet set, character(letters));
        TESSERA_ASSIGN_OR_RETURN(node.class_index, class_index(set));
        TESSERA_RETURN_IF_ERROR(quantifier(node));
      }
      alternatives.back().push_back(std::move(node));
    }
    return alternatives;
  }

  base::Result<std::uint8_t> class_index(const CodePointSet& set) {
    const auto known = std::ranges::find(out_.classes, set);
    const auto index = static_cast<std::size_t>(known - out_.classes.begin());
    if (known == out_.classes.end()) {
      if (index == Pattern::kClassesMax) {
        return base::failure(refusal(fmt::format("more than {} characters and classes", Pattern::kClassesMax)));
      }
      out_.classes.push_back(set);
    }
    return static_cast<std::uint8_t>(index);
  }

  base::Status group(Depth depth, Case letters, Node& node) {
    if (depth.value == kDepthMax) return refusal(fmt::format("groups nested deeper than {}", kDepthMax));
    if (letters == Case::kIgnored) return refusal("a group inside (?i:...)");
    take("(");
    node.kind = Pattern::Kind::kGroup;
    Case inside = Case::kExact;
    if (take("?:")) {
      // As an unnamed group, which captures nothing either.
    } else if (take("?i:")) {
      inside = Case::kIgnored;
    } else if (take("?=")) {
      node.kind = Pattern::Kind::kLookAhead;
    } else if (take("?!")) {
      node.kind = Pattern::Kind::kNegativeLookAhead;
    } else if (rest_.starts_with("?")) {
      return refusal(fmt::format("'({}'", rest_.substr(0, 2)));
    }
    TESSERA_ASSIGN_OR_RETURN(node.choice, choice(Depth{depth.value + 1}, inside));
    if (!take(")")) return base::invalid_argument("the pattern has a '(' that is not closed");
    if (next_is_one_of("*+?{")) {
      if (node.kind != Pattern::Kind::kGroup || !take("?")) return refusal("a quantifier other than '?' on a group");
      node.minimum = 0;
      if (next_is_one_of("*+?{")) return refusal("a second quantifier on a group");
    }
    return {};
  }

  // One character, class or property, outside [...].
  base::Result<CodePointSet> character(Case letters) {
    const char c = rest_.front();
    if (c == '\\') return escape(letters);
    if (c == '[') {
      if (letters == Case::kIgnored) return base::failure(refusal("a class inside (?i:...)"));
      return bracket_class();
    }
    if (next_is_one_of(".^$*+?{")) return base::failure(refusal(fmt::format("'{}' where a character is expected", c)));
    if (letters == Case::kExact) return one(take_character());
    if ((c & 0x80) != 0) return base::failure(refusal("a character beyond ASCII inside (?i:...)"));
    // Some pairs of letters fold to one character: ß and the ligatures.
    for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"}) {
      if (rest_.size() > 1 && (rest_[0] | 0x20) == pair[0] && (rest_[1] | 0x20) == pair[1]) {
        return base::failure(refusal(fmt::format("'{}' inside (?i:...)", pair)));
      }
    }
    return ignoring_case(take_character());
  }

  // After a backslash that is still there, outside [...].
  base::Result<CodePointSet> escape(Case letters) {
    if (letters == Case::kIgnored && rest_.size() > 1 && is_letter_or_digit(rest_[1])) {
      return base::failure(refusal("an escape inside (?i:...)"));
    }
    if (take("\\s")) return CodePointSet::white_space();
    if (take("\\S")) return CodePointSet::white_space().complement();
    if (take("\\p{")) return property();
    if (take("\\P{")) {
      TESSERA_ASSIGN_OR_RETURN(const CodePointSet set, property());
      return set.complement();
    }
    TESSERA_ASSIGN_OR_RETURN(const char32_t c, simple_escape());
    return one(c);
  }

  // \r, \n, \t or an escaped punctuation mark.
  base::Result<char32_t> simple_escape() {
    if (rest_.size() < 2) return base::failure(base::invalid_argument("the pattern ends in a backslash"));
    const char c = rest_[1];
    if (c != 'r' && c != 'n' && c != 't' && !is_punctuation(c)) {
      return base::failure(refusal(static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7F
                                       ? fmt::format("'\\{}'", c)
                                       : "a backslash before an unprintable character"));
    }
    rest_.remove_prefix(2);
    if (c == 'r') return U'\r';
    if (c == 'n') return U'\n';
    if (c == 't') return U'\t';
    return static_cast<char32_t>(c);
  }

  // After "\p{".
  base::Result<CodePointSet> property() {
    const std::size_t end = rest_.find('}');
    if (end == std::string_view::npos) return base::failure(base::invalid_argument("the pattern has an open '\\p{'"));
    const std::string_view name = rest_.substr(0, end);
    std::optional<CodePointSet> set = CodePointSet::property(name);
    if (!set.has_value()) return base::failure(refusal(fmt::format("the property '{}'", name)));
    rest_.remove_prefix(end + 1);
    return *std::move(set);
  }

  base::Result<CodePointSet> bracket_class() {
    take("[");
    const bool negated = take("^");
    if (rest_.starts_with("]")) return base::failure(refusal("an empty class"));
    CodePointSet set;
    // What came last, and whether it can be the lower end of a range: a single character that is no upper end itself.
    char32_t lower = 0;
    bool has_lower = false;
    while (!rest_.empty() && rest_.front() != ']') {
      if (rest_.starts_with("&&")) {
        TESSERA_ASSIGN_OR_RETURN(set, intersection(set));
        break;
      }
      if (rest_.front() == '[') return base::failure(refusal("'[' inside a class"));
      if (rest_.front() == '-') {
        take("-");
        if (rest_.starts_with("]")) {
          set = set.unite(one(U'-'));
          continue;
        }
        if (!has_lower) {
          return base::failure(refusal("'-' in a class that is neither between two characters nor last"));
        }
        if (rest_.starts_with("\\s") || rest_.starts_with("\\p") || next_is_one_of("-[")) {
          return base::failure(refusal("a range in a class that does not end in a character"));
        }
        if (rest_.empty()) break;
        TESSERA_ASSIGN_OR_RETURN(const char32_t upper, class_character());
        if (upper < lower) {
          return base::failure(base::invalid_argument("the pattern has a range whose end is below its beginning"));
        }
        set = set.unite(CodePointSet::range(lower, upper));
        has_lower = false;
      } else if (take("\\s")) {
        set = set.unite(CodePointSet::white_space());
        has_lower = false;
      } else if (take("\\p{")) {
        TESSERA_ASSIGN_OR_RETURN(const CodePointSet members, property());
        set = set.unite(members);
        has_lower = false;
      } else {
        TESSERA_ASSIGN_OR_RETURN(lower, class_character());
        set = set.unite(one(lower));
        has_lower = true;
      }
    }
    if (!take("]")) return base::failure(base::invalid_argument("the pattern has a '[' that is not closed"));
    return negated ? set.complement() : set;
  }

  // "&&[...]", after which the class must end.
  base::Result<CodePointSet> intersection(const CodePointSet& left) {
    take("&&");
    if (!rest_.starts_with("[")) return base::failure(refusal("'&&' in a class without a class after it"));
    // One level only: what stands in the inner class after another && is not looked for.
    if (left.edges().empty()) return base::failure(refusal("'&&' in a class without anything before it"));
    if (++intersections_ > 1) return base::failure(refusal("'&&' in a class inside a class"));
    TESSERA_ASSIGN_OR_RETURN(const CodePointSet right, bracket_class());
    --intersections_;
    if (!rest_.empty() && rest_.front() != ']') return base::failure(refusal("more in a class after '&&[...]'"));
    return left.intersect(right);
  }

  // One literal inside [...].
  base::Result<char32_t> class_character() {
    if (rest_.front() == '\\') return simple_escape();
    return take_character();
  }

  base::Status quantifier(Node& node) {
    if (rest_.starts_with("{")) return counted_quantifier(node);
    if (!next_is_one_of("*+?")) return {};
    const char c = rest_.front();
    rest_.remove_prefix(1);
    node.minimum = c == '+' ? 1 : 0;
    node.maximum = c == '?' ? 1 : Pattern::kUnbounded;
    if (take("?")) {
      node.greed = Pattern::Greed::kLazy;
    } else if (take("+")) {
      node.greed = Pattern::Greed::kPossessive;
    }
    return next_is_one_of("*+?{") ? refusal("a quantifier on a quantifier") : base::ok_status();
  }

  base::Status counted_quantifier(Node& node) {
    take("{");
    TESSERA_ASSIGN_OR_RETURN(node.minimum, repeat_count());
    node.maximum = node.minimum;
    if (take(",")) {
      node.maximum = Pattern::kUnbounded;
      if (!rest_.starts_with("}")) {
        TESSERA_ASSIGN_OR_RETURN(node.maximum, repeat_count());
        if (node.maximum < node.minimum) return refusal("a repeat count whose end is below its beginning");
      }
    }
    if (!take("}")) return refusal("a '{' that is not a repeat count");
    // In Oniguruma what follows would repeat the repetition.
    return next_is_one_of("*+?{") ? refusal("a quantifier on a repeat count") : base::ok_status();
  }

  base::Result<int> repeat_count() {
    int value = 0;
    std::size_t digits = 0;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      value = value * 10 + (rest_.front() - '0');
      rest_.remove_prefix(1);
      ++digits;
      if (value > kRepeatMax) return base::failure(refusal(fmt::format("a repeat count above {}", kRepeatMax)));
    }
    if (digits == 0) return base::failure(refusal("a '{' that is not a repeat count"));
    return value;
  }

  std::string_view rest_;
  Pattern out_;
  int intersections_ = 0;  // That are open.
};

}  // namespace

base::Result<Pattern> parse_oniguruma(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return base::failure(base::out_of_range(
        fmt::format("the pattern has {} bytes, expected at most {}", pattern.size(), kPatternBytesMax)));
  }
  if (!is_valid_utf8(pattern)) return base::failure(base::invalid_argument("the pattern is not valid UTF-8"));
  return Parser(pattern).run();
}

}  // namespace tessera::text
