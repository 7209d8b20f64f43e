// What is logged while it exists, line by line. For engines that are turned by hand, on the test's own thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/logging.h"

namespace tessera::test_support {

class LogCapture {
 public:
  LogCapture() : sink_(std::make_shared<spdlog::sinks::ostream_sink_st>(text_)) {
    base::log().sinks().push_back(sink_);
  }
  ~LogCapture() { std::erase(base::log().sinks(), sink_); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // The lines that have these words in them.
  std::vector<std::string> lines_with(std::string_view words) const {
    std::vector<std::string> found;
    std::istringstream lines(text_.str());
    for (std::string line; std::getline(lines, line);) {
      if (line.find(words) != std::string::npos) found.push_back(line);
    }
    return found;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::sink> sink_;
};

// Exactly one line has these words, and its message, from the first letter to the last, is `message`, a regular
// expression: so nothing else is in it.
inline void expect_one_line(const LogCapture& log, std::string_view words, const std::string& message) {
  const std::vector<std::string> lines = log.lines_with(words);
  ASSERT_EQ(lines.size(), 1u) << words;
  EXPECT_THAT(lines[0], testing::ContainsRegex("[ ]" + message + "$"));
}

}  // namespace tessera::test_support
