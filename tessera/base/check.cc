#include "tessera/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tessera::base {

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "check failed: %s at %s:%d%s%s\n", expression, file, line, message.empty() ? "" : ": ",
               message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace tessera::base
