// Writes safetensors files and the index of a sharded checkpoint. Tensors are declared first (the header needs their
// sizes) and their bytes follow one after another, so that a writer never holds more than one tensor. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/status.h"
#include "tessera/weights/safetensors.h"

namespace tessera::weights {

struct TensorDeclaration {
  std::string name;
  base::DType dtype = base::DType::kF32;
  std::vector<std::int64_t> shape;
};

class SafetensorsWriter {
 public:
  // Writes the header to `path`.partial. Refuses what a reader would refuse: empty or duplicate names, negative
  // extents, too many of them, sizes that overflow. The header is padded so that the data begins at a multiple of 8
  // bytes; declare wide dtypes first to keep every tensor aligned.
  static base::Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                                std::vector<TensorDeclaration> tensors);
  // The bytes of the next tensor in the order of declaration, whose name and size must match.
  base::Status write(std::string_view name, std::span<const std::byte> data);
  // All tensors were written: the file takes its name. Without it, nothing but the partial file exists.
  base::Status finish();

 private:
  SafetensorsWriter() = default;
  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::ofstream file_;
  std::vector<TensorInfo> tensors_;
  std::size_t next_ = 0;
};

// Writes model.safetensors.index.json. weight_map: tensor name to shard name; total_bytes: of all tensors.
base::Status write_checkpoint_index(const std::filesystem::path& dir,
                                    const std::map<std::string, std::string>& weight_map, std::int64_t total_bytes);

}  // namespace tessera::weights
