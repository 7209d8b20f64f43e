// Shows on standard error how far loading is: a line that rewrites itself on a terminal, else one line at the end.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::app {

class Progress {
 public:
  explicit Progress(std::string what);
  void update(std::int64_t bytes_done, std::int64_t bytes_total);
  // Ends the line: how much, and how long it took.
  void finish();

 private:
  const std::string what_;
  const bool terminal_;
  const double start_;
  std::int64_t bytes_total_ = 0;
  int shown_percent_ = -1;
};

}  // namespace tessera::app
