#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tessera/quality/report_html_parts.h"
#include "tessera/quality/report_words.h"

namespace tessera::quality {

namespace {

constexpr double kRim = 2.0;      // Percent of the width on both sides, so that a dot at an end is whole.
constexpr double kLine = 18.0;    // Pixels of height for each mark of a strip.
constexpr double kChart = 200.0;  // Of the curves, without their labels.
constexpr double kDifferenceMax = 0.60;
constexpr std::size_t kColours = 8;

// 1, 2 or 5 times a power of ten, such that `range` has some five of them.
double nice_step(double range) {
  const double power = std::pow(10.0, std::floor(std::log10(range / 5.0)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (power * factor) <= 6.0) return power * factor;
  }
  return power * 10.0;
}

template <typename Label>
void linear_ticks(Axis& axis, Label label) {
  const double step = nice_step(axis.high - axis.low);
  for (double i = std::ceil(axis.low / step - 1e-9); i * step <= axis.high + step * 1e-9; i += 1.0) {
    axis.ticks.emplace_back(i * step, label(i * step));
  }
}

// From 0 to `top` at most, ending at whole steps.
Axis around(std::span<const Interval> intervals, double top) {
  double low = top;
  double high = 0.0;
  for (const Interval& interval : intervals) {
    if (!std::isfinite(interval.low) || !std::isfinite(interval.high)) continue;
    low = std::min(low, interval.low);
    high = std::max(high, interval.high);
  }
  Axis axis;
  if (low > high) return axis;
  // One value alone has no range.
  const double step = nice_step(std::max({high - low, 1e-3 * high, 1e-9}));
  axis.low = std::max(0.0, std::floor(low / step) * step);
  axis.high = std::min(top, std::max(std::ceil(high / step) * step, axis.low + step));
  if (axis.high <= axis.low) axis.low = axis.high - step;
  return axis;
}

void vertical(std::string& svg, double x, double height, std::string_view style) {
  fmt::format_to(std::back_inserter(svg), "<line class=\"{}\" x1=\"{:.2f}%\" x2=\"{:.2f}%\" y1=\"0\" y2=\"{:.0f}\"/>",
                 style, x, x, height);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    for (const char c : shown_text(text.substr(0, end))) {
      switch (c) {
        case '&':
          safe += "&amp;";
          break;
        case '<':
          safe += "&lt;";
          break;
        case '>':
          safe += "&gt;";
          break;
        case '"':
          safe += "&quot;";
          break;
        case '\'':
          safe += "&#39;";
          break;
        default:
          safe += c;
      }
    }
    if (end == text.size()) return safe;
    safe += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string colour(std::size_t plan) { return fmt::format("p{}", plan % kColours); }

double Axis::at(double value) const {
  double part = 0.0;
  if (logarithmic) {
    if (value > 0.0) part = (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low));
  } else {
    part = (value - low) / (high - low);
  }
  // Not a number: at the left.
  if (std::isnan(part)) part = 0.0;
  return kRim + (100.0 - 2.0 * kRim) * std::clamp(part, 0.0, 1.0);
}

Axis share_axis(std::span<const Interval> intervals) {
  Axis axis = around(intervals, 1.0);
  linear_ticks(axis, [](double x) { return fmt::format("{:g}", std::round(x * 1e4) / 1e2); });
  return axis;
}

Axis value_axis(std::span<const Interval> intervals) {
  Axis axis = around(intervals, 1e300);
  linear_ticks(axis, [](double x) { return fmt::format("{:.4g}", x); });
  return axis;
}

Axis difference_axis(std::span<const Interval> intervals, double margin) {
  double reach = 1.5 * margin;
  for (const Interval& interval : intervals) {
    for (const double end : {interval.low, interval.high}) {
      if (std::isfinite(end)) reach = std::max(reach, std::abs(end));
    }
  }
  reach = std::clamp(reach, 1e-4, kDifferenceMax);
  Axis axis;
  axis.low = -1.05 * reach;
  axis.high = 1.05 * reach;
  linear_ticks(axis, [](double x) {
    const double points = std::round(x * 1e4) / 1e2;
    return points == 0.0 ? std::string("0") : fmt::format("{:+g}", points);
  });
  return axis;
}

Axis decade_axis(std::span<const double> values) {
  double low = 1e300;
  double high = 0.0;
  for (const double value : values) {
    if (!(value > 0.0) || !std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (high == 0.0) {
    low = 1e-3;
    high = 1.0;
  }
  double first = std::floor(std::log10(low));
  const double last = std::max(first + 1.0, std::ceil(std::log10(high)));
  first = std::max(first, last - 12.0);
  Axis axis{.low = std::pow(10.0, first), .high = std::pow(10.0, last), .logarithmic = true};
  const double step = std::ceil((last - first) / 6.0);
  for (double decade = first; decade <= last; decade += step) {
    axis.ticks.emplace_back(std::pow(10.0, decade), fmt::format("1e{:.0f}", decade));
  }
  return axis;
}

std::string strip(const Axis& axis, std::span<const Mark> marks, const StripOptions& options) {
  const double height = kLine * static_cast<double>(std::max<std::size_t>(marks.size(), 1));
  std::string svg = fmt::format("<svg class=\"strip\" width=\"100%\" height=\"{:.0f}\" role=\"img\" aria-label=\"{}\">",
                                height, escaped(options.label));
  const auto out = std::back_inserter(svg);
  if (options.band.low < options.band.high) {
    const double left = axis.at(options.band.low);
    fmt::format_to(out, "<rect class=\"band\" x=\"{:.2f}%\" width=\"{:.2f}%\" y=\"0\" height=\"{:.0f}\"/>", left,
                   axis.at(options.band.high) - left, height);
  }
  for (const auto& [value, label] : axis.ticks) vertical(svg, axis.at(value), height, "grid");
  if (options.at >= axis.low && options.at <= axis.high) vertical(svg, axis.at(options.at), height, "mark");
  double y = 0.5 * kLine;
  for (const Mark& mark : marks) {
    if (!mark.drawn) {
      y += kLine;
      continue;
    }
    fmt::format_to(out, "<g class=\"{}\"><line x1=\"{:.2f}%\" x2=\"{:.2f}%\" y1=\"{:.0f}\" y2=\"{:.0f}\"/>",
                   colour(mark.plan), axis.at(mark.interval.low), axis.at(mark.interval.high), y, y);
    for (const double tick : mark.ticks) {
      fmt::format_to(out, "<line class=\"thin\" x1=\"{:.2f}%\" x2=\"{:.2f}%\" y1=\"{:.0f}\" y2=\"{:.0f}\"/>",
                     axis.at(tick), axis.at(tick), y - 5.0, y + 5.0);
    }
    fmt::format_to(out, "<circle cx=\"{:.2f}%\" cy=\"{:.0f}\" r=\"4\"/></g>", axis.at(mark.value), y);
    y += kLine;
  }
  return svg + "</svg>";
}

std::string axis_labels(const Axis& axis, std::string_view unit) {
  std::string svg = "<svg class=\"axis\" width=\"100%\" height=\"30\" aria-hidden=\"true\">";
  const auto out = std::back_inserter(svg);
  for (const auto& [value, label] : axis.ticks) {
    const double x = axis.at(value);
    const std::string_view anchor = x < 10.0 ? "start" : x > 90.0 ? "end" : "middle";
    fmt::format_to(out, "<text x=\"{:.2f}%\" y=\"12\" text-anchor=\"{}\">{}</text>", x, anchor, label);
  }
  fmt::format_to(out, "<text x=\"50%\" y=\"27\" text-anchor=\"middle\">{}</text></svg>", escaped(unit));
  return svg;
}

std::string curves(const Axis& y, std::span<const std::string> labels, std::span<const Curve> lines,
                   std::string_view label) {
  std::string svg = fmt::format("<svg class=\"chart\" width=\"100%\" height=\"{:.0f}\" role=\"img\" aria-label=\"{}\">",
                                kChart + 24.0, escaped(label));
  const auto out = std::back_inserter(svg);
  // The axis gives percentages of a width; here they are a height, from below.
  const auto at = [&](double value) { return kChart * (1.0 - y.at(value) / 100.0); };
  constexpr double kLeft = 12.0;
  const double width = (100.0 - kLeft) / static_cast<double>(std::max<std::size_t>(labels.size(), 1));
  const auto x = [&](std::size_t index) { return kLeft + width * (static_cast<double>(index) + 0.5); };
  for (const auto& [value, text] : y.ticks) {
    fmt::format_to(out, "<line class=\"grid\" x1=\"{:.0f}%\" x2=\"100%\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft,
                   at(value), at(value));
    fmt::format_to(out, "<text x=\"{:.0f}%\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 1.0, at(value) + 4.0,
                   text);
  }
  for (std::size_t i = 0; i < labels.size(); ++i) {
    fmt::format_to(out, "<text x=\"{:.2f}%\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>", x(i), kChart + 16.0,
                   escaped(labels[i]));
  }
  for (std::size_t line = 0; line < lines.size(); ++line) {
    fmt::format_to(out, "<g class=\"{}\">", colour(lines[line].plan));
    // Beside each other, so that no interval hides another.
    const double aside = width * 0.08 * (static_cast<double>(line) - 0.5 * static_cast<double>(lines.size() - 1));
    const auto& points = lines[line].points;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto& [index, estimate] = points[i];
      const double here = x(index) + aside;
      fmt::format_to(out, "<line class=\"thin\" x1=\"{:.2f}%\" x2=\"{:.2f}%\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", here,
                     here, at(estimate.interval.low), at(estimate.interval.high));
      if (i > 0) {
        fmt::format_to(out, "<line x1=\"{:.2f}%\" x2=\"{:.2f}%\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                       x(points[i - 1].first) + aside, here, at(points[i - 1].second.value), at(estimate.value));
      }
      fmt::format_to(out, "<circle cx=\"{:.2f}%\" cy=\"{:.1f}\" r=\"3\"/>", here, at(estimate.value));
    }
    svg += "</g>";
  }
  return svg + "</svg>";
}

std::string legend(const Evaluation& evaluation, std::size_t first_plan) {
  std::string html = "<p class=\"legend\">";
  for (std::size_t plan = first_plan; plan < evaluation.plans.size(); ++plan) {
    html += fmt::format("<span><i class=\"{}\"></i>{}</span> ", colour(plan), escaped(plan_name(evaluation, plan)));
  }
  return html + "</p>";
}

}  // namespace tessera::quality
