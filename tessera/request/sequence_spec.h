// What a client asked for, as engines know it: one sequence. A request with n choices is n sequences over the same
// prompt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/request/sampling_params.h"

namespace tessera::request {

// Unique in the life of the server, never 0, and given in order of arrival: engines serve the smaller first and preempt
// the larger, and a preempted sequence keeps its id.
using SequenceId = std::uint64_t;

struct SequenceSpec {
  SequenceId id = 0;
  std::string request_id;            // x-request-id or our own, for logs.
  std::string tenant;                // Derived from the API key by the server; scopes the prefix cache.
  std::vector<std::int32_t> prompt;  // Token ids, all inside the vocabulary, at least one.
  SamplingParams sampling;
};

enum class FinishReason : std::uint8_t {
  kStop,    // A stop token.
  kLength,  // max_tokens, or the context or pool is full.
};
// As the API spells it.
constexpr std::string_view finish_reason_name(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

}  // namespace tessera::request
