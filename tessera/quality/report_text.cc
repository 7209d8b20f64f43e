#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/quality/report.h"
#include "tessera/quality/report_words.h"
#include "tessera/text/utf8.h"

namespace tessera::quality {

namespace {

constexpr std::size_t kColumns = 120;
constexpr std::size_t kCellsShown = 24;  // A task with more cells shows those that say something; the JSON has all.
constexpr std::size_t kFlipsShown = 10;  // Of one plan and task.

// Columns that a character takes in a terminal: two for what may be wide (East Asian scripts, emoji), so that a line is
// rather too short than too long.
std::size_t width_of(char32_t c) { return c >= 0x1100 && !(c >= 0x2000 && c < 0x2190) && c != 0xFFFD ? 2 : 1; }

std::size_t width(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    columns += width_of(text::utf8_code_point(text));
    text.remove_prefix(text::utf8_length(text[0]));
  }
  return columns;
}

// At most `columns` of it, with "..." where it was cut. It has been through shown_text.
std::string cut(std::string_view text, std::size_t columns) {
  if (width(text) <= columns) return std::string(text);
  std::string result;
  std::size_t used = 3;
  while (!text.empty()) {
    const std::size_t length = text::utf8_length(text[0]);
    used += width_of(text::utf8_code_point(text));
    if (used > columns) break;
    result += text.substr(0, length);
    text.remove_prefix(length);
  }
  return result + "...";
}

// Columns as wide as their widest cell; the first ones, which hold names, flush left, the rest flush right, but the
// last where it holds words. Names give way where a line would be too long.
class Table {
 public:
  Table(std::vector<std::string> head, std::size_t names, bool words_last)
      : names_(names), words_last_(words_last), rows_{std::move(head)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string text() const {
    if (rows_.size() == 1) return {};
    std::vector<std::size_t> widths(rows_[0].size(), 0);
    for (const std::vector<std::string>& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
    }
    fit(widths);
    std::string text;
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string cell = cut(row[i], widths[i]);
        const std::string padding(widths[i] - width(cell), ' ');
        const bool left = i < names_ || (words_last_ && i + 1 == row.size());
        if (i > 0) line += "  ";
        line += left ? cell + padding : padding + cell;
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
    return text;
  }

 private:
  void fit(std::vector<std::size_t>& widths) const {
    while (true) {
      std::size_t total = 2 * (widths.size() - 1);
      for (const std::size_t w : widths) total += w;
      const auto widest = std::max_element(widths.begin(), widths.begin() + static_cast<std::ptrdiff_t>(names_));
      if (total <= kColumns || *widest <= 8) return;
      *widest -= std::min(total - kColumns, *widest - 8);
    }
  }

  std::size_t names_;
  bool words_last_;
  std::vector<std::vector<std::string>> rows_;
};

// Breaks between words.
std::string wrapped(std::string_view text, std::string_view indent) {
  std::string out;
  std::string line(indent);
  std::size_t used = indent.size();
  bool begun = false;
  while (!text.empty()) {
    const std::string word = cut(text.substr(0, text.find(' ')), kColumns - indent.size());
    text.remove_prefix(
        std::min(text.size(), text.find(' ') == std::string_view::npos ? text.size() : text.find(' ') + 1));
    if (begun && used + 1 + width(word) > kColumns) {
      out += line + '\n';
      line = indent;
      used = indent.size();
      begun = false;
    }
    if (begun) line += ' ';
    line += word;
    used += width(word) + (begun ? 1 : 0);
    begun = true;
  }
  return out + line + '\n';
}

std::string heading(std::string_view title) { return fmt::format("\n{}\n{}\n", title, std::string(title.size(), '-')); }

std::string header_text(const Evaluation& evaluation) {
  std::string text =
      fmt::format("tessera evaluate {}, {}\n", shown_text(evaluation.version), shown_text(evaluation.date));
  if (!evaluation.command.empty()) text += wrapped(shown_text(evaluation.command), "  ");
  text +=
      fmt::format("limit {}, seed {}\n", evaluation.limit == 0 ? "none" : grouped(evaluation.limit), evaluation.seed);
  text += heading("Plans");
  for (std::size_t plan = 0; plan < evaluation.plans.size(); ++plan) {
    const PlanInfo& info = evaluation.plans[plan];
    std::string line = fmt::format("{}{}: {}", plan_name(evaluation, plan), plan == 0 ? " (reference)" : "",
                                   shown_text(info.description));
    line += fmt::format("; model {}", shown_text(info.respondent.model));
    if (!info.respondent.precision.empty()) line += fmt::format("; {}", shown_text(info.respondent.precision));
    if (!info.respondent.digest.empty()) line += fmt::format("; digest {}", shown_text(info.respondent.digest));
    text += wrapped(line, "  ");
  }
  return text;
}

class Writer {
 public:
  Writer(const Evaluation& evaluation, const Analysis& analysis) : evaluation_(evaluation), analysis_(analysis) {}

