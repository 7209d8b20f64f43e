// The command line of tessera_bench, which `tessera bench` starts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <string>

#include "integrity.h"
#include "tessera/base/logging.h"

namespace tessera::bench {
namespace {

void add_integrity(CLI::App& app, IntegrityOptions& options) {
  CLI::App& command = *app.add_subcommand(
      "integrity",
      "What the checks of KV pages cost a decode step: their share of it, and the time from token to token with and "
      "without them.");
  command.add_option("--model-path,--model", options.model, "Folder of a Hugging Face checkpoint.")->required();
  command.add_option("--level", options.levels, "Levels to measure, with commas: tags, digest, digest-step.")
      ->delimiter(',')
      ->check(CLI::IsMember({"tags", "digest", "digest-step"}))
      ->capture_default_str();
  command
      .add_option("--kv-sweep-pages-per-second", options.kv_sweep_pages_per_second,
                  "Levels with digests: pages whose bytes are checked in the background, a second.")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("--json", options.json, "Write the result with every sample to this file.");
  command.add_option("--log-level", options.log_level, "debug, info, warning, error, off.")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();

  const std::string load = "Load";
  command.add_option("--batch", options.batch, "Sequences that decode at once.")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(load);
  command.add_option("--context", options.context, "Tokens of each when measuring begins.")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(load);
  command.add_option("--decode", options.decode, "Steps of each level, and without a check, in a repeat.")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str()
      ->group(load);
  command.add_option("--block", options.block, "Steps of one level in a row.")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str()
      ->group(load);
  command.add_option("--repeat", options.repeats, "How often, with new sequences each time.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group(load);

  const std::string memory = "Memory";
  command
      .add_option("--kv-cache-dtype", options.kv_cache_dtype,
                  "auto (fp8_e4m3, as decode pools have it), bf16, fp8_e4m3, or f32 (reference backend only).")
      ->check(CLI::IsMember({"auto", "bf16", "fp8_e4m3", "f32"}))
      ->capture_default_str()
      ->group(memory);
  command.add_option("--page-size,--block-size", options.page_size, "Tokens of a KV page.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(memory);
  app::add_backend_options(command, options.backend);
}

base::Status run_integrity(const IntegrityOptions& options) {
  TESSERA_RETURN_IF_ERROR(base::set_log_level(options.log_level));
  // Before the minutes that measuring takes.
  std::ofstream json;
  if (!options.json.empty()) {
    json.open(options.json);
    if (!json) return base::invalid_argument(fmt::format("--json: cannot write {}", options.json));
  }
  TESSERA_ASSIGN_OR_RETURN(const IntegrityResult result, measure_integrity(options));
  std::cout << integrity_table(options, result) << std::flush;
  if (options.json.empty()) return base::ok_status();
  json << integrity_json(options, result);
  json.close();
  if (!json) return base::unavailable(fmt::format("--json: {} could not be written to its end", options.json));
  return base::ok_status();
}

int run(int argc, char** argv) {
  CLI::App app("tessera bench: measures the engine itself, without a server.", "tessera bench");
  app.require_subcommand(1);
  app.get_formatter()->column_width(44);
  IntegrityOptions integrity;
  integrity.command = "tessera bench";
  for (int i = 1; i < argc; ++i) integrity.command += fmt::format(" {}", argv[i]);
  add_integrity(app, integrity);
  CLI11_PARSE(app, argc, argv);
  const base::Status status = run_integrity(integrity);
  if (status.ok()) return 0;
  std::cerr << "tessera bench: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  try {
    return tessera::bench::run(argc, argv);
  } catch (const std::exception& exception) {
    std::cerr << "tessera bench: " << exception.what() << std::endl;
    return 1;
  }
}
