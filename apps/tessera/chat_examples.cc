#include "chat_examples.h"

#include <fmt/format.h>

#include <cstdint>
#include <sstream>
#include <system_error>
#include <utility>

#include "tessera/text/utf8.h"
#include "tessera/weights/mapped_file.h"

namespace tessera::app {

namespace {

constexpr std::int64_t kBytesMax = 16384;
constexpr std::size_t kExamplesMax = 9;

}  // namespace

base::Result<std::vector<std::string>> read_chat_examples(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "examples.txt";
  std::error_code missing;
  // A folder or a pipe of that name is none of ours.
  if (!std::filesystem::is_regular_file(path, missing)) return std::vector<std::string>();
  TESSERA_ASSIGN_OR_RETURN(const std::string content, weights::read_text_file(path, kBytesMax));
  if (!text::is_valid_utf8(content)) {
    return base::failure(base::invalid_argument(fmt::format("{}: expected UTF-8 text", path.string())));
  }
  std::vector<std::string> examples;
  std::string current;
  const auto end_example = [&] {
    if (!current.empty()) examples.push_back(std::exchange(current, std::string()));
  };
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.starts_with('#')) continue;
    if (line.empty()) {
      end_example();
      continue;
    }
    if (!current.empty()) current += '\n';
    current += line;
  }
  end_example();
  if (examples.size() > kExamplesMax) {
    return base::failure(base::invalid_argument(
        fmt::format("{}: {} prompts, expected at most {}", path.string(), examples.size(), kExamplesMax)));
  }
  return examples;
}

}  // namespace tessera::app
