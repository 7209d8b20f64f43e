#include "tessera/planner/decode_floor.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/planner/kv_memory.h"

namespace tessera::planner {

namespace {

using models::WeightPart;

// A tied head is held as the embedding but read like any head.
base::Result<std::int64_t> tied_head_bytes(const ModelFacts& facts, const WeightMemory& memory) {
  for (const TensorGroup& group : facts.tensors) {
    if (group.role != TensorRole::kTiedHead) continue;
    TESSERA_ASSIGN_OR_RETURN(const RankTensor rank, rank_tensor(group, {}, memory.tp));
    const std::int64_t element = memory.recipe == WeightRecipe::kAsStored ? facts.plain_element_bytes : 2;
    return stored_bytes({}, element, rank.rows, rank.cols) * group.count;
  }
  return 0;
}

}  // namespace

base::Result<StepBytes> step_bytes(const ModelFacts& facts, const WeightMemory& weights, ops::KvFormat format,
                                   std::int32_t page_size) {
  StepBytes bytes;
  bytes.layers = facts.num_hidden_layers;
  bytes.expert_layers = facts.expert_layers;
  for (const PartBytes& part : weights.parts) {
    if (part.part == WeightPart::kRoutedExperts) {
      TESSERA_CHECK(facts.expert_layers > 0 && facts.n_routed_experts > 0);
      bytes.expert_bytes = part.rank_bytes / (facts.expert_layers * facts.n_routed_experts);
    } else if (part.part != WeightPart::kEmbedding) {
      bytes.outside_bytes += part.rank_bytes;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::int64_t tied, tied_head_bytes(facts, weights));
  bytes.outside_bytes += tied;
  TESSERA_ASSIGN_OR_RETURN(bytes.rank_layout, rank_kv_layout(facts, format, page_size, weights.tp));
  return bytes;
}

StepFloor step_floor(const ModelFacts& facts, const StepBytes& bytes, const StepLoad& load, double read_bandwidth) {
  TESSERA_CHECK(load.batch >= 1 && load.context >= 1 && load.experts_touched >= 0 && read_bandwidth > 0);
  const auto batch = static_cast<double>(load.batch);
  StepFloor floor;
  floor.experts_touched = load.experts_touched;
  floor.expert_bytes = load.experts_touched * static_cast<double>(bytes.expert_bytes);
  floor.kv_bytes = batch * kv_read_bytes(facts, bytes.rank_layout, load.context);
  floor.bytes_moved = static_cast<double>(bytes.outside_bytes) + floor.expert_bytes + floor.kv_bytes;
  floor.floor_ms = floor.bytes_moved / read_bandwidth * 1e3;
  floor.tokens_per_second = batch / floor.floor_ms * 1e3;
  return floor;
}

base::Result<RecordCheck> check_record(const ModelFacts& facts, const StepBytes& bytes, const StepRecord& record) {
  const auto refuse = [](std::string_view field, const auto& value, const std::string& expected) {
    return base::failure(base::invalid_argument(fmt::format("record: {} is {}, expected {}", field, value, expected)));
  };
  if (record.layers != bytes.layers) return refuse("layers", record.layers, fmt::format("{}", bytes.layers));
  if (record.batch < 1) return refuse("batch", record.batch, "at least 1");
  if (record.context < 1) return refuse("context", record.context, "at least 1");
  const auto layers = static_cast<double>(facts.expert_layers);
  const double fewest = layers * static_cast<double>(facts.num_experts_per_tok);
  const double most = layers * static_cast<double>(facts.n_routed_experts);
  const double taken = std::min(most, fewest * static_cast<double>(record.batch));
  if (!(record.experts_touched >= fewest && record.experts_touched <= taken)) {
    return refuse("experts_touched", record.experts_touched, fmt::format("{} to {}", fewest, taken));
  }
  if (!(record.read_bandwidth > 0)) return refuse("read_bandwidth", record.read_bandwidth, "more than 0");
  if (!(record.step_ms > 0)) return refuse("step_ms", record.step_ms, "more than 0");
  if (!(record.bytes_moved > 0)) return refuse("bytes_moved", record.bytes_moved, "more than 0");
  RecordCheck check;
  check.floor = step_floor(facts, bytes, {record.batch, record.context, record.experts_touched}, record.read_bandwidth);
  check.bytes_ratio = record.bytes_moved / check.floor.bytes_moved;
  check.times_floor = record.step_ms / check.floor.floor_ms;
  return check;
}

}  // namespace tessera::planner
