// Where the parts of a model's output go: the white space between them left out, calls numbered.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/conversation.h"
#include "tessera/text/output_parser.h"

namespace tessera::text {

// Space, tab, line feed, carriage return: what JSON and the templates mean by white space.
constexpr bool is_white(char byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }
// Without white space at both ends.
std::string_view trimmed(std::string_view text);

// Text without the white space around it, as it arrives: white space is held back until something else follows.
class TrimmedText {
 public:
  // What is left out at the beginning.
  enum class Leading : std::uint8_t { kKeep, kDropNewlines, kDropWhite };
  explicit TrimmedText(Leading leading) : leading_(leading) {}

  // Appends to `out` what is certain.
  void write(std::string_view text, std::string& out);
  // Something else came here. With nothing before it, line ends after it are the template's and no text.
  void interrupt();
  // True if anything but white space was written.
  bool begun() const { return begun_; }
  // The white space that is held back.
  const std::string& held() const { return held_; }

 private:
  Leading leading_;
  bool begun_ = false;
  std::string held_;
};

// Takes reasoning, content and calls, and writes them to the delta of the moment.
class OutputSink {
 public:
  OutputSink(OutputSyntax syntax, const std::vector<Tool>& tools);

  // Where everything that follows is appended.
  void write_to(OutputDelta& out) { out_ = &out; }

  // Text between markers: reasoning or content, whichever it is at the moment.
  void text(std::string_view text);
  void begin_reasoning();
  void end_reasoning() { in_reasoning_ = false; }

  // Whether a call of this name may begin: names are not empty, and have neither white space, nor control characters,
  // nor what belongs to markers and JSON, and a request may have the call in its history (base/limits.h). Other names
  // than the declared ones are passed on, but not out of reasoning: there, a text about calls is likelier than a call.
  bool accepts(std::string_view name) const;
  // The same for a call whose name may be the beginning of a longer one: it has to be a declared one.
  bool accepts_declared(std::string_view name) const { return accepts(name) && find(name) != nullptr; }
  // Ends the reasoning. The call gets the next index.
  void begin_call(std::string_view id, std::string_view name);
  // Of the call that began last.
  void arguments(std::string_view text);
  void complete_call() { ++complete_; }
  std::int32_t complete_calls() const { return complete_; }

  // The schema of the arguments; nullptr if there is none.
  const boost::json::object* parameters(std::string_view name) const;

  // White space at the end is content if no call was made.
  void finish();

 private:
  const Tool* find(std::string_view name) const;

  const std::vector<Tool>* tools_;
  OutputDelta* out_ = nullptr;
  TrimmedText reasoning_;
  TrimmedText content_;
  bool in_reasoning_;
  std::int32_t begun_ = 0;
  std::int32_t complete_ = 0;
};

}  // namespace tessera::text
