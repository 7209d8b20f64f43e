#include "plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iostream>
#include <string_view>
#include <system_error>
#include <utility>

#include "plan_output.h"
#include "tessera/base/limits.h"
#include "tessera/models/config.h"
#include "tessera/planner/plan.h"
#include "tessera/text/utf8.h"
#include "tessera/weights/mapped_file.h"
#include "tessera/weights/safetensors.h"

namespace tessera::app {

namespace {

constexpr double kSizeMax = 1e15;

struct Quantity {
  double value = 0;
  std::string unit;
};

// A number and what follows it.
std::optional<Quantity> parse_quantity(std::string_view text) {
  Quantity quantity;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), quantity.value);
  if (error != std::errc{} || !std::isfinite(quantity.value)) return std::nullopt;
  quantity.unit.assign(end, text.data() + text.size());
  return quantity;
}

std::optional<double> unit_bytes(std::string_view unit) {
  constexpr std::array<std::pair<std::string_view, double>, 6> kUnits = {
      {{"", 1.0}, {"B", 1.0}, {"MB", 1e6}, {"GB", 1e9}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}}};
  const auto found = std::ranges::find(kUnits, unit, &std::pair<std::string_view, double>::first);
  if (found == kUnits.end()) return std::nullopt;
  return found->second;
}

base::Result<std::int64_t> parse_bytes(std::string_view flag, std::string_view text) {
  const std::optional<Quantity> quantity = parse_quantity(text);
  const std::optional<double> unit = quantity.has_value() ? unit_bytes(quantity->unit) : std::nullopt;
  if (!unit.has_value() || quantity->value < 0 || quantity->value * *unit > kSizeMax) {
    return base::failure(base::invalid_argument(fmt::format(
        "{}: {} is no size, expected bytes, or a number with MB, GB, MiB or GiB", flag, weights::quote_name(text))));
  }
  return std::llround(quantity->value * *unit);
}

// "10%" and "0.1" are fractions; everything else is a size.
base::Result<planner::Reserve> parse_reserve(std::string_view text) {
  planner::Reserve reserve;
  const std::optional<Quantity> quantity = parse_quantity(text);
  if (quantity.has_value() && quantity->unit == "%") {
    reserve.fraction = quantity->value / 100;
    return reserve;
  }
  if (quantity.has_value() && quantity->unit.empty() && quantity->value < 1) {
    reserve.fraction = quantity->value;
    return reserve;
  }
  TESSERA_ASSIGN_OR_RETURN(reserve.bytes, parse_bytes("--reserve", text));
  return reserve;
}

base::Result<ops::KvFormat> parse_kv_format(std::string_view name, ops::KvFormat automatic) {
  if (name == "auto") return automatic;
  for (const ops::KvFormat format : planner::kKvFormats) {
    if (name == ops::kv_format_name(format)) return format;
  }
  return base::failure(base::invalid_argument(
      fmt::format("KV format {} is unknown, expected auto, bf16, fp8_e4m3 or f32", weights::quote_name(name))));
}

base::Result<models::ModelConfig> read_model(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return models::read_config(path);
  TESSERA_ASSIGN_OR_RETURN(const std::string text, weights::read_text_file(path, base::limits::kConfigFileBytesMax));
  return models::parse_config(text);
}

base::Result<planner::Gpu> read_gpu(const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(planner::Gpu gpu, planner::find_gpu(options.gpu));
  if (options.gpu_memory.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(gpu.memory_bytes, parse_bytes("--gpu-memory", *options.gpu_memory));
  }
  const auto override_with = [](planner::GpuFigure& figure, const std::optional<double>& given) {
    if (given.has_value()) figure = {*given, planner::FigureSource::kGiven};
  };
  override_with(gpu.read_bandwidth, options.read_bandwidth);
  override_with(gpu.bf16_flops, options.flops_bf16);
  override_with(gpu.fp8_flops, options.flops_fp8);
  return gpu;
}

base::Result<planner::PlanRequest> read_request(const PlanOptions& options) {
  planner::PlanRequest request;
  TESSERA_ASSIGN_OR_RETURN(request.gpu, read_gpu(options));
  request.tp = options.tp;
  request.gpus = options.gpus;
  TESSERA_ASSIGN_OR_RETURN(request.reserve, parse_reserve(options.reserve));
  request.page_size = options.page_size;
  TESSERA_ASSIGN_OR_RETURN(request.prefill.weights,
                           planner::find_weight_recipe(options.prefill_weights.value_or(options.weights)));
  TESSERA_ASSIGN_OR_RETURN(request.decode.weights,
                           planner::find_weight_recipe(options.decode_weights.value_or(options.weights)));
  TESSERA_ASSIGN_OR_RETURN(
      request.prefill.kv,
      parse_kv_format(options.prefill_kv_cache_dtype.value_or(options.kv_cache_dtype), ops::KvFormat::kBF16));
  TESSERA_ASSIGN_OR_RETURN(
      request.decode.kv,
      parse_kv_format(options.decode_kv_cache_dtype.value_or(options.kv_cache_dtype), ops::KvFormat::kF8E4M3));
  if (options.decode_kv_b_proj != "bf16" && options.decode_kv_b_proj != "as-weights") {
    return base::failure(base::invalid_argument(fmt::format("--decode-kv-b-proj is {}, expected bf16 or as-weights",
                                                            weights::quote_name(options.decode_kv_b_proj))));
  }
  request.decode_up =
      options.decode_kv_b_proj == "bf16" ? planner::UpProjection::kBf16 : planner::UpProjection::kAsRecipe;
  request.contexts = options.contexts;
  request.batches = options.batches;
  TESSERA_ASSIGN_OR_RETURN(request.routing, planner::parse_routing(options.routing));
  request.held_tokens = options.held_tokens;
  return request;
}

}  // namespace

base::Status run_plan(const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const planner::PlanRequest request, read_request(options));
  TESSERA_ASSIGN_OR_RETURN(const models::ModelConfig config, read_model(options.model));
  TESSERA_ASSIGN_OR_RETURN(const planner::Plan plan, planner::make_plan(config, request));
  std::string model;  // A path is any bytes, JSON is not.
  text::Utf8Assembler assembler;
  assembler.push(options.model.string(), model);
  assembler.flush(model);
  std::cout << (options.json ? plan_json(plan, model) + "\n" : plan_table(plan, model));
  return options.require_fit ? planner::fit(plan) : base::ok_status();
}

}  // namespace tessera::app