  std::string text() const {
    std::string text = header_text(evaluation_);
    text += section("Results", values());
    text += section("Compared with the reference", comparisons());
    text += section("Questions that flipped", flips());
    text += distances();
    text += heading("Rules");
    const std::string rules = rules_text(evaluation_, analysis_);
    for (std::size_t at = 0; at < rules.size(); at = rules.find('\n', at) + 1) {
      text += wrapped(std::string_view(rules).substr(at, rules.find('\n', at) - at), "  ");
    }
    return text;
  }

 private:
  static std::string section(std::string_view title, const std::string& body) {
    return body.empty() ? body : heading(title) + body;
  }

  const TaskInfo& info(const TaskAnalysis& task) const { return evaluation_.tasks[task.task].task; }

  std::string row_title(const TaskAnalysis& task, std::size_t metric, const std::string& cell) const {
    return cell.empty() ? shown_text(metric_title(info(task), metric)) : "  " + shown_text(cell);
  }

  // Whether a cell has a row in the table.
  static bool shown(const TaskAnalysis& task, const std::string& cell) {
    if (cell.empty() || task.cells.size() <= kCellsShown) return true;
    return std::ranges::any_of(task.comparisons, [&](const Comparison& one) {
      return one.cell == cell && (one.verdict == Verdict::kDifferent || one.verdict == Verdict::kDifferentWithin);
    });
  }

  std::string values() const {
    Table table({"task", "plan", "questions", "skipped", "result", "95% interval", "chance"}, 2, false);
    for (const TaskAnalysis& task : analysis_.tasks) {
      for (const MetricValue& value : task.values) {
        if (!shown(task, value.cell)) continue;
        const MetricKind kind = info(task).metrics[value.metric].kind;
        const bool chance = info(task).chance.has_value() && value.metric == 0;
        table.add({row_title(task, value.metric, value.cell), plan_name(evaluation_, value.plan),
                   grouped(value.questions), grouped(value.skipped), value_text(value, kind),
                   value_range_text(value, kind), chance ? share_text(*info(task).chance) : ""});
      }
    }
    return table.text() + cells_left_out();
  }

  std::string cells_left_out() const {
    std::string text;
    for (const TaskAnalysis& task : analysis_.tasks) {
      if (task.cells.size() <= kCellsShown) continue;
      text += wrapped(fmt::format("{} has {} cells: shown are those that differ; the JSON report has all.",
                                  shown_text(info(task).name), task.cells.size()),
                      "  ");
    }
    return text;
  }

  std::string comparisons() const {
    Table table({"task", "plan", "pairs", "lost", "won", "difference", "95% interval", "p (Holm)", "verdict"}, 2, true);
    std::string open;
    for (const TaskAnalysis& task : analysis_.tasks) {
      for (const Comparison& one : task.comparisons) {
        if (!shown(task, one.cell)) continue;
        const MetricKind kind = info(task).metrics[one.metric].kind;
        const bool counted = kind == MetricKind::kAccuracy;
        const bool some = one.questions > 0;
        const std::string unit = is_relative(kind) ? "%" : "";
        table.add({row_title(task, one.metric, one.cell), plan_name(evaluation_, one.plan), grouped(one.questions),
                   counted ? grouped(one.counts.lost) : "", counted ? grouped(one.counts.won) : "",
                   some ? points_text(one.difference) + unit : "-", some ? points_range_text(one.interval) : "-",
                   some ? p_text(one.p_adjusted) : "-", verdict_text(evaluation_, one, kind)});
        const std::string needs = open_text(evaluation_, one, kind);
        if (one.cell.empty() && !needs.empty()) {
          open += wrapped(fmt::format("{}, {}: {}.", shown_text(metric_title(info(task), one.metric)),
                                      plan_name(evaluation_, one.plan), needs),
                          "  ");
        }
      }
    }
    std::string text = table.text();
    if (text.empty()) return text;
    return text +
           "Differences are in points, the plan's less the reference's; of perplexities and means in percent.\n" +
           (open.empty() ? "" : "Not enough data:\n" + open);
  }

