// The three reports of one evaluation say the same, and nothing that a model wrote gets out of them.
#include "tessera/quality/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tessera/quality/report_html_parts.h"
#include "tessera/quality/report_words.h"
#include "tessera/quality/sample_evaluation.h"
#include "tessera/text/utf8.h"

namespace tessera::quality {
namespace {

struct Reports {
  Evaluation evaluation;
  Analysis analysis;
  std::string text;
  boost::json::value json;
  std::string html;
};

Reports reports_of(Evaluation evaluation) {
  Reports reports;
  reports.evaluation = std::move(evaluation);
  reports.analysis = analyse(reports.evaluation);
  reports.text = report_text(reports.evaluation, reports.analysis);
  reports.json = boost::json::parse(report_json(reports.evaluation, reports.analysis, true));
  reports.html = report_html(reports.evaluation, reports.analysis);
  return reports;
}

const Reports& full() {
  static const Reports reports = reports_of(sample::full_evaluation(3));
  return reports;
}

// Elements that are open at the end, or that were closed without being open; and every name of an element.
struct Elements {
  std::vector<std::string> wrong;
  std::set<std::string> names;
};

Elements elements_of(std::string_view html) {
  const std::set<std::string> empty{"meta", "br", "line", "rect", "circle", "!DOCTYPE"};
  Elements elements;
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string_view::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    const std::string_view tag = html.substr(at + 1, end - at - 1);
    const std::string name(tag.substr(0, tag.find_first_of(" /", 1)));
    if (name.starts_with('/')) {
      if (open.empty() || open.back() != name.substr(1)) {
        elements.wrong.push_back(name);
        return elements;
      }
      open.pop_back();
      continue;
    }
    elements.names.insert(name);
    if (!tag.ends_with('/') && !empty.contains(name)) open.push_back(name);
  }
  elements.wrong.insert(elements.wrong.end(), open.begin(), open.end());
  return elements;
}

void expect_terminal_text(const std::string& text) {
  ASSERT_TRUE(text::is_valid_utf8(text));
  std::size_t columns = 0;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(text::utf8_length(rest[0]))) {
    const char32_t c = text::utf8_code_point(rest);
    EXPECT_FALSE((c < 0x20 && c != '\n') || (c >= 0x7F && c < 0xA0)) << static_cast<unsigned>(c);
    // U+2E80 and up are two columns wide.
    columns = c == '\n' ? 0 : columns + (c >= 0x2E80 && c != 0xFFFD ? 2 : 1);
    ASSERT_LE(columns, 120U) << rest.substr(0, 40);
  }
}

TEST(Report, TextFitsATerminalAndHidesNothing) {
  const Reports& reports = full();
  expect_terminal_text(reports.text);
  for (const char* const words :
       {"equivalent within 2 points", "not enough data", "different", "same to the bit", "above noise",
        "different, within 2%", "10.00%", "digest 0123456789abcdef", "15 comparison(s)"}) {
    EXPECT_TRUE(reports.text.contains(words)) << words;
  }
}

// Boost.JSON reads a double to within its last bit.
TEST(Report, JsonHasEveryNumberOfTheAnalysis) {
  const Reports& reports = full();
  const boost::json::value& json = reports.json;
  EXPECT_EQ(json.at("plans").as_array().size(), 4U);
  EXPECT_EQ(json.at("plans").at(3).at("name").as_string(), "<b>int4</b>");
  EXPECT_EQ(json.at("repetition").as_string(), "again");
  for (std::size_t task = 0; task < reports.analysis.tasks.size(); ++task) {
    const TaskAnalysis& analysis = reports.analysis.tasks[task];
    const boost::json::value& object = json.at("tasks").at(task);
    ASSERT_EQ(object.at("values").as_array().size(), analysis.values.size());
    ASSERT_EQ(object.at("comparisons").as_array().size(), analysis.comparisons.size());
    EXPECT_EQ(object.at("flips").as_array().size(), analysis.flips.size());
    for (std::size_t i = 0; i < analysis.comparisons.size(); ++i) {
      const Comparison& one = analysis.comparisons[i];
      const boost::json::value& found = object.at("comparisons").at(i);
      EXPECT_DOUBLE_EQ(found.at("difference").to_number<double>(), one.difference);
      EXPECT_DOUBLE_EQ(found.at("interval").at(0).to_number<double>(), one.interval.low);
      EXPECT_DOUBLE_EQ(found.at("interval").at(1).to_number<double>(), one.interval.high);
      EXPECT_DOUBLE_EQ(found.at("p_adjusted").to_number<double>(), one.p_adjusted);
      EXPECT_EQ(std::string(found.at("verdict").as_string()), verdict_name(one.verdict));
      EXPECT_EQ(found.at("counts").is_null(), task != 0);
    }
    EXPECT_DOUBLE_EQ(object.at("values").at(0).at("value").to_number<double>(), analysis.values[0].result->value);
  }
  const DistanceSummary& summary = reports.analysis.distances[0].summaries[3];
  const boost::json::value& found = json.at("distances").at(0).at("summaries").at(3);
  EXPECT_DOUBLE_EQ(found.at("kl").at("value").to_number<double>(), summary.kl.value);
  EXPECT_DOUBLE_EQ(found.at("kl_p99").to_number<double>(), summary.kl_p99);
  EXPECT_EQ(found.at("by_position").as_array().size(), summary.bins.size());
  EXPECT_EQ(json.at("tasks").at(0).at("outcomes").at("bf16").as_array().size(), 600U);
  const boost::json::value without = boost::json::parse(report_json(reports.evaluation, reports.analysis));
  EXPECT_FALSE(without.at("tasks").at(0).as_object().contains("outcomes"));
}

