#include "integrity.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "drawn_prompt_model.h"
#include "progress.h"
#include "tessera/base/arithmetic.h"
#include "tessera/base/logging.h"
#include "tessera/base/machine_memory.h"

namespace tessera::bench {

namespace {

// One part in so many of the memory is left alone, as the server leaves it.
constexpr std::int64_t kUnplannedShare = 16;

std::string load_average() {
  std::string line;
  std::ifstream file("/proc/loadavg");
  std::getline(file, line);
  std::size_t end = 0;
  for (int i = 0; i < 3 && end != std::string::npos; ++i) end = line.find(' ', end + 1);
  return line.substr(0, end);
}

std::string utc_now() { return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr))); }

base::Status check_options(const IntegrityOptions& options) {
  if (options.decode % options.block != 0) {
    return base::invalid_argument(
        fmt::format("--decode {} is no multiple of --block {}", options.decode, options.block));
  }
  if (options.context < options.batch) {
    return base::invalid_argument(
        fmt::format("--context {} is less than --batch {}: sequences are filled one a step, "
                    "and those before decode meanwhile",
                    options.context, options.batch));
  }
  return base::ok_status();
}

// The arms, and on which engine each runs: what differs in the engine's own configuration needs its own pages. Not so
// `tags` and no check, which share one, so that nothing but the check differs.
std::vector<MeasuredArm> plan_arms(const std::vector<std::string>& levels) {
  std::vector<MeasuredArm> arms{{"none", Checking::kOff, 0, {}}};
  std::size_t engines = 1;
  for (const std::string& level : levels) {
    arms.push_back({level, Checking::kOn, level == "tags" ? 0 : engines++, {}});
  }
  return arms;
}

class Measurement {
 public:
  explicit Measurement(const IntegrityOptions& options) : options_(options) {}

  base::Result<IntegrityResult> run() {
    TESSERA_RETURN_IF_ERROR(check_options(options_));
    result_.began = utc_now();
    result_.load_before = load_average();
    result_.arms = plan_arms(options_.levels);
    TESSERA_RETURN_IF_ERROR(load());
    TESSERA_RETURN_IF_ERROR(make_engines());
    for (std::int64_t repeat = 0; repeat < options_.repeats; ++repeat) {
      TESSERA_RETURN_IF_ERROR(measure_repeat(repeat).with_context(fmt::format("repeat {}", repeat + 1)));
    }
    result_.load_after = load_average();
    return std::move(result_);
  }

 private:
  base::Status load() {
    TESSERA_ASSIGN_OR_RETURN(memory_, app::read_memory(options_.backend));
    TESSERA_ASSIGN_OR_RETURN(backend_, app::make_backend(options_.backend));
    TESSERA_RETURN_IF_ERROR(app::check_model(options_.backend, options_.model));
    app::Progress progress("loading weights");
    TESSERA_ASSIGN_OR_RETURN(loaded_, models::load_model(options_.model, *backend_, [&](const auto& done) {
                               progress.update(done.bytes_done, done.bytes_total);
                             }));
    progress.finish();
    std::int64_t longest_prompt = 0;
    for (std::size_t e = 0; e < engine_count(); ++e) longest_prompt = std::max(longest_prompt, first_context(e));
    TESSERA_ASSIGN_OR_RETURN(model_, DrawnPromptModel::create(*loaded_, *backend_, options_.batch + longest_prompt));
    return base::ok_status();
  }

  std::int64_t arms_of(std::size_t engine) const {
    return std::ranges::count(result_.arms, engine, &MeasuredArm::engine);
  }
  std::size_t engine_count() const { return std::ranges::max(result_.arms, {}, &MeasuredArm::engine).engine + 1; }
  // Steps of one sequence of the engine in a repeat: a block of warming up, and what is measured.
  std::int64_t steps_of(std::size_t engine) const { return arms_of(engine) * (options_.block + options_.decode); }
  std::int64_t steps_max() const {
    std::int64_t most = 0;
    for (std::size_t e = 0; e < engine_count(); ++e) most = std::max(most, steps_of(e));
    return most;
  }
  // Engines of fewer arms begin with more, so that all measure the same contexts on average.
  std::int64_t first_context(std::size_t engine) const {
    return options_.context + (steps_max() - steps_of(engine)) / 2;
  }

