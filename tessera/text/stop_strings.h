// Finds stop strings in text that arrives in pieces, and holds back what could be the beginning of one.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::text {

// The first stop string to be complete ends the text; of two that are complete with the same byte, the longer one. The
// text before it is what is emitted: no byte of the match, and nothing after it. The result does not depend on how the
// text was cut into pieces. Cost: O(bytes x stop strings). One per sequence; one thread at a time.
class StopStringMatcher {
 public:
  // Refuses more than limits::kStopStringsMax strings, empty ones, longer ones than limits::kStopStringBytesMax and
  // ill-formed UTF-8. No strings at all is fine: everything passes.
  static base::Result<StopStringMatcher> create(std::span<const std::string> stops);

  // What may be sent now. If `text` is made of whole characters, so is every returned part. After a match: empty.
  std::string push(std::string_view text);
  // The text ended without a match: what was held back. After a match: empty. The matcher must not be pushed to again.
  std::string flush();
  // Index, in the list given to create(), of the string that matched.
  std::optional<std::size_t> matched() const { return matched_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<std::size_t> border;  // border[i]: longest proper border of text[0, i], the failure function of KMP.
    std::size_t matched = 0;          // How many bytes of text the end of the input equals.
  };
  std::vector<Pattern> patterns_;
  std::string held_;
  std::optional<std::size_t> matched_;
};

}  // namespace tessera::text
