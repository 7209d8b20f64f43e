#include "tessera/models/weight_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/weights/digest.h"

namespace tessera::models {

namespace {

base::Status check_head(const ModelConfig& config, const ModelDescription& description,
                        const weights::Checkpoint& checkpoint) {
  const bool present = checkpoint.find(description.head_tensor) != nullptr;
  if (config.tie_word_embeddings == !present) return base::ok_status();
  // A quantized head has another name; that it is quantized is taken up where it is taken.
  if (!config.tie_word_embeddings && config.quantization.quantized()) return base::ok_status();
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

// Takes what the family skips, and scales for a KV cache that is not quantized as they mean it.
base::Result<SkippedTensors> skip_tensors(const ModelDescription& description, weights::Checkpoint& checkpoint) {
  SkippedTensors skipped;
  for (const weights::Tensor& tensor : checkpoint.unconsumed()) {
    if (!description.skips(tensor.name)) continue;
    TESSERA_ASSIGN_OR_RETURN(const weights::Tensor taken, checkpoint.take(tensor.name));
    ++skipped.tensors;
    skipped.bytes += std::ssize(taken.data);
  }
  std::string patterns;
  for (const NamePattern& pattern : description.skipped) {
    patterns += fmt::format("{}{}*{}", patterns.empty() ? "" : ", ", pattern.prefix, pattern.suffix);
  }
  if (skipped.tensors > 0) {
    base::log().info("checkpoint: {} tensors of {} bytes are not computed with ({})", skipped.tensors, skipped.bytes,
                     patterns);
  }
  const std::vector<weights::Tensor> kv_scales = weights::take_kv_scales(checkpoint);
  if (!kv_scales.empty()) {
    base::log().warn(
        "checkpoint: {} scales for a quantized KV cache ({} and others) are not used: scales are computed as KV is "
        "written",
        kv_scales.size(), weights::quote_name(kv_scales.front().name));
  }
  skipped.tensors += std::ssize(kv_scales);
  for (const weights::Tensor& tensor : kv_scales) skipped.bytes += std::ssize(tensor.data);
  return skipped;
}

// The weights on their way into the backend.
class Preparation {
 public:
  Preparation(const ModelDescription& description, std::span<const weights::StoredWeight> stored, ops::Backend& backend)
      : description_(description), stored_(stored), backend_(backend) {}

  base::Result<ops::Weight> weight(std::size_t i) {
    auto weight = backend_.prepare_weight(source(i));
    if (!weight.has_value()) return base::failure(named(i, weight.error()));
    count(*weight, stored_[i]);
    return weight;
  }
  base::Result<ops::MlaUpProjection> mla_up(const MlaUpSpec& spec) {
    auto up = backend_.prepare_mla_up(source(spec.tensor), spec.shape);
    if (!up.has_value()) return base::failure(named(spec.tensor, up.error()));
    count(up->weight, stored_[spec.tensor]);
    bytes_ += up->storage.bytes();
    return up;
  }
  base::Result<ops::ExpertStack> experts(const ExpertStackSpec& spec) {
    std::vector<ops::WeightSource> products[3];
    for (std::size_t e = 0; e < static_cast<std::size_t>(spec.experts); ++e) {
      for (std::size_t p = 0; p < 3; ++p) {
        const std::size_t i = spec.first + 3 * e + p;
        const weights::StoredWeight& first = stored_[spec.first];
        if (stored_[i].format != first.format || stored_[i].group_size != first.group_size) {
          return base::failure(
              named(i, base::unimplemented(fmt::format(
                           "is stored as {}, expected all experts of a layer to be stored alike, as {}",
                           ops::weight_format_name(stored_[i].format), ops::weight_format_name(first.format)))));
        }
        products[p].push_back(source(i));
      }
    }
    auto stack = backend_.prepare_experts({.gate = products[0], .up = products[1], .down = products[2]});
    if (!stack.has_value()) return base::failure(named(spec.first, stack.error()));
    bytes_ += stack->storage.bytes();
    const std::vector<ops::Weight>* const prepared[3] = {&stack->gate, &stack->up, &stack->down};
    for (std::size_t p = 0; p < 3; ++p) {
      for (std::size_t e = 0; e < prepared[p]->size(); ++e) count((*prepared[p])[e], stored_[spec.first + 3 * e + p]);
    }
    return stack;
  }

  std::int64_t bytes() const { return bytes_; }
  // Whether a prepared weight reads the scales that were converted for it where they are.
  bool uses_converted(const weights::StoredWeight& stored) const {
    return stored.owned_bytes() > 0 && in_place_.contains(stored.converted_scales.data());
  }

 private:
  ops::WeightSource source(std::size_t i) const { return stored_[i].source(description_.tensors[i].usage); }

  base::Status named(std::size_t i, const base::Status& error) const {
    return error.with_context(fmt::format("{}: tensor {}", stored_[i].tensors.front().file,
                                          weights::quote_name(description_.tensors[i].name)));
  }
  // The memory of a weight: what the backend took, and what it reads in place, converted scales among it. What two
  // usages read in place (a tied embedding) is memory once.
  void count(const ops::Weight& weight, const weights::StoredWeight& stored) {
    bytes_ += weight.storage.bytes();
    for (const weights::Tensor& tensor : stored.tensors) {
      const void* at = tensor.data.data();
      const bool read = at != nullptr && (at == weight.data || at == weight.scales);
      if (read && in_place_.insert(at).second) bytes_ += std::ssize(tensor.data);
    }
    if (stored.owned_bytes() > 0 && weight.scales == stored.converted_scales.data()) {
      in_place_.insert(weight.scales);
      bytes_ += stored.owned_bytes();
    }
  }

  const ModelDescription& description_;
  const std::span<const weights::StoredWeight> stored_;
  ops::Backend& backend_;
  std::int64_t bytes_ = 0;
  std::set<const void*> in_place_;
};

// "bf16+int4_group": what the products' weights are stored as.
std::string format_names(const ModelDescription& description, std::span<const weights::StoredWeight> stored) {
  std::set<std::string_view> formats;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (description.tensors[i].usage == ops::WeightUsage::kLinear) {
      formats.insert(ops::weight_format_name(stored[i].format));
    }
  }
  std::string names;
  for (const std::string_view format : formats) {
    names += names.empty() ? "" : "+";
    names += format;
  }
  return names;
}

}  // namespace

base::Result<TakenWeights> take_weights(const ModelConfig& config, const ModelDescription& description,
                                        weights::Checkpoint& checkpoint) {
  TESSERA_RETURN_IF_ERROR(check_head(config, description, checkpoint));
  TakenWeights taken;
  taken.stored.reserve(description.tensors.size());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<weights::StoredFormat> formats, stored_formats(config, description));
  for (std::size_t i = 0; i < formats.size(); ++i) {
    const TensorSpec& spec = description.tensors[i];
    TESSERA_ASSIGN_OR_RETURN(weights::StoredWeight weight,
                             weights::take_weight(checkpoint, spec.name, spec.shape, formats[i]));
    taken.stored.push_back(std::move(weight));
  }
  TESSERA_ASSIGN_OR_RETURN(taken.skipped, skip_tensors(description, checkpoint));
  TESSERA_RETURN_IF_ERROR(check_nothing_left(checkpoint));
  for (const std::string& note : config.quantization.notes()) base::log().info("checkpoint: {}", note);
  return taken;
}

