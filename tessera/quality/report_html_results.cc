#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/quality/report_html_parts.h"
#include "tessera/quality/report_words.h"

namespace tessera::quality {

namespace {

constexpr std::size_t kCellsOpen = 24;    // A task with more of them shows its cells when asked to.
constexpr std::size_t kFlipsShown = 200;  // Of one plan and task.

// The rows of a task's cells, folded away where they are many.
std::string folded(const TaskAnalysis& task, const std::string& rows) {
  if (rows.empty()) return rows;
  return fmt::format("<details{}><summary>{} cells</summary>{}</details>",
                     task.cells.size() <= kCellsOpen ? " open" : "", task.cells.size(), rows);
}

std::string row(std::string_view style, std::string_view what, std::string_view plot, std::string_view numbers) {
  return fmt::format(
      "<div class=\"row {}\"><div class=\"what\">{}</div><div>{}</div><div class=\"numbers\">{}</div></div>", style,
      what, plot, numbers);
}

const TaskInfo& info_of(const Evaluation& evaluation, const TaskAnalysis& task) {
  return evaluation.tasks[task.task].task;
}

// All plans' values of one metric and cell.
std::string value_row(const Evaluation& evaluation, const TaskAnalysis& task, std::span<const MetricValue> values,
                      const Axis& axis) {
  const TaskInfo& info = info_of(evaluation, task);
  const MetricValue& first = values.front();
  const MetricKind kind = info.metrics[first.metric].kind;
  std::vector<Mark> marks;
  std::string numbers;
  std::string label;
  for (const MetricValue& value : values) {
    if (value.result.has_value()) {
      marks.push_back({.plan = value.plan, .interval = value.result->interval, .value = value.result->value});
    } else {
      marks.push_back({.plan = value.plan, .drawn = false});
    }
    const std::string text = fmt::format("{} [{}]", value_text(value, kind), value_range_text(value, kind));
    label += fmt::format("{}{}: {}", label.empty() ? "" : "; ", plan_name(evaluation, value.plan), text);
    numbers += fmt::format("<div>{} <small>of {}{}</small></div>", text, grouped(value.questions),
                           value.skipped > 0 ? fmt::format(", {} skipped", grouped(value.skipped)) : "");
  }
  const bool whole = first.cell.empty();
  StripOptions options{.label = label};
  if (info.chance.has_value() && first.metric == 0) options.at = *info.chance;
  std::string what = escaped(whole ? metric_title(info, first.metric) : first.cell);
  if (whole && info.chance.has_value() && first.metric == 0) {
    what += fmt::format("<br><small>guessing gives {}</small>", share_text(*info.chance));
  }
  return row(whole ? "" : "cell", what, strip(axis, marks, options), numbers);
}

std::string metric_rows(const Evaluation& evaluation, const TaskAnalysis& task, std::size_t metric) {
  const MetricKind kind = info_of(evaluation, task).metrics[metric].kind;
  std::vector<MetricValue> values;
  std::vector<Interval> intervals;
  for (const MetricValue& value : task.values) {
    if (value.metric != metric) continue;
    values.push_back(value);
    if (!value.result.has_value()) continue;
    intervals.push_back(value.result->interval);
  }
  if (values.empty()) return {};
  const bool shares = !is_relative(kind);
  const Axis axis = shares ? share_axis(intervals) : value_axis(intervals);
  std::string html;
  std::string cells;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t end = i;
    while (end < values.size() && values[end].cell == values[i].cell) ++end;
    const std::string one = value_row(evaluation, task, std::span<const MetricValue>(values).subspan(i, end - i), axis);
    (values[i].cell.empty() ? html : cells) += one;
    i = end;
  }
  html += row("head", "", axis_labels(axis, shares ? "percent" : "less is better"), "");
  return html + folded(task, cells);
}

std::string comparison_row(const Evaluation& evaluation, const TaskAnalysis& task, const Comparison& one,
                           const Axis& axis) {
  const TaskInfo& info = info_of(evaluation, task);
  const MetricKind kind = info.metrics[one.metric].kind;
  const double margin = evaluation.equivalence_points / 100.0;
  const std::string unit = is_relative(kind) ? "%" : "";
  std::string numbers = fmt::format("<div class=\"{}\">{}</div>", verdict_name(one.verdict),
                                    escaped(verdict_text(evaluation, one, kind)));
  std::vector<Mark> marks;
  std::string label = "nothing to compare";
  if (one.questions > 0) {
    marks.push_back({.plan = one.plan, .interval = one.interval, .value = one.difference});
    label = fmt::format("{}{} [{}]", points_text(one.difference), unit, points_range_text(one.interval));
    numbers += fmt::format("<div>{} <small>p {}</small></div>", label, escaped(p_text(one.p_adjusted)));
    const std::string skipped = one.skipped > 0 ? fmt::format("; {} skipped", grouped(one.skipped)) : "";
    if (kind == MetricKind::kAccuracy) {
      numbers += fmt::format("<div><small>{} lost, {} won; both right {}, both wrong {}{}</small></div>",
                             grouped(one.counts.lost), grouped(one.counts.won), grouped(one.counts.both_right),
                             grouped(one.counts.both_wrong), skipped);
    } else {
      numbers += fmt::format("<div><small>{} pairs{}</small></div>", grouped(one.questions), skipped);
    }
  }
  const std::string open = one.cell.empty() ? open_text(evaluation, one, kind) : "";
  if (!open.empty()) numbers += fmt::format("<div><small>{}</small></div>", escaped(open));
  const std::string what = fmt::format("{}<br><small><i class=\"{}\"></i> {}</small>",
                                       escaped(one.cell.empty() ? metric_title(info, one.metric) : one.cell),
                                       colour(one.plan), escaped(plan_name(evaluation, one.plan)));
  return row(one.cell.empty() ? "forest" : "forest cell", what,
             strip(axis, marks, {.band = {-margin, margin}, .at = 0.0, .label = label}), numbers);
}

std::string comparisons_of_cells(const Evaluation& evaluation, const TaskAnalysis& task, std::size_t metric) {
  std::vector<Interval> intervals;
  for (const Comparison& one : task.comparisons) {
    if (one.metric == metric && !one.cell.empty() && one.questions > 0) intervals.push_back(one.interval);
  }
  if (intervals.empty()) return {};
  const Axis axis = difference_axis(intervals, evaluation.equivalence_points / 100.0);
  std::string rows;
  for (const Comparison& one : task.comparisons) {
    if (one.metric == metric && !one.cell.empty()) rows += comparison_row(evaluation, task, one, axis);
  }
  rows += row("forest head", "", axis_labels(axis, "points"), "");
  return fmt::format("<h3>{} by cell</h3>", escaped(metric_title(info_of(evaluation, task), metric))) +
         folded(task, rows);
}

}  // namespace

