#include "tessera/text/regex_splitter.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tessera/base/check.h"
#include "tessera/text/oniguruma.h"

namespace tessera::text {

struct RegexSplitter::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code;
};

struct RegexSplitter::Scratch::Buffers {
  // One pair of offsets: the patterns capture nothing.
  Buffers() : match(pcre2_match_data_create(1, nullptr)) { TESSERA_CHECK(match != nullptr, "out of memory"); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() { pcre2_match_data_free(match); }
  pcre2_match_data* match;
};

RegexSplitter::Scratch::Scratch() : buffers_(std::make_unique<Buffers>()) {}
RegexSplitter::Scratch::~Scratch() = default;

RegexSplitter::RegexSplitter(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

base::Result<RegexSplitter> RegexSplitter::create(std::string_view oniguruma_pattern) {
  TESSERA_ASSIGN_OR_RETURN(const std::string pattern, translate_oniguruma(oniguruma_pattern));
  return compile(pattern);
}

base::Result<RegexSplitter> RegexSplitter::create_digits(DigitGrouping grouping) {
  return compile(numeric_class() + (grouping == DigitGrouping::kRuns ? "+" : ""));
}

base::Result<RegexSplitter> RegexSplitter::compile(std::string_view pcre2_pattern) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2_pattern.data()), pcre2_pattern.size(),
                                       PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr);
  if (compiled == nullptr) {
    std::array<PCRE2_UCHAR, 128> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    return base::failure(base::invalid_argument(
        fmt::format("the pattern does not compile: {}", reinterpret_cast<const char*>(text.data()))));
  }
  auto code = std::make_unique<Code>(compiled);
  std::uint32_t matches_empty = 0;
  TESSERA_CHECK(pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &matches_empty) == 0);
  if (matches_empty != 0) return base::failure(base::unimplemented("the pattern can match the empty string"));
  if (const int status = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); status != 0) {
    return base::failure(base::unimplemented(
        fmt::format("PCRE2's just-in-time compiler does not take the pattern (its error {})", status)));
  }
  return RegexSplitter(std::move(code));
}

void RegexSplitter::split(std::string_view text, Scratch& scratch, std::vector<std::string_view>& pieces) const {
  pcre2_match_data* match = scratch.buffers_->match;
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match);
  std::size_t at = 0;
  while (at < text.size()) {
    const int matched = pcre2_jit_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                        PCRE2_NO_UTF_CHECK, match, nullptr);
    if (matched <= 0) break;  // No further match, or the limit: the rest is one piece either way.
    if (offsets[0] > at) pieces.push_back(text.substr(at, offsets[0] - at));
    pieces.push_back(text.substr(offsets[0], offsets[1] - offsets[0]));
    at = offsets[1];
  }
  if (at < text.size()) pieces.push_back(text.substr(at));
}

}  // namespace tessera::text
