// Judging programs that a model wrote, by running them against tests in the sandbox.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/quality/sandbox.h"

namespace tessera::quality {

// Whether the program runs to its end: it raises nothing, does not leave early and stays within the limits. What it
// prints is nothing to this. Errors are those of the sandbox.
base::Result<bool> runs_to_its_end(const Sandbox& sandbox, std::string_view program);

// HumanEval's program (github.com/openai/human-eval, execution.py): the prompt, what the model made of it, the
// problem's tests, and their call on the function.
std::string human_eval_program(std::string_view prompt, std::string_view completion, std::string_view test,
                               std::string_view entry_point);

// The rule of pocket-functions, as tools/train_pocket/score.py has it: the answer's first block marked as Python, of at
// most 600 characters, is one function of harmless parts (no loop but a comprehension, no attribute, no power or shift
// to the left, no recursion, six built-in functions), and every test, an expression, is true of it.
base::Result<bool> passes_tests(const Sandbox& sandbox, std::string_view answer, std::span<const std::string> tests);

}  // namespace tessera::quality