TEST(Report, PageIsWholeAndReachesForNothing) {
  const std::string& html = full().html;
  const Elements elements = elements_of(html);
  EXPECT_THAT(elements.wrong, ::testing::IsEmpty());
  for (const char* const name : {"script", "img", "link", "iframe", "object", "form", "a", "image", "use"}) {
    EXPECT_FALSE(elements.names.contains(name)) << name;
  }
  for (const char* const way_out : {"http://", "https://", "url(", "@import", "src=", "href=", "<script", "<b>int4"}) {
    EXPECT_FALSE(html.contains(way_out)) << way_out;
  }
  EXPECT_TRUE(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;")) << "&lt;script&gt;alert(1)&lt;/script&gt;";
  EXPECT_TRUE(html.contains("&lt;b&gt;int4&lt;/b&gt;")) << "&lt;b&gt;int4&lt;/b&gt;";
  EXPECT_FALSE(html.contains("\x1b")) << "\x1b";
  EXPECT_TRUE(text::is_valid_utf8(html));
  EXPECT_TRUE(html.contains("prefers-color-scheme:dark")) << "prefers-color-scheme:dark";
  // No position of a plot is off its plot or no number.
  EXPECT_FALSE(html.contains("nan")) << "nan";
  EXPECT_FALSE(html.contains("=\"inf%")) << "=\"inf%";
}

TEST(Report, AllThreeGiveEveryVerdict) {
  const Reports& reports = full();
  for (const TaskAnalysis& task : reports.analysis.tasks) {
    for (const Comparison& one : task.comparisons) {
      const MetricKind kind = reports.evaluation.tasks[task.task].task.metrics[one.metric].kind;
      const std::string interval = points_range_text(one.interval);
      EXPECT_TRUE(reports.text.contains(interval)) << interval;
      EXPECT_TRUE(reports.html.contains(interval)) << interval;
      const std::string words = fmt::format("<div class=\"{}\">{}</div>", verdict_name(one.verdict),
                                            verdict_text(reports.evaluation, one, kind));
      EXPECT_TRUE(reports.html.contains(words)) << words;
    }
  }
}

TEST(Report, EdgesAreWritten) {
  const Reports nothing = reports_of({});
  EXPECT_THAT(elements_of(nothing.html).wrong, ::testing::IsEmpty());
  EXPECT_TRUE(nothing.json.at("tasks").as_array().empty());
  Evaluation evaluation = sample::full_evaluation(5);
  evaluation.command = std::string(500, 'x') + " --plan " + std::string(130, 'y');
  evaluation.plans[2].name = "";
  evaluation.plans[3].name = std::string(200, 'z') + "\xe4\xb8\xad\xe4\xb8\xad\n\x1b]0;title\x07";
  evaluation.tasks[1].by_plan.clear();
  for (std::vector<Outcome>& outcomes : evaluation.tasks[2].by_plan) outcomes.resize(1);
  for (std::size_t i = 0; i < evaluation.tasks[0].by_plan[0].size(); ++i) {
    for (std::vector<Outcome>& outcomes : evaluation.tasks[0].by_plan) {
      outcomes[i].cell = fmt::format("cell \xf0\x9f\x98\x80 {}", i % 60);
    }
  }
  evaluation.distances[1].passages[3].positions[2].kl = std::numeric_limits<double>::infinity();
  const Reports reports = reports_of(evaluation);
  expect_terminal_text(reports.text);
  EXPECT_TRUE(reports.text.contains("has 60 cells")) << "has 60 cells";
  EXPECT_THAT(elements_of(reports.html).wrong, ::testing::IsEmpty());
  EXPECT_FALSE(reports.html.contains("=\"inf%")) << "=\"inf%";
  EXPECT_FALSE(reports.html.contains("nan")) << "nan";
  EXPECT_EQ(reports.json.at("plans").at(2).at("name").as_string(), "plan 3");
  EXPECT_TRUE(reports.json.at("distances").at(0).at("summaries").at(3).at("kl_worst").is_null());
}

TEST(Report, WordsOfModelsAreShownWithoutHarm) {
  EXPECT_EQ(shown_text("a\tb\x1b[1m\xff\xc3"), "a b [1m\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(shown_text("\xe2\x80\xae"), " ");
  EXPECT_EQ(escaped("<a href='x'>\n&\"\r"), "&lt;a href=&#39;x&#39;&gt;\n&amp;&quot; ");
  EXPECT_EQ(escaped(""), "");
  EXPECT_EQ(escaped("\n"), "\n");
}

TEST(Report, NumbersReadAsPeopleWriteThem) {
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(share_text(0.72349), "72.35%");
  EXPECT_EQ(points_text(-0.00001), "0.00");
  EXPECT_EQ(points_range_text({-0.012, 0.0301}), "-1.20 to +3.01");
  EXPECT_EQ(kl_text(0.0), "0");
  EXPECT_EQ(kl_text(1.2345e-5), "1.23e-05");
  EXPECT_EQ(p_text(0.00001), "<0.0001");
}

std::size_t count_of(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(Report, APlanWithoutAResultHasAnEmptyLine) {
  Evaluation evaluation = sample::full_evaluation(3);
  const auto circles = [&] { return count_of(results_section(evaluation, analyse(evaluation)), "<circle"); };
  const std::size_t all = circles();
  for (Outcome& outcome : evaluation.tasks[1].by_plan[2]) outcome.scores = {{"calls", 0.0}, {"valid", 0.0}};
  EXPECT_EQ(circles(), all - 1);
  const std::vector<Mark> marks{{.plan = 0, .drawn = false},
                                {.plan = 1, .interval = {.low = 0.2, .high = 0.4}, .value = 0.3}};
  const std::string plot = strip(share_axis(std::vector<Interval>{{0.0, 1.0}}), marks, {});
  EXPECT_EQ(count_of(plot, "<circle"), 1U);
  // It keeps the place of its line: the next plan's is the second.
  const std::string second =
      strip(share_axis(std::vector<Interval>{{0.0, 1.0}}), std::vector<Mark>{marks[1], marks[1]}, {});
  EXPECT_EQ(plot.substr(plot.find("<circle")), second.substr(second.rfind("<circle")));
}

TEST(Report, AxesHoldWhatTheyShow) {
  const std::vector<Interval> shares{{0.52, 0.61}, {0.555, 0.7}};
  const Axis axis = share_axis(shares);
  EXPECT_LE(axis.low, 0.52);
  EXPECT_GE(axis.high, 0.7);
  EXPECT_GE(axis.ticks.size(), 3U);
  EXPECT_LE(axis.ticks.size(), 9U);
  EXPECT_LT(axis.at(0.55), axis.at(0.6));
  const Axis decades = decade_axis(std::vector<double>{3e-5, 0.2, 0.0});
  EXPECT_NEAR(decades.low, 1e-5, 1e-12);
  EXPECT_NEAR(decades.high, 1.0, 1e-12);
  EXPECT_NEAR(decades.at(1e-3) - decades.at(1e-4), decades.at(1e-2) - decades.at(1e-3), 1e-9);
  EXPECT_EQ(decades.at(0.0), decades.at(1e-9));
  const Axis one = value_axis(std::vector<Interval>{{7.0, 7.0}});
  EXPECT_LT(one.low, one.high);
  const Axis whole = share_axis(std::vector<Interval>{{1.0, 1.0}});
  EXPECT_LT(whole.low, whole.high);
}

}  // namespace
}  // namespace tessera::quality
