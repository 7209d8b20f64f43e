// Answers as OpenAI's API writes them: whole, and in chunks for server-sent events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/server/choice_text.h"
#include "tessera/server/json_writer.h"
#include "tessera/server/service.h"
#include "tessera/text/conversation.h"

namespace tessera::server {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t integrity_recomputes = 0;  // Of all choices; written where there were any.
};

// A choice of an answer that is not streamed.
struct AnswerChoice {
  std::string reasoning;
  std::string content;
  std::vector<text::ToolCall> tool_calls;  // Each with an id.
  std::vector<LogprobEntry> logprobs;
  std::string_view finish_reason;
};

// Whether a chat's delta without content has "" as its content.
enum class EmptyContent : std::uint8_t { kOmit, kWrite };

struct ChunkEnd {
  std::string_view finish_reason = {};  // Of the choice's last chunk; empty before.
  // Of the choice's last chunk, if there was neither content nor a call: then the content is "", as in a whole answer.
  EmptyContent empty_content = EmptyContent::kOmit;
};

class AnswerWriter {
 public:
  AnswerWriter(const Generation& generation, const text::Tokenizer& tokenizer)
      : generation_(generation), tokenizer_(tokenizer) {}

  // The first chunk of a chat choice: the role alone. Content there, even empty, would be content of the message that
  // clients put together, which a message of calls alone does not have.
  std::string role_chunk(std::size_t choice) const;
  // A delta. The first delta of a call, and no other, has an id. `usage` where continuous usage was asked for.
  std::string chunk(std::size_t choice, const ChoiceDelta& delta, const ChunkEnd& end,
                    const std::optional<Usage>& usage) const;
  // The chunk with empty choices that include_usage asks for.
  std::string usage_chunk(const Usage& usage) const;
  std::string whole(const std::vector<AnswerChoice>& choices, const Usage& usage) const;

 private:
  void begin(JsonWriter& json, std::string_view object) const;
  void write_top_logprobs(JsonWriter& json, const LogprobEntry& entry) const;
  void write_logprobs(JsonWriter& json, const std::vector<LogprobEntry>& entries) const;
  void write_delta(JsonWriter& json, const text::OutputDelta& delta, EmptyContent empty_content) const;
  void write_message(JsonWriter& json, const AnswerChoice& choice) const;
  void write_usage(JsonWriter& json, const Usage& usage) const;
  std::string token_text(std::int32_t token) const;

  const Generation& generation_;
  const text::Tokenizer& tokenizer_;
};

}  // namespace tessera::server
