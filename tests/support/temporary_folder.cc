#include "tests/support/temporary_folder.h"

#include <cstdlib>
#include <string>
#include <system_error>

#include "tessera/base/check.h"

namespace tessera::test_support {

TemporaryFolder::TemporaryFolder(std::string_view name) {
  std::string pattern =
      (std::filesystem::temp_directory_path() / ("tessera_" + std::string(name) + "_XXXXXX")).string();
  TESSERA_CHECK(::mkdtemp(pattern.data()) != nullptr, "no temporary folder can be made");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tessera::test_support