base::Result<LoadedModel> load_weights(const ModelConfig& config, std::string_view config_text,
                                       const ModelDescription& description, weights::Checkpoint checkpoint,
                                       ops::Backend& backend,
                                       const std::function<void(const LoadProgress&)>& progress) {
  TESSERA_ASSIGN_OR_RETURN(TakenWeights taken, take_weights(config, description, checkpoint));
  std::vector<weights::StoredWeight>& stored = taken.stored;
  LoadProgress done;
  for (const weights::StoredWeight& weight : stored) done.bytes_total += weight.stored_bytes();

  LoadedModel loaded{.config = config, .backend = &backend, .checkpoint = std::move(checkpoint)};
  loaded.skipped = taken.skipped;
  loaded.weights.resize(description.tensors.size());
  weights::CheckpointDigest digest(config_text);
  Preparation preparation(description, stored, backend);
  auto stack = description.expert_stacks.begin();
  auto up = description.mla_ups.begin();
  for (std::size_t i = 0; i < description.tensors.size();) {
    std::size_t next = i + 1;
    const bool is_stack = stack != description.expert_stacks.end() && stack->first == i;
    if (is_stack) next = i + 3 * static_cast<std::size_t>(stack->experts);
    for (std::size_t j = i; j < next; ++j) TESSERA_RETURN_IF_ERROR(stored[j].check_scales());
    if (is_stack) {
      TESSERA_ASSIGN_OR_RETURN(ops::ExpertStack experts, preparation.experts(*stack));
      loaded.expert_stacks.push_back(std::move(experts));
      ++stack;
    } else if (up != description.mla_ups.end() && up->tensor == i) {
      TESSERA_ASSIGN_OR_RETURN(ops::MlaUpProjection projection, preparation.mla_up(*up));
      loaded.mla_ups.push_back(std::move(projection));
      ++up;
    } else {
      TESSERA_ASSIGN_OR_RETURN(loaded.weights[i], preparation.weight(i));
    }
    for (; i < next; ++i) {
      for (const weights::Tensor& tensor : stored[i].tensors) digest.add(tensor);
      done.bytes_done += stored[i].stored_bytes();
    }
    if (progress) progress(done);
  }
  loaded.weight_bytes = preparation.bytes();
  loaded.weight_format = format_names(description, stored);
  loaded.digest = digest.finish();
  // Only converted scales are memory of their own, and kept where the backend made no copy of them.
  std::erase_if(stored, [&](const weights::StoredWeight& weight) { return !preparation.uses_converted(weight); });
  loaded.converted = std::move(stored);
  return loaded;
}

}  // namespace tessera::models
