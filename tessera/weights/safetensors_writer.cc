#include "tessera/weights/safetensors_writer.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/weights/checkpoint.h"

namespace tessera::weights {

namespace {

namespace json = boost::json;

base::Status rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code ec;
  std::filesystem::rename(from, to, ec);
  if (ec) return base::internal_error(fmt::format("{}: cannot be renamed: {}", from.string(), ec.message()));
  return base::ok_status();
}

}  // namespace

base::Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                          std::vector<TensorDeclaration> declarations) {
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.partial_ = path;
  writer.partial_ += ".partial";
  json::object header;
  header["__metadata__"] = {{"format", "pt"}};
  std::int64_t offset = 0;
  for (TensorDeclaration& declaration : declarations) {
    std::optional<std::int64_t> bytes = base::dtype_size(declaration.dtype);
    for (const std::int64_t extent : declaration.shape) {
      if (bytes.has_value()) bytes = base::checked_mul(*bytes, extent);
    }
    const std::optional<std::int64_t> end = bytes.has_value() ? base::checked_add(offset, *bytes) : std::nullopt;
    if (!end.has_value() || std::ssize(declaration.shape) > base::limits::kTensorRankMax) {
      return base::failure(base::out_of_range(
          fmt::format("{}: tensor {}: shape {} is negative, overflows or has too many dimensions",
                      path.filename().string(), quote_name(declaration.name), shape_text(declaration.shape))));
    }
    if (declaration.name.empty() || header.contains(declaration.name)) {
      return base::failure(base::invalid_argument(fmt::format("{}: tensor {}: empty, reserved or duplicate name",
                                                              path.filename().string(), quote_name(declaration.name))));
    }
    json::object entry;
    const std::string_view dtype = base::dtype_name(declaration.dtype);
    entry["dtype"] = json::string_view(dtype.data(), dtype.size());
    entry["shape"] = json::array(declaration.shape.begin(), declaration.shape.end());
    entry["data_offsets"] = {offset, *end};
    header[declaration.name] = std::move(entry);
    writer.tensors_.push_back(
        TensorInfo{std::move(declaration.name), declaration.dtype, std::move(declaration.shape), offset, *bytes});
    offset = *end;
  }
  std::string text = json::serialize(header);
  text.resize(static_cast<std::size_t>(base::round_up(std::ssize(text), 8)), ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));

  writer.file_.open(writer.partial_, std::ios::binary | std::ios::trunc);
  writer.file_ << length << text;
  if (!writer.file_) {
    return base::failure(base::internal_error(fmt::format("{}: cannot be written", writer.partial_.string())));
  }
  return writer;
}

base::Status SafetensorsWriter::write(std::string_view name, std::span<const std::byte> data) {
  TESSERA_CHECK(next_ < tensors_.size(), "more tensors than were declared");
  const TensorInfo& tensor = tensors_[next_];
  TESSERA_CHECK(tensor.name == name, "tensors are written in the order of declaration");
  TESSERA_CHECK(std::ssize(data) == tensor.bytes, "a tensor's bytes are as declared");
  file_.write(reinterpret_cast<const char*>(data.data()), std::ssize(data));
  if (!file_) {
    return base::resource_exhausted(
        fmt::format("{}: tensor {} cannot be written: disk full?", partial_.string(), quote_name(name)));
  }
  ++next_;
  return base::ok_status();
}

base::Status SafetensorsWriter::finish() {
  TESSERA_CHECK(next_ == tensors_.size(), "not every declared tensor was written");
  file_.close();
  if (!file_) return base::resource_exhausted(fmt::format("{}: cannot be completed: disk full?", partial_.string()));
  return rename_file(partial_, path_);
}

base::Status write_checkpoint_index(const std::filesystem::path& dir,
                                    const std::map<std::string, std::string>& weight_map, std::int64_t total_bytes) {
  json::object map;
  for (const auto& [tensor, shard] : weight_map) map[tensor] = shard;
  json::object root;
  root["metadata"] = {{"total_size", total_bytes}};
  root["weight_map"] = std::move(map);
  const std::filesystem::path path = dir / kIndexFileName;
  std::filesystem::path partial = path;
  partial += ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file << json::serialize(root) << '\n';
  file.close();
  if (!file) return base::internal_error(fmt::format("{}: cannot be written", partial.string()));
  return rename_file(partial, path);
}

}  // namespace tessera::weights
