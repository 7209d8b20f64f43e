// Which of several choices a model's likelihoods choose, by the rules of lm-evaluation-harness (ConfigurableTask's
// process_results for multiple_choice): its metrics "acc" and "acc_norm".
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tessera::quality {

// The index of the largest; of equal ones the first. `logprobs` is not empty.
std::size_t likeliest(std::span<const double> logprobs);

// The same of logprob / length, the length being the choice's in characters (as the harness has it), without the space
// that is put before it. Both have the same size, no choice is empty.
std::size_t likeliest_by_length(std::span<const double> logprobs, std::span<const std::string> choices);

}  // namespace tessera::quality
