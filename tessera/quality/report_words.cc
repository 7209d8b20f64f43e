#include "tessera/quality/report_words.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tessera/text/utf8.h"

namespace tessera::quality {

namespace {

// Numbers of questions that nobody will ask are not spelled out.
std::string about(double questions) {
  if (questions >= 1e7) return "more than 10,000,000";
  if (questions < 1000.0) return grouped(static_cast<std::int64_t>(questions));
  const double step = std::pow(10.0, std::floor(std::log10(questions)) - 1.0);
  return grouped(static_cast<std::int64_t>(std::ceil(questions / step) * step));
}

std::string fixed(double value, int decimals) {
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return value > 0.0 ? "inf" : "-inf";
  return fmt::format("{:.{}f}", value, decimals);
}

std::string perplexity(double value) {
  if (!std::isfinite(value)) return fixed(value, 0);
  return value < 1000.0 ? fmt::format("{:.4f}", value) : fmt::format("{:.5g}", value);
}

std::string signed_points(double share) {
  // What rounds to nothing has no sign.
  if (std::abs(share) < 5e-5) return "0.00";
  return std::isfinite(share) ? fmt::format("{:+.2f}", share * 100.0) : fixed(share, 0);
}

}  // namespace

std::string grouped(std::int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool groups_follow = (digits.size() - i) % 3 == 0;
    if (groups_follow && i > (value < 0 ? 1U : 0U)) text += ',';
    text += digits[i];
  }
  return text;
}

std::string share_text(double share) { return fixed(share * 100.0, 2) + "%"; }
std::string points_text(double share) { return signed_points(share); }
std::string range_text(Interval interval) {
  return fmt::format("{} to {}", fixed(interval.low * 100.0, 2), fixed(interval.high * 100.0, 2));
}
std::string points_range_text(Interval interval) {
  return fmt::format("{} to {}", signed_points(interval.low), signed_points(interval.high));
}

std::string kl_text(double nats) {
  if (nats == 0.0) return "0";
  return std::isfinite(nats) ? fmt::format("{:.2e}", nats) : fixed(nats, 0);
}
std::string kl_range_text(Interval interval) {
  return fmt::format("{} to {}", kl_text(interval.low), kl_text(interval.high));
}

std::string p_text(double p) { return p < 0.0001 ? "<0.0001" : fmt::format("{:.4f}", p); }

std::string margin_text(const Evaluation& evaluation, MetricKind kind) {
  const double margin = evaluation.equivalence_points;
  if (is_relative(kind)) return fmt::format("{:g}%", margin);
  return fmt::format("{:g} {}", margin, margin == 1.0 ? "point" : "points");
}

std::string value_text(const MetricValue& value, MetricKind kind) {
  if (!value.result.has_value()) return "-";
  return is_relative(kind) ? perplexity(value.result->value) : share_text(value.result->value);
}

std::string value_range_text(const MetricValue& value, MetricKind kind) {
  if (!value.result.has_value()) return "-";
  const Interval& interval = value.result->interval;
  if (!is_relative(kind)) return range_text(interval);
  return fmt::format("{} to {}", perplexity(interval.low), perplexity(interval.high));
}

std::string verdict_text(const Evaluation& evaluation, const Comparison& comparison, MetricKind kind) {
  const std::string margin = margin_text(evaluation, kind);
  switch (comparison.verdict) {
    case Verdict::kSame:
      return "same to the bit";
    case Verdict::kEquivalent:
      return fmt::format("equivalent within {}", margin);
    case Verdict::kDifferent:
      return "different";
    case Verdict::kDifferentWithin:
      return fmt::format("different, within {}", margin);
    case Verdict::kNotEnoughData:
      break;
  }
  return "not enough data";
}

