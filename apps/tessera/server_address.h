// Where a server is that a command talks to.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/base/status.h"

namespace tessera::app {

struct ServerAddress {
  std::string host = "127.0.0.1";
  std::uint16_t port = 30000;
  std::string api_key;
};

// From "http://HOST:PORT" (also with a trailing slash or /v1).
base::Result<ServerAddress> parse_url(const std::string& url);

}  // namespace tessera::app
