#include "tessera/models/weight_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/weights/digest.h"

namespace tessera::models {

namespace {

base::Status check_head(const ModelConfig& config, const ModelDescription& description,
                        const weights::Checkpoint& checkpoint) {
  const bool present = checkpoint.find(description.head_tensor) != nullptr;
  if (config.tie_word_embeddings == !present) return base::ok_status();
  return base::invalid_argument(fmt::format(
      "{}: tie_word_embeddings is {}, expected tensor {} to be {} {}, which {}", kConfigFileName,
      config.tie_word_embeddings, weights::quote_name(description.head_tensor),
      config.tie_word_embeddings ? "absent from" : "in", checkpoint.list_file(), present ? "has it" : "lacks it"));
}

base::Status check_nothing_left(const weights::Checkpoint& checkpoint) {
  const std::vector<weights::Tensor> left = checkpoint.unconsumed();
  if (left.empty()) return base::ok_status();
  constexpr std::size_t kNamed = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(left.size(), kNamed); ++i) {
    names += fmt::format("{}{} ({})", i == 0 ? "" : ", ", weights::quote_name(left[i].name), left[i].file);
  }
  return base::invalid_argument(fmt::format("{} tensors that the model does not use, expected none: {}{}", left.size(),
                                            names, left.size() > kNamed ? ", ..." : ""));
}

base::Result<ops::Weight> prepare(ops::Backend& backend, const TensorSpec& spec, const weights::StoredWeight& stored) {
  const weights::Tensor& tensor = stored.tensors.front();
  ops::WeightSource source;
  source.format = stored.format;
  source.usage = spec.usage;
  source.rows = spec.rows();
  source.cols = spec.cols();
  source.data = tensor.data.data();
  source.outlives_backend = true;
  auto weight = backend.prepare_weight(source);
  if (!weight.has_value()) {
    return base::failure(
        weight.error().with_context(fmt::format("{}: tensor {}", tensor.file, weights::quote_name(spec.name))));
  }
  return weight;
}

}  // namespace

base::Result<std::vector<weights::StoredWeight>> take_weights(const ModelConfig& config,
                                                              const ModelDescription& description,
                                                              weights::Checkpoint& checkpoint) {
  TESSERA_RETURN_IF_ERROR(check_head(config, description, checkpoint));
  std::vector<weights::StoredWeight> stored;
  stored.reserve(description.tensors.size());
  for (const TensorSpec& spec : description.tensors) {
    TESSERA_ASSIGN_OR_RETURN(weights::StoredWeight weight, weights::take_weight(checkpoint, spec.name, spec.shape));
    stored.push_back(std::move(weight));
  }
  TESSERA_RETURN_IF_ERROR(check_nothing_left(checkpoint));
  return stored;
}

base::Result<LoadedModel> load_weights(const ModelConfig& config, std::string_view config_text,
                                       const ModelDescription& description, weights::Checkpoint checkpoint,
                                       ops::Backend& backend,
                                       const std::function<void(const LoadProgress&)>& progress) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<weights::StoredWeight> stored,
                           take_weights(config, description, checkpoint));
  LoadProgress done;
  for (const weights::StoredWeight& weight : stored) {
    for (const weights::Tensor& tensor : weight.tensors) done.bytes_total += std::ssize(tensor.data);
  }

  std::vector<ops::Weight> prepared;
  prepared.reserve(description.tensors.size());
  std::int64_t weight_bytes = 0;
  std::set<const void*> in_place;  // A tied weight that two usages read in place is memory once.
  std::set<std::string_view> formats;
  weights::CheckpointDigest digest(config_text);
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    for (const weights::Tensor& tensor : stored[i].tensors) digest.add(tensor);
    TESSERA_ASSIGN_OR_RETURN(ops::Weight weight, prepare(backend, description.tensors[i], stored[i]));
    weight_bytes += weight.storage.bytes();
    for (const weights::Tensor& tensor : stored[i].tensors) {
      if (weight.storage.bytes() == 0 && in_place.insert(tensor.data.data()).second) {
        weight_bytes += std::ssize(tensor.data);
      }
      done.bytes_done += std::ssize(tensor.data);
    }
    if (description.tensors[i].usage == ops::WeightUsage::kLinear) {
      formats.insert(ops::weight_format_name(stored[i].format));
    }
    prepared.push_back(std::move(weight));
    if (progress) progress(done);
  }
  std::string weight_format;
  for (const std::string_view format : formats) {
    weight_format += weight_format.empty() ? "" : "+";
    weight_format += format;
  }
  return LoadedModel{config,       &backend,      std::move(checkpoint), std::move(prepared),
                     weight_bytes, weight_format, digest.finish()};
}

}  // namespace tessera::models
