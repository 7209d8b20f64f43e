// Files that a command writes when it has done its work: whole, or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::app {

// A file that will be written at the end of long work: that it can be is known at the beginning.
class OutputFile {
 public:
  // Makes an empty file beside `path`, which is left as it is until write(). unavailable: it cannot be written there.
  static base::Result<OutputFile> open(const std::filesystem::path& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();  // Removes what was not written.

  // Writes the text and puts it in the place of what was there. Once.
  base::Status write(std::string_view text);

 private:
  explicit OutputFile(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path part() const { return path_.string() + ".part"; }

  std::filesystem::path path_;
  int file_ = -1;
};

// A folder that comes with the program, as the sources have it ("data/evaluation"): looked for in the current folder,
// then in the executable's and those above it. Where there is none: as it was asked for.
std::filesystem::path shipped_folder(const std::filesystem::path& name);

}  // namespace tessera::app
