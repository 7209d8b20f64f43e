// The tensors of a model folder: either one `model.safetensors`, or the shards that `model.safetensors.index.json`
// names. Used from one thread while it is loaded; afterwards the mapped bytes may be read from any.
//
// Invariant: every file was found sound, and agreed with the index, before the first was mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/status.h"
#include "tessera/weights/safetensors.h"

namespace tessera::weights {

inline constexpr std::string_view kSingleFileName = "model.safetensors";
inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";

// One tensor of an open checkpoint. Everything it refers to lives as long as the Checkpoint, wherever that is moved.
struct Tensor {
  std::string_view name;
  base::DType dtype = base::DType::kF32;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> data;  // Mapped, read-only, not aligned.
  std::string_view file;            // The shard's name, for messages.
};

// The weight_map of an index: tensor name to shard name. Refused: malformed JSON, a missing or empty weight_map, shard
// names that are no plain `*.safetensors` names (a path would lead out of the folder), more than
// limits::kShardsPerCheckpointMax shards.
base::Result<std::map<std::string, std::string, std::less<>>> parse_checkpoint_index(std::string_view json,
                                                                                     std::string_view file_name);

class Checkpoint {
 public:
  // Refuses: a folder with neither file, or with both; whatever SafetensorsFile and the index refuse; a shard that is
  // not there; a tensor that the index puts into a shard which lacks it; a tensor in a shard that the index does not
  // put there.
  static base::Result<Checkpoint> open(const std::filesystem::path& dir);
  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  // All tensors, by name.
  std::span<const Tensor> tensors() const { return tensors_; }
  // Null when there is no such tensor.
  const Tensor* find(std::string_view name) const;
  // The tensor, marked as consumed, or not_found. Taking it again is fine: tied weights are used twice.
  base::Result<Tensor> take(std::string_view name);
  // The tensors that were never taken. Whatever is left after loading is something the model does not compute with.
  std::vector<Tensor> unconsumed() const;

  const std::filesystem::path& dir() const { return dir_; }
  // Where the list of tensors is written down: the index, or the single file. For messages.
  std::string_view list_file() const { return files_.size() == 1 && !sharded_ ? kSingleFileName : kIndexFileName; }
  std::int64_t file_count() const { return std::ssize(files_); }
  std::int64_t file_bytes() const;
  // Of all tensors.
  std::int64_t tensor_bytes() const;

 private:
  Checkpoint() = default;
  std::filesystem::path dir_;
  bool sharded_ = false;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> file_names_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint8_t> taken_;  // Beside tensors_.
};

}  // namespace tessera::weights