  base::Status make_engines() {
    using kv_cache::IntegrityLevel;
    std::int64_t remaining = memory_.available_bytes - memory_.available_bytes / kUnplannedShare;
    for (std::size_t e = 0; e < engine_count(); ++e) {
      engine::EngineConfig config;
      config.id = static_cast<request::EngineId>(e);
      config.kv_format = app::kv_format_of(options_.kv_cache_dtype).value_or(ops::KvFormat::kF8E4M3);
      config.page_size = static_cast<std::int32_t>(options_.page_size);
      config.running_max = options_.batch;
      config.chunked_prefill_size = first_context(e);
      config.context_tokens_max = first_context(e) + steps_of(e) + 2;
      result_.context_end = std::max(result_.context_end, first_context(e) + steps_of(e));
      // The scheduler keeps one page back for each sequence.
      config.pages = options_.batch * (base::ceil_div(config.context_tokens_max, options_.page_size) + 1);
      config.integrity.sweep_pages_per_second = options_.kv_sweep_pages_per_second;
      for (const IntegrityLevel level : {IntegrityLevel::kDigest, IntegrityLevel::kDigestStep}) {
        const auto is_this = [&](const MeasuredArm& arm) {
          return arm.engine == e && arm.name == kv_cache::integrity_level_name(level);
        };
        if (std::ranges::any_of(result_.arms, is_this)) config.integrity.level = level;
      }
      config.memory_budget_bytes = std::max<std::int64_t>(1, remaining);
      if (e > 0) config.weight_memory = engine::WeightMemory::kCountedElsewhere;
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DecodeEngine> made,
                               DecodeEngine::create(config, *model_, *backend_, clock_));
      remaining -= made->loop().memory_plan().total();
      engines_.push_back(std::move(made));
    }
    const request::EngineInfo& info = engines_.front()->loop().info();
    result_.backend = info.backend;
    result_.kv_format = std::string(ops::kv_format_name(info.kv_format));
    result_.weight_format = info.weight_format;
    return base::ok_status();
  }

  base::Status measure_repeat(std::int64_t repeat) {
    for (std::size_t e = 0; e < engines_.size(); ++e) {
      const auto progress = [&](std::int64_t ready) {
        say(fmt::format("repeat {} of {}: filling engine {} of {}: {} of {} sequences decode", repeat + 1,
                        options_.repeats, e + 1, engines_.size(), ready, options_.batch));
      };
      TESSERA_ASSIGN_OR_RETURN(const ContextRange range, engines_[e]->fill(first_context(e), progress));
      if (repeat == 0) result_.contexts.push_back(range);
    }
    const std::int64_t cycles = options_.decode / options_.block;
    for (std::int64_t cycle = -1; cycle < cycles; ++cycle) {  // The first warms up.
      say(fmt::format("repeat {} of {}: cycle {} of {}", repeat + 1, options_.repeats, cycle + 1, cycles));
      // To and fro, so that what changes with time falls on all alike.
      const bool forth = (cycle + repeat) % 2 == 0;
      for (std::size_t i = 0; i < result_.arms.size(); ++i) {
        MeasuredArm& arm = result_.arms[forth ? i : result_.arms.size() - 1 - i];
        std::vector<StepSample> block;
        for (std::int64_t s = 0; s < options_.block; ++s) {
          TESSERA_ASSIGN_OR_RETURN(const StepSample sample, engines_[arm.engine]->step(arm.checking));
          block.push_back(sample);
        }
        if (cycle >= 0) arm.cycles.push_back(std::move(block));
      }
    }
    for (const auto& engine : engines_) TESSERA_RETURN_IF_ERROR(engine->clear());
    return base::ok_status();
  }

  void say(const std::string& what) { fmt::print(stderr, "{}\n", what); }

  const IntegrityOptions& options_;
  IntegrityResult result_;
  base::SystemClock clock_;
  base::MachineMemory memory_;  // As it was before anything was loaded.
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<models::Model> loaded_;
  std::unique_ptr<DrawnPromptModel> model_;
  std::vector<std::unique_ptr<DecodeEngine>> engines_;
};

}  // namespace

base::Result<IntegrityResult> measure_integrity(const IntegrityOptions& options) { return Measurement(options).run(); }

}  // namespace tessera::bench
