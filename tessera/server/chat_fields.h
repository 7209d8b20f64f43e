// Inside the server room: the fields that say what is rendered and how, which /v1/chat/completions and /tokenize share.
#pragma once

#include <string_view>

#include "tessera/server/json_fields.h"
#include "tessera/text/conversation.h"

namespace tessera::server {

// Reads "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs" and "reasoning_effort";
// mistakes go to `fields`. `body` is the text that `fields` is made of: tools and arguments are taken from it, with
// their numbers as the client wrote them. Tools that may not be called (tool_choice "none") are left out of the
// conversation. Whether there have to be messages is the caller's to say.
//
// Bounded here: messages, tools, calls and the values of arguments by number, names and ids by length, nesting by the
// depth of any body. What a family of models can express is its chat format's to say.
void read_conversation(JsonFields& fields, std::string_view body, text::Conversation& conversation,
                       text::RenderOptions& render);

}  // namespace tessera::server
