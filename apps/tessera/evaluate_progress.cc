#include "evaluate_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace tessera::app {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::seconds kLogInterval{10};

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02d} min", whole / 3600, whole / 60 % 60);
}

double score(const quality::Outcome& outcome, const std::string& name) {
  const auto at = outcome.scores.find(name);
  return at == outcome.scores.end() ? 0.0 : at->second;
}

}  // namespace

EvaluateProgress::EvaluateProgress(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

void EvaluateProgress::begin(std::string what, std::size_t total) {
  what_ = std::move(what);
  metric_ = {};
  total_ = total;
  finished_ = found_ = judged_ = 0;
  numerator_ = denominator_ = 0.0;
  start_ = Clock::now();
  shown_ = {};
  if (!terminal_) shown_ = start_;  // The first line of a log comes when there is something to say.
}

void EvaluateProgress::asking(std::string_view plan, const quality::TaskInfo& task, std::size_t total) {
  begin(fmt::format("{}, {}", plan, task.name), total);
  if (!task.metrics.empty()) metric_ = task.metrics.front();
}

void EvaluateProgress::answered(const quality::Outcome& outcome, bool found) {
  found_ += found ? 1 : 0;
  if (outcome.skipped.empty()) {
    ++judged_;
    const bool mean = metric_.kind == quality::MetricKind::kAccuracy;
    numerator_ += score(outcome, mean ? metric_.name : metric_.numerator);
    denominator_ += mean ? 1.0 : score(outcome, metric_.denominator);
  }
  advance();
}

void EvaluateProgress::comparing(std::size_t total, std::size_t found) {
  begin("distances", total);
  finished_ = found_ = found;
}

void EvaluateProgress::compared() { advance(); }

void EvaluateProgress::advance() {
  ++finished_;
  const Clock::time_point now = Clock::now();
  if (finished_ == total_) return;  // done() shows the end.
  if (now - shown_ < (terminal_ ? Clock::duration(kTerminalInterval) : Clock::duration(kLogInterval))) return;
  shown_ = now;
  show(false);
}

void EvaluateProgress::done() { show(true); }

std::string EvaluateProgress::so_far() const {
  if (judged_ == 0 || denominator_ == 0.0) return {};
  switch (metric_.kind) {
    case quality::MetricKind::kAccuracy:
    case quality::MetricKind::kRate:
      return fmt::format(", {} {:.1f}%", metric_.name, 100.0 * numerator_ / denominator_);
    case quality::MetricKind::kMean:
      return fmt::format(", {} {:.3f}", metric_.name, numerator_ / denominator_);
    case quality::MetricKind::kPerplexity:
      return fmt::format(", {} {:.3f}", metric_.name, std::exp(-numerator_ / denominator_));
  }
  return {};
}

std::string EvaluateProgress::line() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto fresh = static_cast<double>(finished_ - found_);
  std::string text = fmt::format("{}: {}/{}", what_, finished_, total_);
  if (found_ > 0) text += fmt::format(" ({} from the journal)", found_);
  if (fresh > 0 && seconds > 0.0) text += fmt::format(", {:.3g}/s", fresh / seconds);
  if (finished_ < total_ && fresh > 0) {
    text += fmt::format(", {} left", duration(static_cast<double>(total_ - finished_) * seconds / fresh));
  }
  if (finished_ == total_) text += fmt::format(", {}", duration(seconds));
  return text + so_far();
}

void EvaluateProgress::show(bool last) {
  if (quiet_) return;
  if (!terminal_) {
    fmt::print(stderr, "{}\n", line());
    return;
  }
  constexpr std::size_t kWidth = 20;
  const std::size_t filled = total_ == 0 ? kWidth : std::min(kWidth, finished_ * kWidth / total_);
  // The last code clears what a longer line has left.
  fmt::print(stderr, "\r[{:<{}}] {}\x1b[K{}", std::string(filled, '#'), kWidth, line(), last ? "\n" : "");
  std::fflush(stderr);
}

}  // namespace tessera::app
