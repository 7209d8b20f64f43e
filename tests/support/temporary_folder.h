// A new folder under the system's folder for temporary files, removed with everything in it on destruction.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::test_support {

class TemporaryFolder {
 public:
  // `name` appears in the folder's name.
  explicit TemporaryFolder(std::string_view name);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::test_support
