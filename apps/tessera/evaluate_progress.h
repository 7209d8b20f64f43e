// Shows on standard error how far an evaluation is: a line that rewrites itself on a terminal, else a line now and then
// and one at the end of each task.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/quality/runner.h"

namespace tessera::app {

class EvaluateProgress : public quality::RunWatcher {
 public:
  explicit EvaluateProgress(bool quiet);

  void asking(std::string_view plan, const quality::TaskInfo& task, std::size_t total) override;
  void answered(const quality::Outcome& outcome, bool found) override;
  void comparing(std::size_t total, std::size_t found) override;
  void compared() override;
  void done() override;

 private:
  void begin(std::string what, std::size_t total);
  void advance();
  void show(bool last);
  std::string line() const;
  // What the answers so far come to, by the task's first metric; empty where there is none yet.
  std::string so_far() const;

  const bool quiet_;
  const bool terminal_;
  std::string what_;
  quality::Metric metric_;
  std::size_t total_ = 0;
  std::size_t finished_ = 0;
  std::size_t found_ = 0;  // Of those, what the journal had: they took no time.
  std::size_t judged_ = 0;
  double numerator_ = 0.0;
  double denominator_ = 0.0;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point shown_;
};

}  // namespace tessera::app
