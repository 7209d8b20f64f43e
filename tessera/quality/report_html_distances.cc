#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tessera/quality/report_html_parts.h"
#include "tessera/quality/report_words.h"

namespace tessera::quality {

namespace {

std::string plan_cell(const Evaluation& evaluation, std::size_t plan) {
  return fmt::format("<i class=\"{}\"></i> {}", colour(plan), escaped(plan_name(evaluation, plan)));
}

// The table of all numbers; a row of each plan, the whole task before its cells.
std::string summary_table(const Evaluation& evaluation, const DistanceAnalysis& task) {
  std::string html =
      "<div class=\"wide\"><table><thead><tr><th>Plan</th><th>Cell</th><th class=\"n\">Passages</th><th class=\"n\">"
      "Positions</th><th class=\"n\">Mean KL</th><th class=\"n\">95% interval</th><th class=\"n\">Median</th><th "
      "class=\"n\">"
      "p99</th><th class=\"n\">Worst</th><th class=\"n\">Same top token</th><th class=\"n\">Rank overlap</th><th>In "
      "words"
      "</th></tr></thead><tbody>";
  for (const DistanceSummary& one : task.summaries) {
    html += fmt::format(
        "<tr><th class=\"name\">{}</th><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}"
        "<br><small>{}</small></td><td class=\"n\">{:.4f}</td><td>{}</td></tr>",
        plan_cell(evaluation, one.plan), escaped(one.cell), grouped(one.passages), grouped(one.positions),
        kl_text(one.kl.value), kl_range_text(one.kl.interval), kl_text(one.kl_median), kl_text(one.kl_p99),
        kl_text(one.kl_worst), share_text(one.agreement.value), range_text(one.agreement.interval), one.overlap.value,
        distance_word_text(one.word));
  }
  return html + "</tbody></table></div>";
}

std::string kl_plot(const Evaluation& evaluation, const DistanceAnalysis& task) {
  std::vector<double> values;
  for (const DistanceSummary& one : task.summaries) {
    if (!one.cell.empty()) continue;
    values.insert(values.end(), {one.kl.value, one.kl.interval.low, one.kl.interval.high, one.kl_p99, one.kl_worst});
  }
  const Axis axis = decade_axis(values);
  std::string html;
  for (const DistanceSummary& one : task.summaries) {
    if (!one.cell.empty()) continue;
    const std::string text = one.word == DistanceWord::kSame
                                 ? "same to the bit"
                                 : fmt::format("{} [{}]", kl_text(one.kl.value), kl_range_text(one.kl.interval));
    std::vector<Mark> marks;
    if (one.word != DistanceWord::kSame) {
      marks.push_back(
          {.plan = one.plan, .interval = one.kl.interval, .value = one.kl.value, .ticks = {one.kl_p99, one.kl_worst}});
    }
    html += fmt::format(
        "<div class=\"row\"><div class=\"what\">{}</div><div>{}</div><div class=\"numbers\"><div>{}</div>"
        "</div></div>",
        plan_cell(evaluation, one.plan), strip(axis, marks, {.label = text}), text);
  }
  return html + fmt::format(
                    "<div class=\"row head\"><div class=\"what\"></div><div>{}</div><div class=\"numbers\"></div>"
                    "</div>",
                    axis_labels(axis, "KL divergence, nats"));
}

std::string position_plot(const DistanceAnalysis& task) {
  std::map<std::int32_t, std::string> labels;
  std::vector<double> values;
  for (const DistanceSummary& one : task.summaries) {
    for (const PositionBin& bin : one.bins) {
      labels.emplace(bin.first, bin_text(bin));
      values.insert(values.end(), {bin.kl.value, bin.kl.interval.low, bin.kl.interval.high});
    }
  }
  if (labels.size() < 2 || std::ranges::none_of(values, [](double value) { return value > 0.0; })) return {};
  std::vector<std::string> names;
  names.reserve(labels.size());
  for (const auto& [first, name] : labels) names.push_back(name);
  std::vector<Curve> lines;
  for (const DistanceSummary& one : task.summaries) {
    if (one.bins.empty() || one.word == DistanceWord::kSame) continue;
    Curve curve{.plan = one.plan};
    for (const PositionBin& bin : one.bins) {
      const auto index = std::distance(labels.begin(), labels.find(bin.first));
      curve.points.emplace_back(static_cast<std::size_t>(index), bin.kl);
    }
    lines.push_back(std::move(curve));
  }
  return "<p class=\"soft\">Mean KL by position in the text that the plans were led through</p>" +
         curves(decade_axis(values), names, lines, "mean KL divergence by position");
}

std::string pair_table(const Evaluation& evaluation, const DistanceAnalysis& task) {
  if (task.pairs.empty()) return {};
  std::string html =
      "<h3>Do two plans lie equally far from the reference?</h3><div "
      "class=\"wide\"><table><thead><tr><th>Plan</th><th>With"
      "</th><th class=\"n\">Passages</th><th class=\"n\">Difference of mean KL</th><th class=\"n\">95% interval</th>"
      "<th class=\"n\">p</th><th>Told apart</th></tr></thead><tbody>";
  for (const DistancePair& one : task.pairs) {
    html += fmt::format(
        "<tr><th class=\"name\">{}</th><th class=\"name\">{}</th><td class=\"n\">{}</td><td class=\"n\">{}"
        "</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
        plan_cell(evaluation, one.first), plan_cell(evaluation, one.second), grouped(one.passages),
        kl_text(one.difference), kl_range_text(one.interval), escaped(p_text(one.p_adjusted)),
        one.apart ? "<b>yes</b>" : "no");
  }
  return html + "</tbody></table></div>";
}

std::string worst_table(const Evaluation& evaluation, const DistanceAnalysis& task) {
  if (task.worst.empty()) return {};
  std::string html =
      "<details><summary>Positions that lie farthest apart</summary><div class=\"wide\"><table><thead><tr><th>Plan</th>"
      "<th>Question</th><th class=\"n\">Position</th><th class=\"n\">KL</th><th class=\"n\">Best token</th><th "
      "class=\"n\">"
      "Plan's best</th><th class=\"n\">Log-probability of the text's token</th><th class=\"n\">Plan's</th></tr></thead>"
      "<tbody>";
  for (const WorstPosition& one : task.worst) {
    html += fmt::format(
        "<tr><th class=\"name\">{}</th><td>{}<br><small>{}</small></td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.4f}</td>"
        "<td class=\"n\">{:.4f}</td></tr>",
        plan_cell(evaluation, one.plan), escaped(one.question), escaped(one.cell), one.distance.position,
        kl_text(one.distance.kl), one.distance.reference_best, one.distance.other_best, one.distance.reference_logprob,
        one.distance.other_logprob);
  }
  return html + "</tbody></table></div></details>";
}

}  // namespace

std::string distances_section(const Evaluation& evaluation, const Analysis& analysis) {
  if (analysis.distances.empty()) return {};
  std::string html =
      "<section id=\"distances\"><h2>Distance of distributions from the reference</h2>" + legend(evaluation, 1);
  html +=
      "<p class=\"soft\">KL divergence of the plan's distribution over the whole vocabulary from the reference's, in "
      "nats, "
      "at every position of a text that both were led through. Dots are means, lines their 95% intervals by resampling "
      "passages; the strokes to the right are the 99th percentile and the worst position.</p>";
  if (analysis.repetition.has_value()) {
    html += fmt::format("<p>{} is the reference once more: how far it lies is the noise floor.</p>",
                        escaped(plan_name(evaluation, *analysis.repetition)));
  }
  for (const DistanceAnalysis& task : analysis.distances) {
    html += fmt::format("<h3>{}</h3>", escaped(task.task)) + kl_plot(evaluation, task) + position_plot(task) +
            summary_table(evaluation, task) + pair_table(evaluation, task) + worst_table(evaluation, task);
  }
  return html + "</section>";
}

}  // namespace tessera::quality
