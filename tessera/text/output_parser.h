// What a model writes, taken apart while it arrives: reasoning, content and tool calls. One state machine for every
// family; a family chooses the markers (OutputSyntax).
//
// What comes out, put together, is the same for every way in which the text is cut into pieces. A piece is held back
// for as long as it may be the beginning of a marker. The work is linear in the text.
//
// Markers. A marker that was found does not come out as content or reasoning; one that means nothing where it stands is
// left out. (The pieces of text around one that was left out may spell another one: that one then is text.) Markers of
// calls count however they come. Those of reasoning are words that answers write about, so where the vocabulary has
// them as tokens, the token decides: a token is a marker anywhere, also amid the content, and one that was spelled in
// ordinary tokens is text as it stands. But a model may spell a <think> before everything else: that one opens
// reasoning, and then a spelled </think> closes it. Where the vocabulary has no such tokens, spelled ones are markers.
//
// Reasoning. <think> opens it wherever it comes, </think> closes it. So does a Kimi section of calls, and so does a
// call of a declared function (models forget </think>); other calls within reasoning are reasoning about calls.
// Reasoning that does not end is all there is.
//
// White space. Around reasoning it is left out, and so is what stands between the parts where there is no content; line
// ends before the content are the template's, except for families without reasoning. At the end of content it is
// content if there were no calls.
//
// Calls. Names of no declared function are passed on: to refuse them is the client's business. What is no call (an
// empty or unreadable name, a name or number of calls that a request may not have in its history, no object where
// Hermes has one) becomes text without its markers. Where a call's own end marker was forgotten, the next marker that
// cannot be part of it ends it. If the text ends within a call, it depends on how. Of a text that was cut, what came of
// the call stays as it is and nothing is made up; the beginning of a call that has no name yet is left out. A model
// that ended by itself had said what it had to say: where nothing but closing brackets and markers is missing, or all
// arguments are after the name of a declared function, they are added and the call is complete.
//  - Kimi: the id is the model's own. Arguments are passed on as they were written, JSON or not; none are {}. They end
//    at the next marker of calls; <think> within them is data.
//  - GLM: arguments are typed by the tool's schema. Where it allows a string, the text is one unless it is JSON of
//    another allowed type; where it does not, the text is JSON as it was written if it is JSON, or else a string.
//    Without a schema everything is allowed. Of an argument that comes twice the first one counts. A value ends at
//    </arg_value> only; other markers within it are data. Text after a value ends the call, and is text. A key without
//    a value is left out: the arguments are JSON all the same, but the call does not count as complete.
//  - Hermes: arguments are passed on as they were written, or decoded if a string holds them; "parameters" is another
//    spelling. Markers within a JSON string are data; but of an object that never got as far as to be a call, with
//    </tool_call> in a string that has no end, the text is text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/conversation.h"

namespace tessera::text {

// How tool calls are written.
enum class ToolCallSyntax : std::uint8_t {
  kNone,
  kKimi,    // <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:IDX<|tool_call_argument_begin|>{...}...
  kGlm,     // <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>, newlines or none
  kHermes,  // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>: Qwen
};

// Whether <think>...</think> is taken apart, and where the text begins.
enum class ReasoningSyntax : std::uint8_t {
  kNone,     // Not a marker of this family: stays content.
  kOutside,  // The text begins outside; a <think> at its beginning opens reasoning.
  kInside,   // The prompt has opened it: the text begins with reasoning.
};

struct OutputSyntax {
  ReasoningSyntax reasoning = ReasoningSyntax::kNone;
  ToolCallSyntax tool_calls = ToolCallSyntax::kNone;
};

// How <think> and </think> reach the parser.
enum class ReasoningMarkers : std::uint8_t {
  kSpelled,  // In the text: the vocabulary has no tokens for them.
  kTokens,   // By push_marker(). Spelled ones are text, but at the beginning.
};

// How a text came to its end.
enum class Ending : std::uint8_t {
  kByItself,  // The model wrote a token that ends it.
  kCut,       // By a limit, a stop string or whoever asked.
};

// What a piece of text adds to a call. Concatenated over all deltas of the same index, `arguments` is the JSON text of
// an object.
struct ToolCallDelta {
  std::int32_t index = 0;  // 0, 1, ... in the order of the calls.
  std::string id;          // In the call's first delta only. Kimi's; empty elsewhere: whoever answers makes one up.
  std::string name;        // In the call's first delta only.
  std::string arguments;   // May be empty.
  friend bool operator==(const ToolCallDelta&, const ToolCallDelta&) = default;
};

struct OutputDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// One per choice; one thread at a time.
class OutputParser {
 public:
  // `tools` are what the request declared: GLM's arguments are typed by their schemas. Without tools nothing is a call:
  // what is written as one is content, without its markers. `tools` must outlive the parser.
  OutputParser(OutputSyntax syntax, const std::vector<Tool>& tools,
               ReasoningMarkers markers = ReasoningMarkers::kSpelled);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  // Appends to `out` what `text` gives. `text` is whole characters, with the spelling of the markers in it
  // (IncrementalDetokenizer keeps them).
  void push(std::string_view text, OutputDelta& out);
  // The same for a marker that came as a token of its own. Spellings that are not of the syntax are text.
  void push_marker(std::string_view spelling, OutputDelta& out);
  // The end of the text: what was held back. Nothing may be pushed afterwards.
  void finish(OutputDelta& out, Ending ending);
  // Calls that came to their end, or lack nothing of it but closing brackets and markers around whole arguments: with
  // at least one, a sequence that stopped by itself has finish_reason "tool_calls".
  std::int32_t complete_calls() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The markers that a syntax looks for: the spellings of tokens which must reach the parser even where the tokenizer
// calls them special.
std::vector<std::string_view> marker_spellings(OutputSyntax syntax);

}  // namespace tessera::text
