// Inside the server room: the fields that say what is rendered and how, which /v1/chat/completions and /tokenize share.
#pragma once

#include "tessera/server/json_fields.h"
#include "tessera/text/conversation.h"

namespace tessera::server {

// Reads "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs" and "reasoning_effort";
// mistakes go to `fields`. Tools that may not be called (tool_choice "none") are left out of the conversation. Whether
// there have to be messages is the caller's to say.
//
// Bounded here: messages, tools and calls by number, names and ids by length, nesting by the depth of any body. What a
// family of models can express is its chat format's to say.
void read_conversation(JsonFields& fields, text::Conversation& conversation, text::RenderOptions& render);

}  // namespace tessera::server
