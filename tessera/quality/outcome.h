// What is kept of a question that was asked: the raw data that all statistics are made of. Plain values; the journal
// holds them one a line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::quality {

// How a task's outcomes become one number. Several metrics of a task are different readings of the same answers.
enum class MetricKind : std::uint8_t {
  kAccuracy,    // Mean of scores[name], each 0 or 1. Compared question by question.
  kRate,        // Sum of scores[numerator] by sum of scores[denominator], as valid calls of all calls.
  kPerplexity,  // exp(-sum of scores[numerator] by sum of scores[denominator]); the numerator is a log-likelihood in
                // nats.
  kMean,        // Sum of scores[numerator] by sum of scores[denominator], of what is no share, as bits by byte; less
                // is better.
};

struct Metric {
  std::string name;  // "exact", "flexible", "right", "valid_calls", "word_perplexity", ...
  MetricKind kind = MetricKind::kAccuracy;
  std::string numerator;    // All but kAccuracy.
  std::string denominator;  // Likewise.
  // Whether plans are compared by it, with a verdict. Not by one that says again what another of the task says.
  bool compared = true;
};

struct Outcome {
  std::string question;  // Unique in the task, the same in every run: what pairs two plans' answers.
  std::string cell;      // What is reported together, beside the task as a whole: a level, a subject, a depth.
  std::map<std::string, double> scores;
  std::string expected;  // For people; cut to kShownBytes.
  std::string answer;    // Likewise.
  std::string skipped;   // Why it could not be asked; empty: it was. A skipped one has no scores.
};

// At one position of a text that both plans were led through, token by token.
struct PositionDistance {
  std::int32_t position = 0;  // In the continuation.
  double kl = 0.0;            // KL(reference || other) over the whole vocabulary, in nats.
  bool same_best = false;     // Top-1 agreement.
  double rank_overlap = 0.0;  // Rank-biased overlap of the two orders, 0 to 1.
  std::int32_t reference_best = 0;
  std::int32_t other_best = 0;
  double reference_logprob = 0.0;  // Of the text's own token.
  double other_logprob = 0.0;
};

struct PassageDistances {
  std::string question;
  std::string cell;
  std::vector<PositionDistance> positions;
};

inline constexpr std::size_t kShownBytes = 400;

}  // namespace tessera::quality
