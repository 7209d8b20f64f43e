// Files that a command writes when it has done its work: whole, or not at all.
#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include "tessera/base/status.h"

namespace tessera::app {

// A file that will be written at the end of long work: that it can be is known at the beginning. Another program may
// be about to write the same file: each writes under a name of its own, and the last one stays.
class OutputFile {
 public:
  // Nothing is left in the folder, and what is at `path` stays as it is until write(). Symbolic links are followed.
  // unavailable: it cannot be written there.
  static base::Result<OutputFile> open(const std::filesystem::path& path);

  // Writes the text and puts it in the place of what was there, or leaves that and nothing else.
  base::Status write(std::string_view text) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit OutputFile(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
};

// The path that two names of one file have in common, as far as the file, or its folder, is there.
std::filesystem::path resolved(const std::filesystem::path& path);

// A folder that comes with the program, as the sources have it ("data/evaluation"): looked for in the current folder,
// then in the executable's and those above it. Where there is none: as it was asked for.
std::filesystem::path shipped_folder(const std::filesystem::path& name);

}  // namespace tessera::app
