// `tessera plan`: what a configuration needs of memory and time on given GPUs, before anything is downloaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/status.h"

namespace tessera::app {

// As the flags say it; docs/plan.md.
struct PlanOptions {
  std::filesystem::path model;  // A model folder, or a config.json.
  std::string gpu = "h200";
  std::int32_t tp = 1;
  std::int64_t gpus = 0;
  std::string weights = "as-stored";
  std::optional<std::string> prefill_weights;
  std::optional<std::string> decode_weights;
  std::string decode_kv_b_proj = "bf16";
  std::string kv_cache_dtype = "auto";
  std::optional<std::string> prefill_kv_cache_dtype;
  std::optional<std::string> decode_kv_cache_dtype;
  std::vector<std::int64_t> contexts = {8192};
  std::vector<std::int64_t> batches = {1, 8, 16, 32, 64};
  std::string reserve = "10%";
  std::int32_t page_size = 64;
  std::string routing = "uniform";
  std::vector<std::int64_t> held_tokens;
  std::optional<std::string> gpu_memory;
  std::optional<double> read_bandwidth;
  std::optional<double> flops_bf16;
  std::optional<double> flops_fp8;
  bool require_fit = false;
  bool json = false;
};

// Prints to standard output. With require_fit an error says what does not fit, after the plan is printed.
base::Status run_plan(const PlanOptions& options);

}  // namespace tessera::app
