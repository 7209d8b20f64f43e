#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace tessera::app {

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Progress::Progress(std::string what)
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) != 0), start_(now_seconds()) {}

void Progress::update(std::int64_t bytes_done, std::int64_t bytes_total) {
  bytes_total_ = bytes_total;
  const int percent = bytes_total > 0 ? static_cast<int>(bytes_done * 100 / bytes_total) : 100;
  if (!terminal_ || percent == shown_percent_) return;
  shown_percent_ = percent;
  constexpr int kWidth = 30;
  const int filled = percent * kWidth / 100;
  fmt::print(stderr, "\r{} [{:<{}}] {:3d}%", what_, std::string(static_cast<std::size_t>(filled), '#'), kWidth,
             percent);
  std::fflush(stderr);
}

void Progress::finish() {
  fmt::print(stderr, "{}{}: {:.1f} MiB in {:.2f} s{}\n", terminal_ ? "\r" : "", what_,
             static_cast<double>(bytes_total_) / (1024.0 * 1024.0), now_seconds() - start_,
             terminal_ ? "                              " : "");
}

}  // namespace tessera::app
