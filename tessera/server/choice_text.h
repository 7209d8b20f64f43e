// One choice of an answer: tokens in; reasoning, content and calls out. Detokenizes, looks for stop strings, takes what
// is left apart, keeps the log-probabilities beside the text. What comes out is the same for every way in which the
// stream of tokens is cut into deltas.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/request/messages.h"
#include "tessera/text/detokenizer.h"
#include "tessera/text/output_parser.h"
#include "tessera/text/stop_strings.h"
#include "tessera/text/tokenizer.h"

namespace tessera::server {

struct LogprobEntry {
  std::int32_t token = 0;
  std::optional<float> logprob;  // None of a prompt's first token.
  std::vector<request::TokenLogprob> top;
  std::int64_t text_offset = 0;  // Bytes of text before this token, counted from the choice's beginning.
};

struct ChoiceDelta {
  text::OutputDelta output;  // Whole characters; may be empty. Of a completion: content alone.
  std::vector<LogprobEntry> logprobs;
  bool empty() const { return output.empty() && logprobs.empty(); }
};

struct ChoiceTextOptions {
  std::vector<std::string> stop = {};             // Looked for in the text as the model writes it, markers included.
  std::vector<std::int32_t> stop_token_ids = {};  // They give no text.
  bool logprobs = false;
  std::int64_t text_begin = 0;  // Bytes of text before the first token: of an echoed prompt.
  text::OutputSyntax syntax = {};
};

class ChoiceText {
 public:
  // `tokenizer` and `tools`, which are what the request declared, must outlive this.
  static base::Result<ChoiceText> create(const text::Tokenizer& tokenizer, const std::vector<text::Tool>& tools,
                                         ChoiceTextOptions options);

  // After a stop string has matched nothing more comes out, but what finish() gives.
  ChoiceDelta push(const request::TokenEvent& event);
  // The end of the sequence, once: what was held back. A sequence that a stop string ended was cut.
  ChoiceDelta finish(text::Ending ending);
  bool stopped() const { return stop_.matched().has_value(); }
  std::int32_t complete_calls() const { return parser_.complete_calls(); }
  std::int32_t tokens() const { return tokens_; }

 private:
  struct MarkerToken {
    std::int32_t id;
    std::string_view spelling;  // In static memory.
  };
  // A marker that came as a token, in the text that has not been parsed yet.
  struct PlacedMarker {
    std::int64_t begin;  // Bytes of text before it.
    std::string_view spelling;
  };

  ChoiceText(text::IncrementalDetokenizer detokenizer, text::StopStringMatcher stop, text::OutputParser parser,
             std::vector<MarkerToken> markers, ChoiceTextOptions options)
      : detokenizer_(std::move(detokenizer)),
        stop_(std::move(stop)),
        parser_(std::move(parser)),
        markers_(std::move(markers)),
        options_(std::move(options)) {}

  // What the stop strings let pass, in their order, to the parser.
  void parse(std::string_view text, text::OutputDelta& out);

  text::IncrementalDetokenizer detokenizer_;
  text::StopStringMatcher stop_;
  text::OutputParser parser_;
  std::vector<MarkerToken> markers_;  // A few.
  std::deque<PlacedMarker> placed_;
  std::string marker_part_;  // The beginning of placed_.front(), while its end may be that of a stop string.
  ChoiceTextOptions options_;
  std::int32_t tokens_ = 0;
  std::int64_t text_bytes_ = 0;  // Detokenized so far, what is held back included.
  std::int64_t parsed_bytes_ = 0;
};

}  // namespace tessera::server