std::string results_section(const Evaluation& evaluation, const Analysis& analysis) {
  std::string html = "<section id=\"results\"><h2>Results by task</h2>" + legend(evaluation, 0);
  html += "<p class=\"soft\">Dots are results, lines their 95% intervals; a dashed line is what guessing gives.</p>";
  for (const TaskAnalysis& task : analysis.tasks) {
    for (std::size_t metric = 0; metric < info_of(evaluation, task).metrics.size(); ++metric) {
      html += metric_rows(evaluation, task, metric);
    }
  }
  return html + "</section>";
}

std::string comparisons_section(const Evaluation& evaluation, const Analysis& analysis) {
  if (evaluation.plans.size() < 2) return {};
  const double margin = evaluation.equivalence_points / 100.0;
  std::vector<Interval> whole;
  for (const TaskAnalysis& task : analysis.tasks) {
    for (const Comparison& one : task.comparisons) {
      if (one.cell.empty() && one.questions > 0) whole.push_back(one.interval);
    }
  }
  const Axis axis = difference_axis(whole, margin);
  std::string html =
      "<section id=\"verdicts\"><h2>Verdicts: each plan against the reference</h2>" + legend(evaluation, 1);
  html += fmt::format(
      "<p class=\"soft\">The difference on the same questions, with its 95% interval, to the right where the plan does "
      "more than {}. The band is the margin of {}; of perplexities and means, differences are in percent, and less is "
      "better. p is after Holm's adjustment.</p>",
      escaped(plan_name(evaluation, 0)), margin_text(evaluation, MetricKind::kAccuracy));
  std::string cells;
  for (const TaskAnalysis& task : analysis.tasks) {
    for (std::size_t metric = 0; metric < info_of(evaluation, task).metrics.size(); ++metric) {
      cells += comparisons_of_cells(evaluation, task, metric);
    }
    for (const Comparison& one : task.comparisons) {
      if (one.cell.empty()) html += comparison_row(evaluation, task, one, axis);
    }
  }
  html += row("forest head", "", axis_labels(axis, "points"), "");
  return html + cells + "</section>";
}

std::string flips_section(const Evaluation& evaluation, const Analysis& analysis) {
  std::string html;
  for (const TaskAnalysis& task : analysis.tasks) {
    const TaskInfo& info = info_of(evaluation, task);
    for (std::size_t plan = 1; plan < evaluation.plans.size(); ++plan) {
      std::string rows;
      std::size_t count = 0;
      for (const Flip& flip : task.flips) {
        if (flip.plan != plan || ++count > kFlipsShown) continue;
        std::string words;
        for (const std::string& metric : flip.lost) {
          words +=
              fmt::format("<div class=\"different\">lost {}</div>", info.metrics.size() > 1 ? escaped(metric) : "");
        }
        for (const std::string& metric : flip.won) {
          words +=
              fmt::format("<div class=\"equivalent\">won {}</div>", info.metrics.size() > 1 ? escaped(metric) : "");
        }
        rows += fmt::format(
            "<tr><td>{}<br><small>{}</small></td><td>{}</td><td class=\"answer\">{}</td><td class=\"answer\">{}</td>"
            "<td class=\"answer\">{}</td></tr>",
            escaped(flip.question), escaped(flip.cell), words, escaped(flip.expected), escaped(flip.reference_answer),
            escaped(flip.other_answer));
      }
      if (count == 0) continue;
      html += fmt::format(
          "<details open><summary>{}, {}: {} flipped{}</summary><div class=\"wide\"><table><thead><tr><th>Question</th>"
          "<th>Flip</th><th>Expected</th><th>{} answered</th><th>{} answered</th></tr></thead><tbody>{}</tbody></table>"
          "</div></details>",
          escaped(info.name), escaped(plan_name(evaluation, plan)), grouped(static_cast<std::int64_t>(count)),
          count > kFlipsShown ? fmt::format("; the first {}, the JSON report has all", kFlipsShown) : "",
          escaped(plan_name(evaluation, 0)), escaped(plan_name(evaluation, plan)), rows);
    }
  }
  if (html.empty()) return html;
  return "<section id=\"flips\"><h2>Questions that flipped</h2>" + html + "</section>";
}

}  // namespace tessera::quality
