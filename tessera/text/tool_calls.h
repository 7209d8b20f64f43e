// The parsers of tool calls, one for each way of writing them. OutputParser starts one at a call's first marker and
// gives it all that follows, until it says that the call is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/text/output_markers.h"
#include "tessera/text/output_sink.h"

namespace tessera::text {

class ToolCallParser {
 public:
  enum class Step : std::uint8_t {
    kMore,   // All that was given belonged to the call, which goes on.
    kEnded,  // The call ended with what was taken of it. What was not taken is for others.
    kAgain,  // The call ended before this marker, which is for others.
  };

  virtual ~ToolCallParser() = default;
  // Marker::kCallBegin was seen.
  virtual void open() = 0;
  // Takes from the front of `text` what belongs to the call. How text is cut makes no difference.
  virtual Step text(std::string_view& text, OutputSink& sink) = 0;
  virtual Step marker(const MarkerSpelling& marker, OutputSink& sink) = 0;
  // The text ended within the call. If it was cut, nothing is made up: what was written of the call stays.
  virtual void finish(OutputSink& sink, Ending ending) = 0;
};

std::unique_ptr<ToolCallParser> make_kimi_calls();
std::unique_ptr<ToolCallParser> make_glm_calls();
std::unique_ptr<ToolCallParser> make_hermes_calls();

// The text between a call's first marker and the next one: a name or an id. It is held back as long as it may be one.
class CallHeader {
 public:
  // False if it is none: several words, or too long.
  bool append(std::string_view text);
  // As it was written, for what turns out to be no call.
  const std::string& raw() const { return raw_; }
  std::string_view value() const { return trimmed(raw_); }

 private:
  std::string raw_;
  bool word_begun_ = false;
  bool word_ended_ = false;
  bool one_word_ = true;
};

// How deep in brackets and strings a JSON text is. It tells where an object ends, and takes text that is not quite
// JSON: what a model wrote is passed on as it is.
class JsonNesting {
 public:
  // Takes the text up to the end of the object or array that it begins with; returns how much that was. A text that
  // begins with anything else never ends.
  std::size_t scan(std::string_view text);
  bool complete() const { return begun_ && !other_ && depth_ == 0 && !in_string_; }
  bool in_string() const { return in_string_; }

 private:
  bool begun_ = false;
  bool other_ = false;  // Begins with neither bracket.
  bool in_string_ = false;
  bool escaped_ = false;
  std::size_t depth_ = 0;
};

// The inside of a JSON string, decoded as it arrives.
class JsonStringDecoder {
 public:
  // Takes the text up to and including the closing quote and appends what it means to `out`; returns how much was
  // taken. Escapes that JSON does not know stand for themselves, halves of surrogate pairs for U+FFFD.
  std::size_t decode(std::string_view text, std::string& out);
  bool ended() const { return ended_; }

 private:
  void escape(char byte, std::string& out);
  void code_unit(std::uint32_t unit, std::string& out);
  void lone_surrogate(std::string& out);

  bool ended_ = false;
  bool escaped_ = false;
  int hex_digits_ = 0;  // Still to come, of \uXXXX.
  std::uint32_t unit_ = 0;
  std::uint32_t high_surrogate_ = 0;  // Waits for its other half.
};

}  // namespace tessera::text
