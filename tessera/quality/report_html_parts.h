// The pieces of the report's page: text that is safe in HTML, and plots as SVG whose x are percentages, so that a plot
// is as wide as its column on any screen while its text keeps its size.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/quality/analysis.h"

namespace tessera::quality {

// Text of anybody's as text of the page: well-formed, without control characters but line ends, nothing in it markup,
// in elements as in quoted attributes.
std::string escaped(std::string_view text);
// The CSS class that gives a plan its colour.
std::string colour(std::size_t plan);
std::string_view report_style();  // CSS

struct Axis {
  double low = 0.0;
  double high = 1.0;
  bool logarithmic = false;  // low and high are positive; what is not lies at the left end.
  std::vector<std::pair<double, std::string>> ticks = {};
  // Where a value lies, in percent of the width, with a rim; what is outside lies at the rim.
  double at(double value) const;
};
// Around all intervals: of shares, within 0 to 1 and labelled in percent; of other measures that are not negative.
Axis share_axis(std::span<const Interval> intervals);
Axis value_axis(std::span<const Interval> intervals);
// Symmetric around 0, labelled in points; not wider than 60 points: what reaches farther is cut off.
Axis difference_axis(std::span<const Interval> intervals, double margin);
// Decades around all positive values.
Axis decade_axis(std::span<const double> values);

struct Mark {
  std::size_t plan = 0;
  bool drawn = true;  // Else its line stays empty: there is no value.
  Interval interval = {};
  double value = 0.0;
  std::vector<double> ticks = {};  // Further values, as short strokes.
};
// One line for each mark, over the grid of the axis. `band`: a shaded range, none where it is empty; `at`: a dashed
// line (chance, or no difference), none outside the axis.
struct StripOptions {
  Interval band = {};
  double at = -1e300;
  std::string label = {};  // What it shows, for those who do not see it.
};
std::string strip(const Axis& axis, std::span<const Mark> marks, const StripOptions& options);
std::string axis_labels(const Axis& axis, std::string_view unit);

// Lines over bins of position, one for each plan, y on the axis.
struct Curve {
  std::size_t plan = 0;
  std::vector<std::pair<std::size_t, Estimate>> points = {};  // Index into the labels.
};
std::string curves(const Axis& y, std::span<const std::string> labels, std::span<const Curve> lines,
                   std::string_view label);

// The plans' names with their colours.
std::string legend(const Evaluation& evaluation, std::size_t first_plan);

// The sections.
std::string results_section(const Evaluation& evaluation, const Analysis& analysis);
std::string comparisons_section(const Evaluation& evaluation, const Analysis& analysis);
std::string flips_section(const Evaluation& evaluation, const Analysis& analysis);
std::string distances_section(const Evaluation& evaluation, const Analysis& analysis);

}  // namespace tessera::quality
