#include "tessera/weights/safetensors.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"

namespace tessera::weights {

namespace {

constexpr std::int64_t kLengthBytes = 8;

std::uint64_t little_endian_u64(std::span<const std::byte, kLengthBytes> bytes) {
  std::uint64_t value = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) value = (value << 8) | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

std::string quote_name(std::string_view name) {
  constexpr std::size_t kBytesMax = 160;
  std::string text = "'";
  for (const char c : name.substr(0, kBytesMax)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  text += name.size() > kBytesMax ? "...'" : "'";
  return text;
}

SafetensorsFile::SafetensorsFile(MappedFile file, std::vector<TensorInfo> tensors, std::int64_t data_begin)
    : file_(std::move(file)), tensors_(std::move(tensors)), data_begin_(data_begin) {}

base::Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  const std::string name = path.filename().string();
  if (file.size() < kLengthBytes) {
    return base::failure(base::data_loss(
        fmt::format("{}: {} bytes, expected at least the {} of the header's length", name, file.size(), kLengthBytes)));
  }
  std::array<std::byte, kLengthBytes> length_bytes{};
  TESSERA_RETURN_IF_ERROR(file.read_at(0, length_bytes));
  const std::uint64_t length = little_endian_u64(length_bytes);
  if (length > static_cast<std::uint64_t>(base::limits::kSafetensorsHeaderBytesMax)) {
    return base::failure(base::out_of_range(fmt::format("{}: header of {} bytes, expected at most {}", name, length,
                                                        base::limits::kSafetensorsHeaderBytesMax)));
  }
  const std::int64_t header_bytes = static_cast<std::int64_t>(length);
  if (header_bytes > file.size() - kLengthBytes) {
    return base::failure(base::data_loss(
        fmt::format("{}: header of {} bytes is longer than the file ({} bytes)", name, header_bytes, file.size())));
  }
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  TESSERA_RETURN_IF_ERROR(file.read_at(kLengthBytes, std::as_writable_bytes(std::span(header))));
  const std::int64_t data_begin = kLengthBytes + header_bytes;
  TESSERA_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors,
                           parse_safetensors_header(header, file.size() - data_begin, name));
  return SafetensorsFile(std::move(file), std::move(tensors), data_begin);
}

std::span<const std::byte> SafetensorsFile::data(const TensorInfo& tensor) const {
  const std::span<const std::byte> bytes = file_.bytes();
  TESSERA_CHECK(!bytes.empty(), "data() before map()");
  return bytes.subspan(static_cast<std::size_t>(data_begin_ + tensor.offset), static_cast<std::size_t>(tensor.bytes));
}

}  // namespace tessera::weights
