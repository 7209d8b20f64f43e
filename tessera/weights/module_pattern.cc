#include "tessera/weights/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <bit>
#include <cctype>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/weights/safetensors.h"

namespace tessera::weights {

namespace {

// Patterns such as `.*self_attn.*` take a hundred steps on a name of 60 characters. PCRE2 does not say how many steps a
// match took: it is tried with a small limit first and then with larger ones, so that what is charged is not far from
// what was done.
constexpr std::uint32_t kFirstMatchSteps = 128;
constexpr std::uint32_t kMatchStepsGrowth = 4;
constexpr std::uint32_t kMatchStepsMax = 8'192;
constexpr std::uint32_t kDepthMax = 1'000;
constexpr std::uint32_t kHeapKibibytesMax = 1'024;

struct ContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// What is outside the subset, or an empty text.
std::string foreign_part(std::string_view pattern) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(pattern[i]);
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c < 0x20 || c > 0x7e) return fmt::format("byte 0x{:02x}", c);
    if (c == '\\') {
      const bool taken = std::ispunct(static_cast<unsigned char>(next)) != 0 ||
                         std::string_view("dDwWsSbB").find(next) != std::string_view::npos;
      if (next == '\0' || !taken) return fmt::format("\\{}", next == '\0' ? ' ' : next);
      ++i;
    } else if (c == '(' && (next == '?' || next == '*')) {
      const char kind = i + 2 < pattern.size() ? pattern[i + 2] : '\0';
      if (next == '*' || std::string_view(":=!").find(kind) == std::string_view::npos || kind == '\0') {
        return fmt::format("({}", next);
      }
      i += 2;
    } else if (c == '[' && (next == ':' || next == '[')) {
      return fmt::format("[{}", next);  // POSIX classes to one engine, characters to the other.
    } else if (c == '{' && next == ',') {
      return "{,";  // A quantifier to one engine, characters to the other.
    } else if (next == '+' && (c == '*' || c == '+' || c == '?' || c == '}')) {
      return fmt::format("{}+", static_cast<char>(c));  // Possessive; unknown to older Pythons.
    }
  }
  return {};
}

constexpr std::uint32_t kAllDigits = (1U << 10) - 1;

// The digits that the pattern can tell from others, a bit each. `[0-9]`, `\d`, `\w` and `.` take them all alike, and so
// does a range between characters that are no digits.
std::uint32_t find_digits(std::string_view pattern) {
  std::uint32_t digits = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (pattern.substr(i).starts_with("[0-9")) {
      i += 3;
    } else if (c >= '0' && c <= '9') {
      const bool may_be_range = (i > 0 && pattern[i - 1] == '-') || (i + 1 < pattern.size() && pattern[i + 1] == '-');
      digits |= may_be_range ? kAllDigits : 1U << (c - '0');
    }
  }
  return digits;
}

}  // namespace

std::string alike_name(std::string_view name, std::uint32_t digits) {
  if (digits == kAllDigits) return std::string(name);
  const char other = static_cast<char>('0' + std::countr_one(digits));
  std::string alike(name);
  for (char& c : alike) {
    if (c >= '0' && c <= '9' && ((digits >> (c - '0')) & 1U) == 0) c = other;
  }
  return alike;
}

base::Result<ModulePattern> ModulePattern::compile(std::string_view pattern) {
  if (std::ssize(pattern) > base::limits::kModulePatternBytesMax) {
    return base::failure(
        base::out_of_range(fmt::format("pattern {} has {} bytes, expected at most {}", quote_name(pattern),
                                       pattern.size(), base::limits::kModulePatternBytesMax)));
  }
  if (const std::string foreign = foreign_part(pattern); !foreign.empty()) {
    return base::failure(base::unimplemented(
        fmt::format("pattern {} holds {}, which is not supported", quote_name(pattern), quote_name(foreign))));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::uint32_t options = PCRE2_ANCHORED | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_UTF | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return base::failure(
        base::invalid_argument(fmt::format("pattern {} is malformed at byte {}: {}", quote_name(pattern), offset,
                                           reinterpret_cast<const char*>(message.data()))));
  }
  ModulePattern compiled;
  compiled.text_ = pattern;
  compiled.digits_ = find_digits(pattern);
  compiled.code_ = std::shared_ptr<const void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  return compiled;
}

base::Result<bool> ModulePattern::matches(std::string_view name, PatternBudget& budget) const {
  const std::unique_ptr<pcre2_match_context, ContextDeleter> context(pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(pcre2_match_data_create(1, nullptr));
  TESSERA_CHECK(context != nullptr && data != nullptr, "out of memory");
  pcre2_set_depth_limit(context.get(), kDepthMax);
  pcre2_set_heap_limit(context.get(), kHeapKibibytesMax);
  int found = PCRE2_ERROR_MATCHLIMIT;
  for (std::uint32_t steps = kFirstMatchSteps; found == PCRE2_ERROR_MATCHLIMIT && steps <= kMatchStepsMax;
       steps *= kMatchStepsGrowth) {
    if (!budget.spend(steps)) {
      return base::failure(base::out_of_range(
          fmt::format("the patterns take more than {} steps together on the model's names; the last was {} on {}",
                      base::limits::kModulePatternStepsMax, quote_name(text_), quote_name(name))));
    }
    pcre2_set_match_limit(context.get(), steps);
    found = pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(name.data()),
                        name.size(), 0, PCRE2_NO_UTF_CHECK, data.get(), context.get());
  }
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return base::failure(base::out_of_range(fmt::format("pattern {} takes too many steps on {} (PCRE2 error {})",
                                                      quote_name(text_), quote_name(name), found)));
}

}  // namespace tessera::weights
