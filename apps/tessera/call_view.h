// How a tool call looks in a terminal.
#pragma once

#include <cstddef>
#include <string>

#include "chat_client.h"

namespace tessera::app {

// The name on a line of its own; below it the arguments, one a line, indented, as the model wrote them, wrapped at
// `width` columns. Nothing in it can steer a terminal (terminal_text.h). Ends with a newline.
std::string call_view(const Call& call, std::size_t width);

}  // namespace tessera::app
