#include "tessera/quality/data_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <system_error>
#include <utility>

#include "tessera/text/json_reader.h"

namespace tessera::quality {

namespace {

struct CloseFile {
  void operator()(gzFile file) const { gzclose(file); }
};

}  // namespace

base::Result<std::string> read_data_text(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return base::failure(base::not_found(fmt::format("{}: there is no such file", path.string())));
  }
  // zlib passes a file that is not packed through as it is.
  const std::unique_ptr<gzFile_s, CloseFile> file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) return base::failure(base::not_found(fmt::format("{}: cannot be opened", path.string())));
  std::string text;
  std::array<char, 1 << 16> piece{};
  while (true) {
    const int got = gzread(file.get(), piece.data(), static_cast<unsigned>(piece.size()));
    if (got < 0 || (got == 0 && gzeof(file.get()) == 0)) {
      int code = Z_OK;
      return base::failure(base::data_loss(fmt::format("{}: {}", path.string(), gzerror(file.get(), &code))));
    }
    if (got == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (text.size() > kDataFileBytesMax) {
      return base::failure(
          base::data_loss(fmt::format("{}: more than {} MiB of text", path.string(), kDataFileBytesMax >> 20)));
    }
  }
  // A packed file that was cut off ends without its checksum; zlib says so only when it is asked.
  int code = Z_OK;
  const char* const message = gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    return base::failure(base::data_loss(fmt::format("{}: {}", path.string(), message)));
  }
  return text;
}

base::Status DataLines::wrong(std::size_t index, std::string_view what) const {
  return base::data_loss(fmt::format("{}, line {}: {}", path.string(), index + 1, what));
}

base::Result<std::string> DataLines::text(std::size_t index, std::string_view key) const {
  const boost::json::value* const value = lines[index].if_contains(key);
  if (value == nullptr || !value->is_string()) {
    return base::failure(wrong(index, fmt::format("expected '{}' to be a string", key)));
  }
  return std::string(value->get_string());
}

base::Result<std::int64_t> DataLines::integer(std::size_t index, std::string_view key) const {
  const boost::json::value* const value = lines[index].if_contains(key);
  if (value == nullptr || !value->is_int64()) {
    return base::failure(wrong(index, fmt::format("expected '{}' to be an integer", key)));
  }
  return value->get_int64();
}

base::Result<std::vector<std::string>> DataLines::texts(std::size_t index, std::string_view key) const {
  const boost::json::value* const value = lines[index].if_contains(key);
  if (value == nullptr || !value->is_array()) {
    return base::failure(wrong(index, fmt::format("expected '{}' to be a list of strings", key)));
  }
  std::vector<std::string> all;
  all.reserve(value->get_array().size());
  for (const boost::json::value& item : value->get_array()) {
    if (!item.is_string())
      return base::failure(wrong(index, fmt::format("expected '{}' to be a list of strings", key)));
    all.emplace_back(item.get_string());
  }
  return all;
}

base::Result<DataLines> read_data_lines(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(std::string raw, read_data_text(path));
  DataLines data{path, {}};
  std::string_view rest = raw;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    base::Result<boost::json::value> value = text::parse_json(line);
    if (!value.has_value()) return base::failure(data.wrong(data.lines.size(), value.error().message()));
    if (!value->is_object()) return base::failure(data.wrong(data.lines.size(), "expected an object"));
    data.lines.push_back(std::move(value->as_object()));
  }
  data.raw = std::move(raw);
  if (data.lines.empty()) return base::failure(base::data_loss(fmt::format("{}: holds no line", path.string())));
  return data;
}

std::string data_digest(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

}  // namespace tessera::quality
