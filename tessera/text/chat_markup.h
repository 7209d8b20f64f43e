// What every chat format is written with: the markers of a family as tokens of the checkpoint's vocabulary, and a
// writer that keeps apart what the format says (in which markers are tokens) and what a message says (in which they are
// text).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

// Immutable.
class Markup {
 public:
  // The tokens of a family's markers. kNotFound, naming the format and the marker, if the vocabulary lacks one.
  static base::Result<Markup> create(std::string_view format, const Tokenizer& tokenizer,
                                     std::span<const std::string_view> markers);

  // The first marker in `text` at or after `from`: of those that begin at the same place, the longest. {npos, nullptr}
  // if there is none.
  using Marker = std::pair<std::string, TokenId>;
  std::pair<std::size_t, const Marker*> find(std::string_view text, std::size_t from) const;

 private:
  std::vector<Marker> markers_;
};

class PromptWriter {
 public:
  // `markup` must outlive the writer.
  explicit PromptWriter(const Markup& markup) : markup_(&markup) {}

  // Text of the format itself: its markers become tokens.
  PromptWriter& markup(std::string_view text);
  // Text that came from outside: it stays text, whatever it looks like.
  PromptWriter& text(std::string_view text);
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  const Markup* markup_;
  std::vector<Segment> segments_;
};

// The tokens that end a message: those of the tokenizer's configuration and the family's own, sorted. kNotFound if the
// vocabulary lacks one of the family's.
base::Result<std::vector<TokenId>> chat_stop_ids(std::string_view format, const Tokenizer& tokenizer,
                                                 std::span<const std::string_view> markers);

}  // namespace tessera::text