  std::string flips() const {
    std::string text;
    for (const TaskAnalysis& task : analysis_.tasks) {
      for (std::size_t plan = 1; plan < evaluation_.plans.size(); ++plan) {
        std::size_t count = 0;
        for (const Flip& flip : task.flips) {
          if (flip.plan != plan || ++count > kFlipsShown) continue;
          text += cut(fmt::format("{} {}, {}: {}", shown_text(info(task).name), shown_text(flip.question),
                                  plan_name(evaluation_, plan), flip_words(task, flip)),
                      kColumns) +
                  '\n';
          text += cut("  expected   " + shown_text(flip.expected), kColumns) + '\n';
          text += cut("  reference  " + shown_text(flip.reference_answer), kColumns) + '\n';
          text += cut("  plan       " + shown_text(flip.other_answer), kColumns) + '\n';
        }
        if (count > kFlipsShown) {
          text += wrapped(fmt::format("{}, {}: {} more", shown_text(info(task).name), plan_name(evaluation_, plan),
                                      grouped(static_cast<std::int64_t>(count - kFlipsShown))),
                          "");
        }
      }
    }
    return text;
  }

  std::string flip_words(const TaskAnalysis& task, const Flip& flip) const {
    const auto names = [&](const std::vector<std::string>& metrics) {
      std::string text;
      if (info(task).metrics.size() == 1) return text;
      for (const std::string& metric : metrics) text += ' ' + shown_text(metric);
      return text;
    };
    std::string text = flip.lost.empty() ? "" : "lost" + names(flip.lost);
    if (!flip.won.empty()) text += (text.empty() ? "won" : ", won") + names(flip.won);
    return text;
  }

  std::string distances() const {
    Table table({"task", "plan", "passages", "mean KL", "95% interval", "p99", "worst", "top-1", "overlap", "word"}, 2,
                true);
    Table bins({"task", "plan", "position", "passages", "mean KL", "95% interval", "top-1"}, 2, false);
    Table pairs({"task", "plan", "with", "passages", "difference", "95% interval", "p (Holm)", "apart"}, 3, false);
    Table worst({"task", "question", "plan", "position", "KL", "best", "plan's best"}, 3, false);
    for (const DistanceAnalysis& task : analysis_.distances) {
      const std::string name = shown_text(task.task);
      for (const DistanceSummary& one : task.summaries) {
        const std::string plan = plan_name(evaluation_, one.plan);
        table.add({one.cell.empty() ? name : "  " + shown_text(one.cell), plan, grouped(one.passages),
                   kl_text(one.kl.value), kl_range_text(one.kl.interval), kl_text(one.kl_p99), kl_text(one.kl_worst),
                   share_text(one.agreement.value), fmt::format("{:.4f}", one.overlap.value),
                   distance_word_text(one.word)});
        for (const PositionBin& bin : one.bins) {
          bins.add({name, plan, bin_text(bin), grouped(bin.passages), kl_text(bin.kl.value),
                    kl_range_text(bin.kl.interval), share_text(bin.agreement.value)});
        }
      }
      for (const DistancePair& pair : task.pairs) {
        pairs.add({name, plan_name(evaluation_, pair.first), plan_name(evaluation_, pair.second),
                   grouped(pair.passages), kl_text(pair.difference), kl_range_text(pair.interval),
                   p_text(pair.p_adjusted), pair.apart ? "yes" : "no"});
      }
      for (const WorstPosition& one : task.worst) {
        worst.add({name, shown_text(one.question), plan_name(evaluation_, one.plan), grouped(one.distance.position),
                   kl_text(one.distance.kl), fmt::format("{}", one.distance.reference_best),
                   fmt::format("{}", one.distance.other_best)});
      }
    }
    return section("KL divergence from the reference under teacher forcing (nats)", table.text()) +
           section("The same by position in the text", bins.text()) +
           section("Do two plans lie equally far from the reference? (the second's mean KL less the first's)",
                   pairs.text()) +
           section("Positions that lie farthest apart (token ids)", worst.text());
  }

  const Evaluation& evaluation_;
  const Analysis& analysis_;
};

}  // namespace

std::string report_text(const Evaluation& evaluation, const Analysis& analysis) {
  return Writer(evaluation, analysis).text();
}

}  // namespace tessera::quality
