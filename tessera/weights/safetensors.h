// One safetensors file: a u64 little-endian header length, a JSON header, then the tensors' bytes
// (docs/checkpoints.md). A file is believed only after every number in its header was checked against its real size:
// nothing is allocated because a header asks for it, and nothing is mapped before the whole header is found sound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/status.h"
#include "tessera/weights/mapped_file.h"

namespace tessera::weights {

// A tensor as a header describes it, row-major, last dimension fastest.
struct TensorInfo {
  std::string name;
  base::DType dtype = base::DType::kF32;
  std::vector<std::int64_t> shape;  // Empty: a scalar.
  std::int64_t offset = 0;          // Of its first byte, from the end of the header.
  std::int64_t bytes = 0;           // Always the product of the shape times the element size.
};

// Parses the JSON text of a header. data_bytes is the number of bytes that follow it in the file; file_name goes into
// messages. The tensors come back in the order of their offsets.
//
// Refused: malformed JSON, duplicate or empty names, missing, duplicate or unknown fields, unknown dtypes
// (unimplemented), numbers that are negative, fractional or too large, ranks above limits::kTensorRankMax, a shape
// whose size is not the extent of its offsets, overlaps, holes, offsets past the data (data_loss: the file is
// truncated), and bytes that belong to no tensor.
base::Result<std::vector<TensorInfo>> parse_safetensors_header(std::string_view header, std::int64_t data_bytes,
                                                               std::string_view file_name);

class SafetensorsFile {
 public:
  // Opens the file and checks its header; maps nothing yet.
  static base::Result<SafetensorsFile> open(const std::filesystem::path& path);

  std::string file_name() const { return file_.path().filename().string(); }
  std::span<const TensorInfo> tensors() const { return tensors_; }
  std::int64_t file_bytes() const { return file_.size(); }

  // Maps the file. The bytes stay valid, at the same address, while this object (or what it was moved into) lives.
  base::Status map() { return file_.map(); }
  // The bytes of one of tensors(); map() must have succeeded. Aligned to nothing: old writers did not pad the header.
  std::span<const std::byte> data(const TensorInfo& tensor) const;

 private:
  SafetensorsFile(MappedFile file, std::vector<TensorInfo> tensors, std::int64_t data_begin);
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::int64_t data_begin_ = 0;
};

// "[2, 3]", for messages.
std::string shape_text(std::span<const std::int64_t> shape);
// A name from outside as a message may carry it: in quotes, control characters escaped, cut after 160 bytes.
std::string quote_name(std::string_view name);

}  // namespace tessera::weights
