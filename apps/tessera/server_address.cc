#include "server_address.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <system_error>

namespace tessera::app {

base::Result<ServerAddress> parse_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&](std::string_view why) {
    return base::failure(base::invalid_argument(fmt::format("url '{}': {}", url, why)));
  };
  std::string_view rest = url;
  if (!rest.starts_with(kScheme)) return refuse("expected http://HOST:PORT");
  rest.remove_prefix(kScheme.size());
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view path = rest.substr(slash);
    if (path != "/" && path != "/v1" && path != "/v1/") return refuse("no path is expected but /v1");
    rest = rest.substr(0, slash);
  }
  ServerAddress address;
  const std::size_t colon = rest.rfind(':');
  if (colon != std::string_view::npos) {
    const std::string_view digits = rest.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
    if (error != std::errc{} || end != digits.data() + digits.size() || address.port == 0) return refuse("bad port");
    rest = rest.substr(0, colon);
  }
  if (rest.empty()) return refuse("no host");
  address.host = rest;
  return address;
}

}  // namespace tessera::app
