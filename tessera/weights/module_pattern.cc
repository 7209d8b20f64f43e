#include "tessera/weights/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cctype>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/weights/safetensors.h"

namespace tessera::weights {

namespace {

// Patterns such as `.*self_attn.*` take a few hundred steps on a name of 60 characters.
constexpr std::uint32_t kMatchStepsMax = 20'000;
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

}  // namespace

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
  compiled.code_ = std::shared_ptr<const void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  return compiled;
}

base::Result<bool> ModulePattern::matches(std::string_view name) const {
  const std::unique_ptr<pcre2_match_context, ContextDeleter> context(pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(pcre2_match_data_create(1, nullptr));
  TESSERA_CHECK(context != nullptr && data != nullptr, "out of memory");
  pcre2_set_match_limit(context.get(), kMatchStepsMax);
  pcre2_set_depth_limit(context.get(), kDepthMax);
  pcre2_set_heap_limit(context.get(), kHeapKibibytesMax);
  const int found = pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                name.size(), 0, PCRE2_NO_UTF_CHECK, data.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return base::failure(base::out_of_range(fmt::format("pattern {} takes too many steps on {} (PCRE2 error {})",
                                                      quote_name(text_), quote_name(name), found)));
}

}  // namespace tessera::weights
