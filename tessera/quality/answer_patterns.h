// Taking an answer out of what a model wrote, by the patterns that were published with the data sets. Each function
// says its pattern as Python writes it; the tests compare with lm-evaluation-harness and Python themselves.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::quality {

// What the harness puts where a pattern does not match; equal to no right answer.
inline constexpr std::string_view kNoAnswer = "[invalid]";

// GSM8K, "strict-match": the first `#### (\-?[0-9\.\,]+)`, or kNoAnswer.
std::string strict_number(std::string_view text);
// GSM8K, "flexible-extract": the last `(-?[$0-9.,]{2,})|(-?[0-9]+)`, or kNoAnswer.
std::string flexible_number(std::string_view text);
// Whether two numbers are the same text when what the harness ignores is gone from both: every `,` and `$`, all up to
// the last `#### `, and a full stop at the end.
bool same_number(std::string_view answer, std::string_view expected);

// MMLU-Pro in the harness: the letter of the first `answer is \(?([ABCDEFGHIJ])\)?`; empty where there is none.
std::optional<char> stated_letter(std::string_view text);
// MMLU-Pro in its authors' program: that, else the first `.*[aA]nswer:\s*([A-J])`, else the last letter that stands
// alone, `\b[A-J]\b(?!.*\b[A-J]\b)` with "." matching line ends too; empty where there is none. (That program then
// guesses at random; here an answer without a letter is wrong.)
std::optional<char> any_letter(std::string_view text);

}  // namespace tessera::quality
