// What an evaluation's raw data say, by rules that were fixed before anybody looked at them (docs/evaluate.md has them
// with their sources). Plain values: the reports print them and work nothing out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quality/bootstrap.h"
#include "tessera/quality/evaluation.h"
#include "tessera/quality/statistics.h"

namespace tessera::quality {

struct Estimate {
  double value = 0.0;
  Interval interval = {};  // 95%
};

// One plan's reading of one metric, over a task or one cell of it.
struct MetricValue {
  std::size_t plan = 0;
  std::size_t metric = 0;      // Index into TaskInfo::metrics.
  std::string cell = {};       // Empty: the whole task.
  std::int64_t questions = 0;  // That have the metric's scores.
  std::int64_t skipped = 0;    // That could not be asked.
  double numerator = 0.0;      // kAccuracy: right answers, of `questions`.
  double denominator = 0.0;    // Likewise.
  std::optional<Estimate>
      result;  // A share (kAccuracy, kRate), a perplexity or a mean; none where there is nothing to divide by.
};

enum class Verdict : std::uint8_t {
  kSame,             // kPerplexity, kMean: every score is the reference's to the bit.
  kEquivalent,       // The whole interval of the difference lies within the margin, and the difference is not shown.
  kDifferent,        // The difference is shown: adjusted p under 0.05, and the interval excludes 0.
  kDifferentWithin,  // Both: shown, and within the margin.
  kNotEnoughData,    // Neither.
};
// "same", "equivalent", "different", "different_within", "not_enough_data"
std::string_view verdict_name(Verdict verdict);

// One plan against the reference (plan 0) on the questions that both were asked.
struct Comparison {
  std::size_t plan = 1;
  std::size_t metric = 0;
  std::string cell = {};
  std::int64_t questions = 0;  // Pairs.
  std::int64_t skipped = 0;    // Questions left out because one of the two could not be asked.
  PairCounts counts = {};      // kAccuracy alone.
  double reference_value = 0.0;
  double other_value = 0.0;
  // The other's less the reference's: shares for kAccuracy and kRate, (other / reference - 1) for the others.
  double difference = 0.0;
  Interval interval = {};   // That of the verdict; tango_interval for kAccuracy.
  Interval bootstrap = {};  // Paired, over questions.
  double p = 1.0;           // mcnemar_exact for kAccuracy, else swap_test.
  // By Holm, in the family of all comparisons of whole tasks, or of all of cells. What could not be "different"
  // whatever was answered (too few pairs) is in no family and keeps 1.
  double p_adjusted = 1.0;
  Verdict verdict = Verdict::kNotEnoughData;
  // In the unit of `difference`: what this many pairs would show in four cases of five.
  double detectable = 1.0;
  // How many pairs like these would bring the interval within the margin, and how many would show a difference as large
  // as the one seen; none where no number would.
  std::optional<double> questions_to_equivalence = std::nullopt;
  std::optional<double> questions_to_difference = std::nullopt;
};

// A question that the reference and another plan answered with different success.
struct Flip {
  std::size_t plan = 1;
  std::string question = {};
  std::string cell = {};
  std::vector<std::string> lost = {};  // Names of the metrics by which only the reference is right,
  std::vector<std::string> won = {};   // and by which only the other is.
  std::string expected = {};
  std::string reference_answer = {};
  std::string other_answer = {};
};

struct PositionBin {
  std::int32_t first = 0;  // Positions in the continuation, both included.
  std::int32_t last = 0;
  std::int64_t passages = 0;
  std::int64_t positions = 0;
  Estimate kl = {};
  Estimate agreement = {};
};

enum class DistanceWord : std::uint8_t {
  kSame,        // All distributions are the reference's to the bit.
  kMeasured,    // They are not; nothing is known of how a repetition of the reference would differ.
  kAboveNoise,  // They lie farther than those of the repetition; or that gave the same to the bit.
  kNotAboveNoise,
  kNotEnoughData,  // There is a noise floor, but too few passages to be told apart from it.
};
// "same", "measured", "above_noise", "not_above_noise", "not_enough_data"
std::string_view distance_word_name(DistanceWord word);

// Of one plan against the reference under teacher forcing, over a task or one cell. Means are over positions, intervals
// by resampling passages.
struct DistanceSummary {
  std::size_t plan = 1;
  std::string cell = {};
  std::int64_t passages = 0;
  std::int64_t positions = 0;
  DistanceWord word = DistanceWord::kMeasured;
  Estimate kl = {};
  Estimate agreement = {};
  Estimate overlap = {};
  double kl_median = 0.0;
  double kl_p99 = 0.0;
  double kl_worst = 0.0;
  std::vector<PositionBin> bins = {};  // Of whole tasks alone: 0, 1, 2 to 3, 4 to 7, ...
};

// Whether two plans' mean KL from the reference differ, on the passages that both were led through.
struct DistancePair {
  std::size_t first = 1;
  std::size_t second = 2;
  std::int64_t passages = 0;
  double difference = 0.0;  // The second's mean less the first's.
  Interval interval = {};
  double p = 1.0;  // swap_test
  // By Holm, in the family of all tasks' pairs with the repetition, or of all others; 1 with fewer passages than
  // kUnitsMin.
  double p_adjusted = 1.0;
  bool apart = false;  // Adjusted p under 0.05, and the interval excludes 0.
};

struct WorstPosition {
  std::size_t plan = 1;
  std::string question = {};
  std::string cell = {};
  PositionDistance distance = {};
};

struct TaskAnalysis {
  std::size_t task = 0;                 // Index into Evaluation::tasks.
  std::vector<std::string> cells = {};  // In the order of the questions; empty where there is one at most.
  // By metric, then the whole task before its cells, then plan.
  std::vector<MetricValue> values = {};
  std::vector<Comparison> comparisons = {};
  std::vector<Flip> flips = {};
};

struct DistanceAnalysis {
  std::string task = {};
  std::vector<DistanceSummary> summaries = {};  // By plan, the whole task before its cells.
  std::vector<DistancePair> pairs = {};
  std::vector<WorstPosition> worst = {};  // By plan, kWorstPositions of each at most, farthest first; none with KL 0.
};

struct Analysis {
  // A plan that was described in the same words as the reference: the noise floor.
  std::optional<std::size_t> repetition = std::nullopt;
  std::size_t task_family = 0;  // Sizes of the families that p-values were adjusted in.
  std::size_t cell_family = 0;
  std::size_t pair_family = 0;
  std::size_t noise_family = 0;  // Of pairs with the repetition.
  std::vector<TaskAnalysis> tasks = {};
  std::vector<DistanceAnalysis> distances = {};
};

inline constexpr std::size_t kWorstPositions = 10;
// Intervals by resampling fewer units than this support no verdict.
inline constexpr std::int64_t kUnitsMin = 10;

// The same evaluation gives the same analysis to the bit: resampling is seeded. Plans' outcomes are paired by their
// question; what only one of them has is left out. Takes seconds for tens of thousands of questions.
Analysis analyse(const Evaluation& evaluation);

}  // namespace tessera::quality
