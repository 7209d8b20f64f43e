#include "tessera/weights/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "tessera/base/limits.h"

namespace tessera::weights {

namespace {

using WeightMap = std::map<std::string, std::string, std::less<>>;

bool file_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

base::Result<std::vector<SafetensorsFile>> open_shards(const std::filesystem::path& dir, const WeightMap& weight_map) {
  std::set<std::string> names;
  for (const auto& [tensor, shard] : weight_map) names.insert(shard);
  std::vector<SafetensorsFile> files;
  files.reserve(names.size());
  for (const std::string& name : names) {
    if (!file_exists(dir / name)) {
      return base::failure(
          base::not_found(fmt::format("{}: shard {} is not in the folder", kIndexFileName, quote_name(name))));
    }
    TESSERA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(dir / name));
    files.push_back(std::move(file));
  }
  return files;
}

// Both directions: what the index says is there, and what is there the index says.
base::Status check_against_index(std::span<const SafetensorsFile> files, const WeightMap& weight_map) {
  std::size_t found = 0;
  for (const SafetensorsFile& file : files) {
    for (const TensorInfo& tensor : file.tensors()) {
      const auto entry = weight_map.find(tensor.name);
      if (entry == weight_map.end()) {
        return base::invalid_argument(fmt::format("{}: tensor {} is in no weight_map entry of {}", file.file_name(),
                                                  quote_name(tensor.name), kIndexFileName));
      }
      if (entry->second != file.file_name()) {
        return base::invalid_argument(fmt::format("{}: tensor {} is here, but {} puts it into {}", file.file_name(),
                                                  quote_name(tensor.name), kIndexFileName, quote_name(entry->second)));
      }
      ++found;
    }
  }
  if (found == weight_map.size()) return base::ok_status();
  std::set<std::string_view> present;
  for (const SafetensorsFile& file : files) {
    for (const TensorInfo& tensor : file.tensors()) present.insert(tensor.name);
  }
  for (const auto& [tensor, shard] : weight_map) {
    if (!present.contains(tensor)) {
      return base::not_found(fmt::format("{}: tensor {} should be in {}, which lacks it", kIndexFileName,
                                         quote_name(tensor), quote_name(shard)));
    }
  }
  return base::ok_status();
}

}  // namespace

base::Result<Checkpoint> Checkpoint::open(const std::filesystem::path& dir) {
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  const bool single = file_exists(dir / kSingleFileName);
  checkpoint.sharded_ = file_exists(dir / kIndexFileName);
  if (checkpoint.sharded_) {
    TESSERA_ASSIGN_OR_RETURN(const std::string json,
                             read_text_file(dir / kIndexFileName, base::limits::kJsonFileBytesMax));
    TESSERA_ASSIGN_OR_RETURN(const WeightMap weight_map, parse_checkpoint_index(json, kIndexFileName));
    const auto is_single = [](const auto& entry) { return entry.second == kSingleFileName; };
    if (single && !std::ranges::any_of(weight_map, is_single)) {
      return base::failure(
          base::invalid_argument(fmt::format("{}: {} names other files than the {} beside it, expected one of them",
                                             dir.string(), kIndexFileName, kSingleFileName)));
    }
    TESSERA_ASSIGN_OR_RETURN(checkpoint.files_, open_shards(dir, weight_map));
    TESSERA_RETURN_IF_ERROR(check_against_index(checkpoint.files_, weight_map));
  } else if (single) {
    TESSERA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(dir / kSingleFileName));
    checkpoint.files_.push_back(std::move(file));
  } else {
    return base::failure(
        base::not_found(fmt::format("{}: expected {} or {}", dir.string(), kSingleFileName, kIndexFileName)));
  }

  std::int64_t count = 0;
  for (const SafetensorsFile& file : checkpoint.files_) count += std::ssize(file.tensors());
  if (count > base::limits::kTensorsPerCheckpointMax) {
    return base::failure(base::out_of_range(fmt::format("{}: {} tensors, expected at most {}", dir.string(), count,
                                                        base::limits::kTensorsPerCheckpointMax)));
  }
  checkpoint.tensors_.reserve(static_cast<std::size_t>(count));
  for (const SafetensorsFile& file : checkpoint.files_) checkpoint.file_names_.push_back(file.file_name());
  for (std::size_t i = 0; i < checkpoint.files_.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(checkpoint.files_[i].map());
    for (const TensorInfo& info : checkpoint.files_[i].tensors()) {
      checkpoint.tensors_.push_back(
          Tensor{info.name, info.dtype, info.shape, checkpoint.files_[i].data(info), checkpoint.file_names_[i]});
    }
  }
  std::ranges::sort(checkpoint.tensors_, {}, &Tensor::name);
  checkpoint.taken_.assign(checkpoint.tensors_.size(), 0);
  return checkpoint;
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors_, name, {}, &Tensor::name);
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

base::Result<Tensor> Checkpoint::take(std::string_view name) {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) {
    return base::failure(base::not_found(fmt::format("{}: tensor {} is missing", list_file(), quote_name(name))));
  }
  taken_[static_cast<std::size_t>(tensor - tensors_.data())] = 1;
  return *tensor;
}

std::vector<Tensor> Checkpoint::unconsumed() const {
  std::vector<Tensor> left;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (taken_[i] == 0) left.push_back(tensors_[i]);
  }
  return left;
}

std::int64_t Checkpoint::file_bytes() const {
  std::int64_t bytes = 0;
  for (const SafetensorsFile& file : files_) bytes += file.file_bytes();
  return bytes;
}

std::int64_t Checkpoint::tensor_bytes() const {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : tensors_) bytes += std::ssize(tensor.data);
  return bytes;
}

}  // namespace tessera::weights
