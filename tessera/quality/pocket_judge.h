// The rules by which answers to the bundled model's held-out questions are right: those of tools/train_pocket/score.py,
// over what the API gives of an answer.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tessera/quality/respondent.h"
#include "tessera/quality/tool_judge.h"

namespace tessera::quality {

// The last "The answer is N." of the text names the number. `expected`: a decimal integer.
bool says_number(std::string_view text, std::string_view expected);
// The last "It prints X." of the text names the value: a word, which may begin with a minus. Every character beyond
// ASCII counts as part of a word.
bool says_printed(std::string_view text, std::string_view expected);
// The text and nothing else, white space around it apart.
bool says_text(const Answer& answer, std::string_view expected);
// Exactly the expected calls, in any order, and nothing else.
bool makes_calls(const Answer& answer, std::span<const MadeCall> expected);
// The answer is nothing but calls of declared tools that satisfy their schemas.
bool calls_are_valid(const Answer& answer, std::span<const DeclaredTool> tools);
// Whether the model tried a call: one was read, or the marks of one stand in the text.
bool tries_calls(const Answer& answer);

}  // namespace tessera::quality
