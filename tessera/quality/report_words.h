// How the three reports say things, so that they say the same: numbers as people read them, and verdicts in words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/quality/analysis.h"

namespace tessera::quality {

std::string grouped(std::int64_t value);           // 1,234,567
std::string share_text(double share);              // 0.7235 as "72.35%"
std::string points_text(double share);             // 0.0125 as "+1.25"
std::string range_text(Interval interval);         // "70.10 to 74.50", of shares, in percent
std::string points_range_text(Interval interval);  // "-0.30 to +2.80", of differences of shares
std::string kl_text(double nats);                  // "1.24e-05", "0"
// Perplexities and means have no natural unit: their differences are relative, in percent.
inline bool is_relative(MetricKind kind) { return kind == MetricKind::kPerplexity || kind == MetricKind::kMean; }
std::string kl_range_text(Interval interval);                            // "1.1e-05 to 1.4e-05"
std::string p_text(double p);                                            // "0.0312", "<0.0001"
std::string margin_text(const Evaluation& evaluation, MetricKind kind);  // "2 points", "2%"

// "72.35%", or a perplexity "8.412"; "-" for none; and its interval.
std::string value_text(const MetricValue& value, MetricKind kind);
std::string value_range_text(const MetricValue& value, MetricKind kind);

// "equivalent within 2 points", "different", "different, within 2 points", "not enough data", "same to the bit"
std::string verdict_text(const Evaluation& evaluation, const Comparison& comparison, MetricKind kind);
// What would settle it, for a comparison that is not settled: "400 pairs show differences of 3.10 points or more;
// equivalence within 2 points needs about 1,900, a difference as seen about 5,200". Empty for any other.
std::string open_text(const Evaluation& evaluation, const Comparison& comparison, MetricKind kind);
// "same to the bit", "above noise", ...
std::string distance_word_text(DistanceWord word);

// "gsm8k exact": the task, and the metric where the task has several.
std::string metric_title(const TaskInfo& task, std::size_t metric);
// The name of a plan, or its number where it has none.
std::string plan_name(const Evaluation& evaluation, std::size_t plan);
// "0", "4-7"
std::string bin_text(const PositionBin& bin);
// The rules in short, one a paragraph, with this evaluation's own numbers: what an interval is, when a verdict is
// given.
std::string rules_text(const Evaluation& evaluation, const Analysis& analysis);

// One line of well-formed UTF-8 without control characters (ESC would reach the terminal), which become spaces; what is
// ill-formed becomes U+FFFD.
std::string shown_text(std::string_view text);

}  // namespace tessera::quality
