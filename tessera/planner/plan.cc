#include "tessera/planner/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/planner/published.h"

namespace tessera::planner {

namespace {

namespace limits = base::limits;

constexpr std::int32_t kRanksMax = 4096;
constexpr std::int64_t kBatchMax = 1 << 20;
constexpr std::int64_t kGpusMax = 1 << 20;
constexpr std::size_t kListMax = 64;
constexpr std::int64_t kMemoryMax = 1ll << 50;
constexpr std::int32_t kGroupRanks[] = {1, 2, 4, 8, 16, 32};

base::Status refuse(std::string_view what, std::string_view value, std::string_view expected) {
  return base::invalid_argument(fmt::format("{} is {}, expected {}", what, value, expected));
}

base::Status check_list(std::string_view what, const std::vector<std::int64_t>& values, std::int64_t max) {
  if (values.empty() || values.size() > kListMax) {
    return refuse(what, fmt::format("a list of {}", values.size()), fmt::format("1 to {} numbers", kListMax));
  }
  for (const std::int64_t value : values) {
    if (value < 1 || value > max) return refuse(what, fmt::format("{}", value), fmt::format("1 to {}", max));
  }
  return base::ok_status();
}

base::Status check_request(const PlanRequest& request) {
  if (request.tp < 1 || request.tp > kRanksMax) {
    return refuse("tp", fmt::format("{}", request.tp), fmt::format("1 to {}", kRanksMax));
  }
  if (request.gpus < 0 || request.gpus > kGpusMax || request.gpus % request.tp != 0) {
    return refuse("gpus", fmt::format("{}", request.gpus), fmt::format("a multiple of tp {}", request.tp));
  }
  if (request.page_size < 1 || request.page_size > 1024) {
    return refuse("page size", fmt::format("{}", request.page_size), "1 to 1024");
  }
  if (request.gpu.memory_bytes < 1 || request.gpu.memory_bytes > kMemoryMax) {
    return refuse("GPU memory", fmt::format("{}", request.gpu.memory_bytes), fmt::format("1 to {} bytes", kMemoryMax));
  }
  for (const auto& [what, figure] :
       {std::pair{"read bandwidth", request.gpu.read_bandwidth}, std::pair{"BF16 FLOP/s", request.gpu.bf16_flops},
        std::pair{"FP8 FLOP/s", request.gpu.fp8_flops}}) {
    if (!(figure.value >= 1 && figure.value <= 1e21)) {
      return refuse(what, fmt::format("{}", figure.value), "1 to 1e21 a second");
    }
  }
  const Reserve& reserve = request.reserve;
  if (reserve.bytes.has_value() ? *reserve.bytes < 0 || *reserve.bytes > kMemoryMax
                                : !(reserve.fraction >= 0 && reserve.fraction < 1)) {
    return refuse("reserve",
                  reserve.bytes.has_value() ? fmt::format("{}", *reserve.bytes) : fmt::format("{}", reserve.fraction),
                  "bytes, or a fraction from 0 to below 1");
  }
  TESSERA_RETURN_IF_ERROR(check_list("context", request.contexts, limits::kContextMax));
  TESSERA_RETURN_IF_ERROR(check_list("batch", request.batches, kBatchMax));
  if (!request.held_tokens.empty()) {
    TESSERA_RETURN_IF_ERROR(check_list("held tokens", request.held_tokens, 1'000'000'000'000));
  }
  return base::ok_status();
}

base::Result<PhasePlan> plan_phase(const Plan& plan, const Precision& precision, UpProjection up) {
  const PlanRequest& request = plan.request;
  PhasePlan phase;
  phase.precision = precision;
  TESSERA_ASSIGN_OR_RETURN(phase.weights, weight_memory(plan.facts, precision.weights, up, request.tp));
  phase.free_bytes = request.gpu.memory_bytes - plan.reserve_bytes - phase.weights.rank_bytes;
  for (const ops::KvFormat format : kKvFormats) {
    TESSERA_ASSIGN_OR_RETURN(const KvMemory memory,
                             kv_memory(plan.facts, format, request.page_size, request.tp, phase.free_bytes));
    phase.kv.push_back(memory);
  }
  return phase;
}

base::Status plan_rows(Plan& plan) {
  const PlanRequest& request = plan.request;
  TESSERA_ASSIGN_OR_RETURN(plan.step,
                           step_bytes(plan.facts, plan.decode.weights, request.decode.kv, request.page_size));
  std::vector<double> chosen;
  if (plan.facts.expert_layers > 0) {
    chosen = expert_probabilities(request.routing, plan.facts.n_routed_experts, plan.facts.num_experts_per_tok);
  }
  for (const std::int64_t context : request.contexts) {
    const std::int64_t held = requests_that_fit(plan.decode.chosen_kv(), request.page_size, context);
    for (const std::int64_t batch : request.batches) {
      const double touched = expected_experts(chosen, batch) * static_cast<double>(plan.facts.expert_layers);
      plan.decode_rows.push_back(
          {batch, context, batch <= held,
           step_floor(plan.facts, plan.step, {batch, context, touched}, request.gpu.read_bandwidth.value)});
    }
    TESSERA_ASSIGN_OR_RETURN(const PrefillFloor floor,
                             prefill_floor(plan.facts, plan.prefill.weights, request.gpu, request.routing, context));
    plan.prefill_rows.push_back(floor);
  }
  return base::ok_status();
}

GroupRow plan_group(const Plan& plan, std::int32_t tp) {
  const PlanRequest& request = plan.request;
  GroupRow row;
  row.tp = tp;
  const auto weights = weight_memory(plan.facts, request.decode.weights, request.decode_up, tp);
  if (!weights.has_value()) {
    row.refused = weights.error().message();
    return row;
  }
  row.rank_bytes = weights->rank_bytes;
  row.free_bytes = request.gpu.memory_bytes - plan.reserve_bytes - row.rank_bytes;
  const auto kv = kv_memory(plan.facts, request.decode.kv, request.page_size, tp, row.free_bytes);
  if (!kv.has_value()) {
    row.refused = kv.error().message();
    return row;
  }
  row.tokens = kv->tokens;
  return row;
}

base::Result<ImpliedReserve> imply(const Plan& plan, std::string source, const Precision& precision,
                                   std::int64_t tokens) {
  const PlanRequest& request = plan.request;
  TESSERA_ASSIGN_OR_RETURN(const WeightMemory weights,
                           weight_memory(plan.facts, precision.weights, request.decode_up, request.tp));
  TESSERA_ASSIGN_OR_RETURN(const ops::KvLayout layout,
                           rank_kv_layout(plan.facts, precision.kv, request.page_size, request.tp));
  ImpliedReserve implied;
  implied.source = std::move(source);
  implied.weights = precision.weights;
  implied.format = precision.kv;
  implied.tokens = tokens;
  implied.weight_bytes = weights.rank_bytes;
  implied.kv_bytes = static_cast<double>(tokens) * static_cast<double>(layout.token_bytes());
  implied.reserve_bytes =
      static_cast<double>(request.gpu.memory_bytes) - static_cast<double>(weights.rank_bytes) - implied.kv_bytes;
  return implied;
}

base::Status plan_implied(Plan& plan) {
  const PlanRequest& request = plan.request;
  for (const PublishedTokens& published : published_tokens()) {
    if (!published.describes(plan.facts) || published.gpu != request.gpu.name || published.tp != request.tp) continue;
    std::string source = fmt::format("published for {}", published.model);
    if (!published.format_note.empty()) source += fmt::format(" ({})", published.format_note);
    TESSERA_ASSIGN_OR_RETURN(ImpliedReserve implied,
                             imply(plan, std::move(source), {published.recipe, published.format}, published.tokens));
    plan.implied.push_back(std::move(implied));
  }
  for (const std::int64_t tokens : request.held_tokens) {
    TESSERA_ASSIGN_OR_RETURN(ImpliedReserve implied, imply(plan, "asked", request.decode, tokens));
    plan.implied.push_back(std::move(implied));
  }
  return base::ok_status();
}

base::Status fit_phase(const Plan& plan, std::string_view name, const PhasePlan& phase) {
  if (phase.free_bytes <= 0) {
    return base::resource_exhausted(
        fmt::format("{} pool: {}", name, memory_sentence(plan, phase.weights.rank_bytes, plan.request.tp)));
  }
  const std::int64_t longest = std::ranges::max(plan.request.contexts);
  if (requests_that_fit(phase.chosen_kv(), plan.request.page_size, longest) < 1) {
    return base::resource_exhausted(
        fmt::format("{} pool: {:.2f} GB are left for KV on each GPU, which is {} tokens in {}; one sequence of {} "
                    "tokens does not fit",
                    name, static_cast<double>(phase.free_bytes) / 1e9, phase.chosen_kv().tokens,
                    ops::kv_format_name(phase.precision.kv), longest));
  }
  return base::ok_status();
}

}  // namespace

const KvMemory& PhasePlan::chosen_kv() const {
  const auto found = std::ranges::find(kv, precision.kv, &KvMemory::format);
  TESSERA_CHECK(found != kv.end());
  return *found;
}

base::Result<Plan> make_plan(const models::ModelConfig& config, const PlanRequest& request) {
  TESSERA_RETURN_IF_ERROR(check_request(request));
  Plan plan;
  plan.request = request;
  if (plan.request.gpus == 0) plan.request.gpus = request.tp;
  plan.replicas = plan.request.gpus / request.tp;
  plan.reserve_bytes = request.reserve.bytes.value_or(
      std::llround(request.reserve.fraction * static_cast<double>(request.gpu.memory_bytes)));
  TESSERA_ASSIGN_OR_RETURN(plan.facts, facts_of(config));
  if (plan.facts.num_attention_heads % request.tp != 0) {
    return base::failure(base::invalid_argument(fmt::format("{} attention heads cannot be divided among {} ranks",
                                                            plan.facts.num_attention_heads, request.tp)));
  }
  for (const WeightRecipe recipe : kWeightRecipes) plan.checkpoints.push_back(checkpoint_size(plan.facts, recipe));
  TESSERA_ASSIGN_OR_RETURN(plan.prefill, plan_phase(plan, request.prefill, UpProjection::kAsRecipe));
  TESSERA_ASSIGN_OR_RETURN(plan.decode, plan_phase(plan, request.decode, request.decode_up));
  TESSERA_RETURN_IF_ERROR(plan_rows(plan));
  std::vector<std::int32_t> sizes(std::begin(kGroupRanks), std::end(kGroupRanks));
  if (std::ranges::find(sizes, request.tp) == sizes.end()) sizes.push_back(request.tp);
  std::ranges::sort(sizes);
  for (const std::int32_t tp : sizes) plan.groups.push_back(plan_group(plan, tp));
  TESSERA_RETURN_IF_ERROR(plan_implied(plan));
  return plan;
}

std::string memory_sentence(const Plan& plan, std::int64_t rank_bytes, std::int64_t gpus) {
  const double weights = static_cast<double>(rank_bytes) / 1e9;
  const double reserve = static_cast<double>(plan.reserve_bytes) / 1e9;
  const double memory = static_cast<double>(plan.request.gpu.memory_bytes) / 1e9;
  const double left = memory - weights - reserve;
  const std::string sum = fmt::format("{:.1f} GB of weights + {:.1f} GB of reserve = {:.1f} GB of the {:.1f} GB of ",
                                      weights, reserve, weights + reserve, memory);
  const std::string who = gpus == 1 ? fmt::format("one {}", plan.request.gpu.name)
                                    : fmt::format("each of {} {}", gpus, plan.request.gpu.name);
  if (left > 0) return fmt::format("{}{}: {:.1f} GB are left for KV", sum, who, left);
  return fmt::format("{} cannot hold it: {}{}, {:.1f} GB too much", who, sum, who, -left);
}

base::Status fit(const Plan& plan) {
  TESSERA_RETURN_IF_ERROR(fit_phase(plan, "prefill", plan.prefill));
  return fit_phase(plan, "decode", plan.decode);
}

}  // namespace tessera::planner
