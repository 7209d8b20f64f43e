#include "tessera/text/oniguruma.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

namespace tessera::text {
namespace {

constexpr std::size_t kPatternBytesMax = 2048;
constexpr int kRepeatMax = 100;

// The White_Space characters, as members of a class.
constexpr std::string_view kWhiteSpace =
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

// What Unicode 15 and 16 added to each property, as members of a class: the difference between PCRE2 10.42 (Unicode 14)
// and Oniguruma as in tokenizers 0.23, found by asking both about every code point. No property lost a character.
// A PCRE2 that knows them already is not disturbed.
constexpr std::string_view kAddedLetters =
    "\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}"
    "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}"
    "\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}"
    "\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}"
    "\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}"
    "\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}"
    "\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";
constexpr std::string_view kAddedUppercaseLetters =
    "\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}";
constexpr std::string_view kAddedLowercaseLetters =
    "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}";
constexpr std::string_view kAddedModifierLetters =
    "\\x{10d4e}\\x{10d6f}\\x{16d40}-\\x{16d42}\\x{16d6b}-\\x{16d6c}\\x{1e030}-\\x{1e06d}\\x{1e4eb}";
constexpr std::string_view kAddedOtherLetters =
    "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4d}\\x{10d4f}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}"
    "\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}"
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d43}-\\x{16d6a}\\x{18cff}"
    "\\x{1b132}\\x{1b155}\\x{1e4d0}-\\x{1e4ea}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}"
    "\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";
constexpr std::string_view kAddedMarks =
    "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}\\x{113b8}-\\x{113c0}"
    "\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}\\x{113d2}\\x{113e1}-\\x{113e2}"
    "\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}"
    "\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}";
constexpr std::string_view kAddedNumbers =
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}"
    "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}";
constexpr std::string_view kAddedPunctuation =
    "\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{10d6e}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}"
    "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}";
constexpr std::string_view kAddedSymbols =
    "\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}\\x{10d8e}-\\x{10d8f}"
    "\\x{1cc00}-\\x{1ccef}\\x{1cd00}-\\x{1ceb3}\\x{1f6dc}\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}"
    "\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}"
    "\\x{1fa8f}\\x{1faad}-\\x{1faaf}\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}"
    "\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}\\x{1fbcb}-\\x{1fbef}";
constexpr std::string_view kAddedHan = "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}";
// The library's Digits asks Rust instead, whose Unicode is newer.
constexpr std::string_view kAddedNumbersOfUnicode17 = "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}";

struct Property {
  std::string_view name;
  std::string_view members;
  std::string_view added;
};

constexpr std::array kProperties{
    Property{"L", "\\p{L}", kAddedLetters},
    Property{"Lu", "\\p{Lu}", kAddedUppercaseLetters},
    Property{"Ll", "\\p{Ll}", kAddedLowercaseLetters},
    Property{"Lm", "\\p{Lm}", kAddedModifierLetters},
    Property{"Lt", "\\p{Lt}", ""},
    Property{"Lo", "\\p{Lo}", kAddedOtherLetters},
    Property{"M", "\\p{M}", kAddedMarks},
    Property{"N", "\\p{N}", kAddedNumbers},
    Property{"P", "\\p{P}", kAddedPunctuation},
    Property{"S", "\\p{S}", kAddedSymbols},
    Property{"Han", "\\p{sc:Han}", kAddedHan},
};

constexpr std::string_view kPunctuation = R"(!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~)";

bool is_punctuation(char c) { return kPunctuation.find(c) != std::string_view::npos; }
bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

