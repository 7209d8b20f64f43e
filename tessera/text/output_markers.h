// The markers in a model's output, and finding them in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/text/output_parser.h"

namespace tessera::text {

// What a marker means. Families spell the same thing differently.
enum class Marker : std::uint8_t {
  kThink,
  kThinkEnd,
  kSectionBegin,  // Kimi: around all calls in a row.
  kSectionEnd,    // Kimi.
  kCallBegin,     // Of one call.
  kCallEnd,
  kArgumentBegin,  // Kimi: between a call's id and its arguments.
  kKeyBegin,       // GLM: of an argument's name.
  kKeyEnd,         // GLM.
  kValueBegin,     // GLM: of an argument's value.
  kValueEnd,       // GLM.
};

struct MarkerSpelling {
  std::string_view text;
  Marker marker;
};

// The markers of a syntax: of its tool calls, in static memory. Those of reasoning are reasoning_markers().
std::span<const MarkerSpelling> tool_call_markers(ToolCallSyntax syntax);
std::span<const MarkerSpelling> reasoning_markers(ReasoningSyntax syntax);

// Cuts text into markers and what is between them. Every spelling begins with '<' and has no other '<', and none begins
// another: so a marker that fails to go on begins again only where it failed, markers are found the same way however
// the text is cut, and nothing but the beginning of one spelling is ever held back. Cost: O(bytes). One thread at a
// time.
class MarkerScanner {
 public:
  explicit MarkerScanner(OutputSyntax syntax);

  struct Piece {
    const MarkerSpelling* marker = nullptr;  // nullptr: text.
    std::string_view text;                   // A marker's is its spelling. Valid as long as the text that was given.
    bool is_token = false;                   // A marker that came as a token of its own.
  };
  // Takes the next piece from the front of `text`; false if all of it was taken, or held back, without one.
  bool next(std::string_view& text, Piece& piece);
  // The marker of this spelling; nullptr if the syntax has none such.
  const MarkerSpelling* find(std::string_view spelling) const;
  // The end of the text, or a token that is a marker: what was held back, which then is text.
  std::string_view take_held();

 private:
  // The spelling whose first `matched_` bytes equal those of `candidate_` and whose next one is `byte`.
  const MarkerSpelling* extended(char byte) const;
  template <typename Use>
  const MarkerSpelling* find_spelling(Use use) const;

  std::span<const MarkerSpelling> tool_calls_;
  std::span<const MarkerSpelling> reasoning_;
  const MarkerSpelling* candidate_ = nullptr;  // Any spelling that begins with what is held back.
  std::size_t matched_ = 0;                    // How many bytes are held back.
};

}  // namespace tessera::text
