// Which parsers take a model's answers apart: what its chat format says, unless a flag says otherwise.
#pragma once

#include <optional>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/output_parser.h"

namespace tessera::server {

// Empty: as the chat format says.
struct ParserChoice {
  std::optional<text::ReasoningSyntax> reasoning = {};
  std::optional<text::ToolCallSyntax> tool_calls = {};
};

// From the names that SGLang and vLLM have for theirs: "kimi_k2", "glm45", "qwen3", "hermes", ... "auto" is the chat
// format's own, "none" takes nothing apart. Unknown ones are refused with the list of those that are known.
base::Result<std::optional<text::ReasoningSyntax>> reasoning_parser_named(std::string_view name);
base::Result<std::optional<text::ToolCallSyntax>> tool_call_parser_named(std::string_view name);

// Our own name of a parser: "think" or "none"; "kimi_k2", "glm45", "hermes" or "none".
std::string_view reasoning_parser_name(text::ReasoningSyntax syntax);
std::string_view tool_call_parser_name(text::ToolCallSyntax syntax);

// Whether the chosen reasoning parser can do with this format what its name says: one for models whose prompt opens
// reasoning is refused where the format's prompts do not.
base::Status check_reasoning_parser(const text::ChatFormat& format, const ParserChoice& choice);

// Where a text begins is for its rendering to say (a request may turn thinking off): a chosen reasoning parser keeps
// what the format knows of it.
text::OutputSyntax choose_syntax(text::OutputSyntax of_format, const ParserChoice& choice);

}  // namespace tessera::server
