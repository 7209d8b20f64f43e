// Reading the data files of tasks: JSON, one object a line, gzipped or not.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::quality {

// The file's text, unpacked where its name ends in ".gz"; at most kDataFileBytesMax of it. not_found, data_loss: names
// the file.
base::Result<std::string> read_data_text(const std::filesystem::path& path);

struct DataLines {
  std::filesystem::path path;
  std::vector<boost::json::object> lines;
  std::string raw = {};  // The file's text, for Task::data_digest().
  // "FILE, line N: <what>", for a line that is JSON but not what a task expects.
  base::Status wrong(std::size_t index, std::string_view what) const;
  // A field of line `index`. data_loss, naming file, line and field: it is not there, or of another type.
  base::Result<std::string> text(std::size_t index, std::string_view key) const;
  base::Result<std::int64_t> integer(std::size_t index, std::string_view key) const;
  base::Result<std::vector<std::string>> texts(std::size_t index, std::string_view key) const;
};
// not_found, data_loss; the latter also for a file without a line.
base::Result<DataLines> read_data_lines(const std::filesystem::path& path);

// A 64-bit FNV-1a over the text, as 16 hexadecimal digits: tells whether two evaluations read the same questions.
std::string data_digest(std::string_view text);

inline constexpr std::size_t kDataFileBytesMax = std::size_t{64} << 20;

}  // namespace tessera::quality