// One pass over the pattern. Each function consumes what it is named for and appends its translation.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  base::Result<std::string> run() {
    TESSERA_RETURN_IF_ERROR(alternatives(Depth{0}, Case::kExact));
    if (!rest_.empty()) return base::failure(refusal("a ')' that closes nothing"));
    return std::move(out_);
  }

 private:
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

  char take_char() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  // Up to the end of the pattern or the ')' of the enclosing group, which is left.
  base::Status alternatives(Depth depth, Case letters) {
    while (!rest_.empty() && rest_.front() != ')') {
      if (take("|")) {
        out_ += '|';
      } else if (rest_.front() == '(') {
        TESSERA_RETURN_IF_ERROR(group(depth, letters));
      } else {
        TESSERA_RETURN_IF_ERROR(character(letters));
        TESSERA_RETURN_IF_ERROR(quantifier());
      }
    }
    return {};
  }

  base::Status group(Depth depth, Case letters) {
    if (depth.value == kDepthMax) return refusal(fmt::format("groups nested deeper than {}", kDepthMax));
    if (letters == Case::kIgnored) return refusal("a group inside (?i:...)");
    take("(");
    enum class Kind { kPlain, kIgnoreCase, kLook } kind = Kind::kPlain;
    if (take("?:")) {
      out_ += "(?:";
    } else if (take("?i:")) {
      out_ += "(?i:";
      kind = Kind::kIgnoreCase;
    } else if (take("?=")) {
      out_ += "(?=";
      kind = Kind::kLook;
    } else if (take("?!")) {
      out_ += "(?!";
      kind = Kind::kLook;
    } else if (rest_.starts_with("?")) {
      return refusal(fmt::format("'({}'", rest_.substr(0, 2)));
    } else {
      out_ += "(?:";
    }
    const Case inside = kind == Kind::kIgnoreCase ? Case::kIgnored : Case::kExact;
    TESSERA_RETURN_IF_ERROR(alternatives(Depth{depth.value + 1}, inside));
    if (!take(")")) return base::invalid_argument("the pattern has a '(' that is not closed");
    out_ += ')';
    if (!rest_.empty() && std::string_view("*+?{").find(rest_.front()) != std::string_view::npos) {
      if (kind == Kind::kLook || !take("?")) return refusal("a quantifier other than '?' on a group");
      out_ += '?';
      if (rest_.starts_with("?") || rest_.starts_with("+") || rest_.starts_with("*") || rest_.starts_with("{")) {
        return refusal("a second quantifier on a group");
      }
    }
    return {};
  }

  // One character, class or property, outside [...].
  base::Status character(Case letters) {
    const char c = rest_.front();
    if (c == '\\') return escape(letters);
    if (c == '[') {
      if (letters == Case::kIgnored) return refusal("a class inside (?i:...)");
      return bracket_class();
    }
    if (std::string_view(".^$*+?{").find(c) != std::string_view::npos) {
      return refusal(fmt::format("'{}' where a character is expected", c));
    }
    if (letters == Case::kIgnored && (c & 0x80) != 0) return refusal("a character beyond ASCII inside (?i:...)");
    take_char();
    if (is_punctuation(c)) out_ += '\\';
    out_ += c;
    // The rest of a character of several bytes, so that a quantifier applies to all of it.
    while (!rest_.empty() && (rest_.front() & 0xC0) == 0x80) out_ += take_char();
    return {};
  }

  // After a backslash that is still there, outside [...].
  base::Status escape(Case letters) {
    if (letters == Case::kIgnored && rest_.size() > 1 && is_letter_or_digit(rest_[1])) {
      return refusal("an escape inside (?i:...)");
    }
    if (take("\\s")) {
      out_ += fmt::format("[{}]", kWhiteSpace);
    } else if (take("\\S")) {
      out_ += fmt::format("[^{}]", kWhiteSpace);
    } else if (rest_.starts_with("\\p{")) {
      TESSERA_ASSIGN_OR_RETURN(const std::string members, property("\\p{"));
      out_ += fmt::format("[{}]", members);
    } else if (rest_.starts_with("\\P{")) {
      TESSERA_ASSIGN_OR_RETURN(const std::string members, property("\\P{"));
      out_ += fmt::format("[^{}]", members);
    } else {
      return simple_escape();
    }
    return {};
  }

  // \r, \n, \t or an escaped punctuation mark.
  base::Status simple_escape() {
    if (rest_.size() < 2) return base::invalid_argument("the pattern ends in a backslash");
    const char c = rest_[1];
    if (c != 'r' && c != 'n' && c != 't' && !is_punctuation(c)) {
      return refusal(static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7F
                         ? fmt::format("'\\{}'", c)
                         : "a backslash before an unprintable character");
    }
    out_ += rest_.substr(0, 2);
    rest_.remove_prefix(2);
    return {};
  }

  base::Result<std::string> property(std::string_view opening) {
    take(opening);
    const std::size_t end = rest_.find('}');
    if (end == std::string_view::npos) return base::failure(base::invalid_argument("the pattern has an open '\\p{'"));
    const std::string_view name = rest_.substr(0, end);
    for (const Property& known : kProperties) {
      if (known.name != name) continue;
      rest_.remove_prefix(end + 1);
      return fmt::format("{}{}", known.members, known.added);
    }
    return base::failure(refusal(fmt::format("the property '{}'", name)));
  }

  base::Status bracket_class() {
    take("[");
    out_ += take("^") ? "[^" : "[";
    if (rest_.starts_with("]")) return refusal("an empty class");
    // Whether what came last can be the lower end of a range: a single character that is not an upper end itself.
    bool can_begin_range = false;
    while (!rest_.empty() && rest_.front() != ']') {
      if (rest_.starts_with("&&")) return refusal("'&&' in a class");
      if (rest_.front() == '[') return refusal("'[' inside a class");
      if (rest_.front() == '-') {
        take("-");
        if (rest_.starts_with("]")) {
          out_ += "\\-";
          continue;
        }
        if (!can_begin_range) return refusal("'-' in a class that is neither between two characters nor last");
        out_ += '-';
        if (rest_.starts_with("\\s") || rest_.starts_with("\\p") || rest_.starts_with("-") || rest_.starts_with("[")) {
          return refusal("a range in a class that does not end in a character");
        }
        if (rest_.empty()) break;
        TESSERA_RETURN_IF_ERROR(class_character());
        can_begin_range = false;
      } else if (take("\\s")) {
        out_ += kWhiteSpace;
        can_begin_range = false;
      } else if (rest_.starts_with("\\p{")) {
        TESSERA_ASSIGN_OR_RETURN(const std::string members, property("\\p{"));
        out_ += members;
        can_begin_range = false;
      } else {
        TESSERA_RETURN_IF_ERROR(class_character());
        can_begin_range = true;
      }
    }
    if (!take("]")) return base::invalid_argument("the pattern has a '[' that is not closed");
    out_ += ']';
    return {};
  }

  // One literal inside [...].
  base::Status class_character() {
    if (rest_.front() == '\\') return simple_escape();
    const char c = take_char();
    if (is_punctuation(c)) out_ += '\\';
    out_ += c;
    while (!rest_.empty() && (rest_.front() & 0xC0) == 0x80) out_ += take_char();
    return {};
  }

  base::Status quantifier() {
    if (rest_.starts_with("{")) return counted_quantifier();
    if (rest_.empty() || std::string_view("*+?").find(rest_.front()) == std::string_view::npos) return {};
    out_ += take_char();
    if (rest_.starts_with("?") || rest_.starts_with("+")) out_ += take_char();
    if (!rest_.empty() && std::string_view("*+?{").find(rest_.front()) != std::string_view::npos) {
      return refusal("a quantifier on a quantifier");
    }
    return {};
  }

  base::Status counted_quantifier() {
    take("{");
    TESSERA_ASSIGN_OR_RETURN(const int minimum, repeat_count());
    out_ += fmt::format("{{{}", minimum);
    if (take(",")) {
      out_ += ',';
      if (!rest_.starts_with("}")) {
        TESSERA_ASSIGN_OR_RETURN(const int maximum, repeat_count());
        if (maximum < minimum) return refusal("a repeat count whose end is below its beginning");
        out_ += fmt::format("{}", maximum);
      }
    }
    if (!take("}")) return refusal("a '{' that is not a repeat count");
    out_ += '}';
    // Here the two languages part: what follows would be lazy or possessive in one and a repetition in the other.
    if (!rest_.empty() && std::string_view("*+?{").find(rest_.front()) != std::string_view::npos) {
      return refusal("a quantifier on a repeat count");
    }
    return {};
  }

  base::Result<int> repeat_count() {
    int value = 0;
    std::size_t digits = 0;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      value = value * 10 + (take_char() - '0');
      ++digits;
      if (value > kRepeatMax) return base::failure(refusal(fmt::format("a repeat count above {}", kRepeatMax)));
    }
    if (digits == 0) return base::failure(refusal("a '{' that is not a repeat count"));
    return value;
  }

  std::string_view rest_;
  std::string out_;
};

}  // namespace

base::Result<std::string> translate_oniguruma(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return base::failure(base::out_of_range(
        fmt::format("the pattern has {} bytes, expected at most {}", pattern.size(), kPatternBytesMax)));
  }
  return Translator(pattern).run();
}

std::string numeric_class() { return fmt::format("[\\p{{N}}{}{}]", kAddedNumbers, kAddedNumbersOfUnicode17); }

}  // namespace tessera::text