std::string open_text(const Evaluation& evaluation, const Comparison& comparison, MetricKind kind) {
  if (comparison.verdict != Verdict::kNotEnoughData) return {};
  if (comparison.questions == 0) {
    return kind == MetricKind::kRate ? "on one of the two sides there is nothing that this is a rate of"
                                     : "no question was answered by both";
  }
  const char* const unit = is_relative(kind) ? "%" : " points";
  const std::string pairs = grouped(comparison.questions);
  const bool too_few = kind != MetricKind::kAccuracy && comparison.questions < kUnitsMin;
  std::string text;
  if (too_few) {
    text = fmt::format("{} pair{} support no verdict: at least {} are needed", pairs,
                       comparison.questions == 1 ? "" : "s", kUnitsMin);
  } else {
    text = fmt::format("{} pairs show differences of {:.2f}{} or more", pairs, comparison.detectable * 100.0, unit);
  }
  if (!too_few && comparison.p < kSignificance && comparison.p_adjusted >= kSignificance) {
    text += fmt::format("; p is {} by itself, and not small enough among so many comparisons", p_text(comparison.p));
  }
  std::string needed;
  if (comparison.questions_to_equivalence.has_value()) {
    needed = fmt::format("equivalence within {} needs about {}", margin_text(evaluation, kind),
                         about(*comparison.questions_to_equivalence));
  }
  const double seen = comparison.questions_to_difference.value_or(0.0);
  if (seen > static_cast<double>(comparison.questions)) {
    needed += fmt::format("{}a difference as seen about {}", needed.empty() ? "" : ", ", about(seen));
  }
  return needed.empty() ? text : fmt::format("{}; {}", text, needed);
}

std::string distance_word_text(DistanceWord word) {
  switch (word) {
    case DistanceWord::kSame:
      return "same to the bit";
    case DistanceWord::kMeasured:
      return "measured";
    case DistanceWord::kAboveNoise:
      return "above noise";
    case DistanceWord::kNotAboveNoise:
      return "not above noise";
    case DistanceWord::kNotEnoughData:
      return "not enough data";
  }
  return "measured";
}

std::string metric_title(const TaskInfo& task, std::size_t metric) {
  return task.metrics.size() == 1 ? task.name : fmt::format("{} {}", task.name, task.metrics[metric].name);
}

std::string plan_name(const Evaluation& evaluation, std::size_t plan) {
  const std::string name = plan < evaluation.plans.size() ? shown_text(evaluation.plans[plan].name) : "";
  return name.empty() ? fmt::format("plan {}", plan + 1) : name;
}

std::string bin_text(const PositionBin& bin) {
  return bin.first == bin.last ? fmt::format("{}", bin.first) : fmt::format("{}-{}", bin.first, bin.last);
}

std::string rules_text(const Evaluation& evaluation, const Analysis& analysis) {
  std::string text = fmt::format(
      "Intervals are 95%: Wilson's for shares, Tango's for paired differences of accuracy, bootstrap over whole "
      "questions or passages ({} resamples, seed {}) for what is not right or wrong; of rates no narrower than "
      "Tango's.\n",
      grouped(static_cast<std::int64_t>(kResamples)), evaluation.seed);
  text += fmt::format(
      "\"Equivalent\": the whole interval of the difference lies within {:g} points (for perplexities and means: "
      "{:g}%). "
      "\"Different\": p under {:g} after Holm's adjustment, and the interval excludes 0. Neither: \"not enough "
      "data\".\n",
      evaluation.equivalence_points, evaluation.equivalence_points, kSignificance);
  text += fmt::format(
      "p is McNemar's exact test for right or wrong, else a test that swaps plans at random. Families of Holm's "
      "adjustment: {} comparison(s) of whole tasks, {} of cells, {} pair(s) of KL divergences, {} with the reference's "
      "repetition; what has too few questions to differ is in none.\n",
      analysis.task_family, analysis.cell_family, analysis.pair_family, analysis.noise_family);
  return text;
}

std::string shown_text(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const text::Utf8Unit unit = text::next_utf8_unit(text);
    if (unit.kind != text::Utf8Unit::Kind::kCharacter) {
      shown += "\xEF\xBF\xBD";
    } else {
      const char32_t c = text::utf8_code_point(text);
      // Also what turns the direction of the text around it.
      const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) ||
                           (c >= 0x2066 && c <= 0x2069) || c == 0x2028 || c == 0x2029;
      if (control) {
        shown += ' ';
      } else {
        shown += text.substr(0, unit.length);
      }
    }
    text.remove_prefix(unit.length);
  }
  return shown;
}

}  // namespace tessera::quality
