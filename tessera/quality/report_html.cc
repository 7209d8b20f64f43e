#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "tessera/quality/report.h"
#include "tessera/quality/report_html_parts.h"
#include "tessera/quality/report_words.h"

namespace tessera::quality {

namespace {

std::string fact(std::string_view name, std::string_view value) {
  if (value.empty()) return {};
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, escaped(value));
}

std::string plans(const Evaluation& evaluation) {
  std::string html =
      "<section id=\"plans\"><h2>Plans</h2><div class=\"wide\"><table><thead><tr><th>Plan</th><th>Asked "
      "for</th><th>Model</th><th>Precision</th><th>Digest</th></tr></thead><tbody>";
  for (std::size_t plan = 0; plan < evaluation.plans.size(); ++plan) {
    const PlanInfo& info = evaluation.plans[plan];
    html += fmt::format(
        "<tr><th class=\"name\"><i class=\"{}\"></i> {}{}</th><td>{}</td><td>{}</td><td>{}</td><td><code>{}</code></td>"
        "</tr>",
        colour(plan), escaped(plan_name(evaluation, plan)), plan == 0 ? " <small>reference</small>" : "",
        escaped(info.description), escaped(info.respondent.model), escaped(info.respondent.precision),
        escaped(info.respondent.digest));
  }
  return html + "</tbody></table></div></section>";
}

std::string tasks(const Evaluation& evaluation) {
  std::string html =
      "<section id=\"tasks\"><h2>Tasks</h2><div class=\"wide\"><table><thead><tr><th>Task</th><th>What is "
      "asked, and when an answer is right</th><th class=\"n\">Asked</th><th class=\"n\">In the data</th>"
      "<th>Data</th></tr></thead><tbody>";
  for (const TaskOutcomes& task : evaluation.tasks) {
    const std::size_t asked = task.by_plan.empty() ? 0 : task.by_plan[0].size();
    html += fmt::format(
        "<tr><th class=\"name\">{}</th><td>{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td><td><code>{}</code></td></tr>",
        escaped(task.task.name), escaped(task.task.about), grouped(static_cast<std::int64_t>(asked)),
        grouped(task.questions), escaped(task.data_digest));
  }
  return html + "</tbody></table></div></section>";
}

// How many comparisons of whole tasks came out how.
std::string headline(const Evaluation& evaluation, const Analysis& analysis) {
  std::array<std::int64_t, 5> counts{};
  std::int64_t all = 0;
  for (const TaskAnalysis& task : analysis.tasks) {
    for (const Comparison& one : task.comparisons) {
      if (!one.cell.empty()) continue;
      ++counts[static_cast<std::size_t>(one.verdict)];
      ++all;
    }
  }
  if (all == 0) return "<p class=\"headline\">One plan, compared with nothing.</p>";
  const std::string margin = margin_text(evaluation, MetricKind::kAccuracy);
  const std::array<std::pair<Verdict, std::string>, 5> names{{
      {Verdict::kSame, "same to the bit"},
      {Verdict::kEquivalent, "equivalent within " + margin},
      {Verdict::kDifferent, "different"},
      {Verdict::kDifferentWithin, "different, within " + margin},
      {Verdict::kNotEnoughData, "not enough data"},
  }};
  std::string html = fmt::format(
      "<p class=\"headline\">{} comparison{} of whole tasks with the reference: ", grouped(all), all == 1 ? "" : "s");
  bool first = true;
  for (const auto& [verdict, name] : names) {
    const std::int64_t count = counts[static_cast<std::size_t>(verdict)];
    if (count == 0) continue;
    html += fmt::format("{}<b>{}</b> {}", first ? "" : ", ", grouped(count), name);
    first = false;
  }
  return html + ".</p>";
}

std::string rules(const Evaluation& evaluation, const Analysis& analysis) {
  std::string html = "<section id=\"rules\"><h2>Rules</h2>";
  const std::string text = rules_text(evaluation, analysis);
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    html += fmt::format("<p>{}</p>", escaped(std::string_view(text).substr(at, text.find('\n', at) - at)));
  }
  return html + "</section>";
}

}  // namespace

std::string report_html(const Evaluation& evaluation, const Analysis& analysis) {
  // Nothing is fetched, run or sent, whatever a model has written.
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" "
      "content=\"light dark\"><title>tessera evaluate, {}</title><style>{}</style></head>\n<body><main>",
      escaped(evaluation.date), report_style());
  html += "<header><h1>Quality evaluation</h1>" + headline(evaluation, analysis) + "<dl>";
  html += fact("Date", evaluation.date) + fact("tessera", evaluation.version);
  html += fact("Limit", evaluation.limit == 0 ? "none: all questions" : grouped(evaluation.limit));
  html += fact("Seed", fmt::format("{}", evaluation.seed));
  html += fact("Margin of equivalence", margin_text(evaluation, MetricKind::kAccuracy)) + "</dl>";
  if (!evaluation.command.empty()) html += fmt::format("<pre>{}</pre>", escaped(evaluation.command));
  html += "</header>\n";
  html += plans(evaluation) + '\n';
  html += comparisons_section(evaluation, analysis) + '\n';
  html += results_section(evaluation, analysis) + '\n';
  html += distances_section(evaluation, analysis) + '\n';
  html += flips_section(evaluation, analysis) + '\n';
  html += tasks(evaluation) + '\n';
  html += rules(evaluation, analysis) + "</main></body></html>\n";
  return html;
}

}  // namespace tessera::quality
