// The executable's command line.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend_choice.h"
#include "bench_program.h"
#include "chat_client.h"
#include "evaluate.h"
#include "evaluate_flags.h"
#include "inspect.h"
#include "plan.h"
#include "serve.h"
#include "tessera/base/limits.h"
#include "tessera/base/logging.h"
#include "tessera/text/chat_format.h"

namespace tessera::app {
namespace {

std::string chat_format_names() {
  std::string names;
  for (const std::string_view name : text::ChatFormat::names()) names += ", " + std::string(name);
  return names;
}

void add_serve(CLI::App& app, ServeOptions& options) {
  CLI::App& serve = *app.add_subcommand("serve", "Serve a model over an OpenAI-compatible HTTP API.");
  // A flag given twice counts as it was given last: flags win over the file, whose lines come first (with_config).
  serve.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  serve.add_option("--config", options.config, "Read these options from a TOML or INI file; flags win.")
      ->check(CLI::ExistingFile);
  serve.add_option("--model-path,--model", options.model, "Folder of a Hugging Face checkpoint.")->required();
  serve.add_option("--served-model-name", options.served_model_name, "Name in the API; the folder's name by default.");
  serve
      .add_option("--role", options.role,
                  "split: a prefill and a decode pool, each with its own precision. unified: one pool.")
      ->check(CLI::IsMember({"split", "unified"}))
      ->capture_default_str();

  const std::string network = "Network";
  serve.add_option("--host", options.host, "Address to listen on. Anything but loopback needs --api-key.")
      ->capture_default_str()
      ->group(network);
  serve.add_option("--port", options.port, "0 takes any free one.")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(network);
  serve.add_option("--api-key", options.api_keys, "Require this key; may be given several times, each a tenant.")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(network);
  serve
      .add_option("--admin-api-key", options.admin_api_key,
                  "Who shows this key flushes the prefix caches and audits pages, and nobody else does; no tenant.")
      ->group(network);
  serve
      .add_option("--request-body-mib", options.request_body_mib,
                  "MiB of request bodies in memory at once, over all connections; more are refused with 503.")
      ->check(CLI::Range(base::limits::kBodyBytesMax >> 20, std::int64_t{1} << 20))
      ->capture_default_str()
      ->group(network);
  serve.add_option("--drain-seconds", options.drain_seconds, "On SIGTERM, how long running answers may go on.")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str()
      ->group(network);

  const std::string precision = "Precision";
  const CLI::IsMember kv_formats({"auto", "bf16", "fp8_e4m3", "f32"});
  serve
      .add_option("--kv-cache-dtype", options.kv_cache_dtype,
                  "KV format of both phases: auto (prefill and unified bf16, decode fp8_e4m3), bf16, fp8_e4m3, or f32 "
                  "(reference backend only).")
      ->check(kv_formats)
      ->capture_default_str()
      ->group(precision);
  serve.add_option("--prefill-kv-cache-dtype", options.prefill_kv_cache_dtype, "KV format of the prefill pool alone.")
      ->check(kv_formats)
      ->group(precision);
  serve.add_option("--decode-kv-cache-dtype", options.decode_kv_cache_dtype, "KV format of the decode pool alone.")
      ->check(kv_formats)
      ->group(precision);

  const std::string memory = "Memory";
  serve.add_option("--page-size,--block-size", options.page_size, "Tokens of a KV page.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(memory);
  serve.add_option("--max-total-tokens", options.max_total_tokens, "Tokens of KV in each pool (default 32768).")
      ->check(CLI::PositiveNumber)
      ->group(memory);
  serve.add_option("--prefill-pages", options.prefill_pages, "Pages of the prefill (or unified) pool, instead.")
      ->check(CLI::PositiveNumber)
      ->group(memory);
  serve.add_option("--decode-pages", options.decode_pages, "Pages of the decode pool, instead.")
      ->check(CLI::PositiveNumber)
      ->group(memory);
  serve
      .add_option("--mem-fraction-static,--gpu-memory-utilization", options.mem_fraction_static,
                  "Size the pools to this share of the memory of the machine or the GPU, weights included.")
      ->check(CLI::Range(0.01, 0.95))
      ->group(memory);
  serve
      .add_option("--context-length,--max-model-len", options.context_length,
                  "Tokens of one sequence at most; the model's own limit by default.")
      ->check(CLI::PositiveNumber)
      ->group(memory);

  const std::string integrity = "Integrity";
  serve
      .add_option(
          "--kv-integrity", options.kv_integrity,
          "What is proved of KV pages: tags (whose page it is, in every step; always on), digest (also their bytes, "
          "when "
          "pages are handed over or reused and in the background), digest-step (also the bytes of every page that a "
          "step read, before its token is sent; reads all KV twice).")
      ->check(CLI::IsMember({"tags", "digest", "digest-step"}))
      ->capture_default_str()
      ->group(integrity);
  serve
      .add_option(
          "--kv-sweep-pages-per-second", options.kv_sweep_pages_per_second,
          "With digests only: KV pages of each pool whose bytes are checked in the background; 64 by default, 0 "
          "turns it off.")
      ->check(CLI::Range(0, 1 << 24))
      ->group(integrity);
  serve
      .add_option(
          "--on-integrity-error", options.on_integrity_error,
          "When a check of a request's KV pages fails: abort ends it with an error; recompute computes it again "
          "from its prompt, exactly, a few times at most, so that its client sees a pause.")
      ->check(CLI::IsMember({"abort", "recompute"}))
      ->capture_default_str()
      ->group(integrity);
  serve
      .add_flag("--shared-prefix-cache", options.shared_prefix_cache,
                "Let all API keys share cached prompts. One can then learn, by timing, what others have asked.")
      ->group(integrity);

  const std::string scheduling = "Scheduling";
  serve
      .add_option("--max-running-requests,--max-num-seqs", options.max_running_requests,
                  "Sequences of a pool that run at once.")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(scheduling);
  serve.add_option("--chunked-prefill-size", options.chunked_prefill_size, "Prompt tokens of one step.")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(scheduling);
  serve
      .add_option("--max-queued-requests", options.max_queued_requests,
                  "Sequences in the server; more are refused with 429.")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(scheduling);

  add_backend_options(serve, options.backend);

  const std::string chat = "Chat";
  serve
      .add_option("--chat-format", options.chat_format,
                  "How conversations are written: auto (what the checkpoint says)" + chat_format_names() + ".")
      ->capture_default_str()
      ->group(chat);
  serve
      .add_option("--reasoning-parser", options.reasoning_parser,
                  "What takes reasoning out of answers: auto (what the chat format says), none, or a name.")
      ->capture_default_str()
      ->group(chat);
  serve
      .add_option("--tool-call-parser", options.tool_call_parser,
                  "What takes tool calls out of answers: auto (what the chat format says), none, or a name.")
      ->capture_default_str()
      ->group(chat);
  serve
      .add_option("--reasoning-field", options.reasoning_field,
                  "The field of answers that holds reasoning: reasoning_content, or reasoning as newer vLLMs have it.")
      ->check(CLI::IsMember({"reasoning_content", "reasoning"}))
      ->capture_default_str()
      ->group(chat);

  const std::string terminal = "Terminal";
  serve.add_flag("--chat", options.chat, "Also open a chat in this terminal; leaving it ends the server.")
      ->group(terminal);
  serve.add_option("--once", options.once, "Answer this one prompt on standard output, and end.")->group(terminal);
  serve.add_option("--temperature", options.temperature, "Of the chat in this terminal; --once takes 0 always.")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str()
      ->group(terminal);
  serve.add_option("--log-level", options.log_level, "debug, info, warning, error, off.")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str()
      ->group(terminal);
}

struct ChatCommand {
  std::string url = "http://127.0.0.1:30000";
  std::optional<std::string> once;
  bool completion = false;
  std::string tools;  // A file.
  ChatOptions options;
};

void add_chat(CLI::App& app, ChatCommand& command) {
  CLI::App& chat = *app.add_subcommand("chat", "Talk to a running server from the terminal.");
  chat.add_option("--url", command.url, "The server.")->capture_default_str();
  chat.add_option("--api-key", command.options.server.api_key, "Its key, if it asks for one.");
  chat.add_option("--temperature", command.options.temperature, "0 takes the likeliest token always.")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  chat.add_option("--max-tokens", command.options.max_tokens, "Tokens of an answer at most.")
      ->check(CLI::PositiveNumber);
  CLI::Option* system =
      chat.add_option("--system", command.options.system, "System prompt; the model's own by default.");
  CLI::Option* tools = chat.add_option(
      "--tools", command.tools,
      "A JSON file with tools that the model may call, as the API takes them. Calls are shown, and what you "
      "type next is their result.");
  chat.add_flag("--completion", command.completion, "Complete each prompt as it is: for models without a chat format.")
      ->excludes(system)
      ->excludes(tools);
  chat.add_option("--once", command.once, "Ask this one question, print the answer, and end.");
}

void add_inspect(CLI::App& app, InspectOptions& options) {
  CLI::App& inspect = *app.add_subcommand("inspect", "Show what is in a checkpoint, and whether it is sound.");
  inspect.add_option("dir", options.dir, "Folder of a Hugging Face checkpoint.")->required();
  inspect.add_flag("--tensors", options.list_tensors, "List every tensor.");
  inspect.add_flag("--json", options.json, "For programs.");
}

void add_plan(CLI::App& app, PlanOptions& options) {
  CLI::App& plan = *app.add_subcommand(
      "plan", "Say what a model needs of memory and time on given GPUs, from its configuration alone.");
  plan.add_option("--model-path,--model", options.model, "A model folder, or a config.json.")->required();
  plan.add_flag("--json", options.json, "For programs.");
  plan.add_flag("--require-fit", options.require_fit,
                "End with status 1 where a pool's weights, or one sequence of the longest --context, do not fit.");

  const std::string machine = "GPUs";
  plan.add_option("--gpu", options.gpu, "h200, h100, b200, a100.")->capture_default_str()->group(machine);
  plan.add_option("--tp-size,--tensor-parallel-size,--tp", options.tp, "GPUs of one tensor-parallel group.")
      ->capture_default_str()
      ->group(machine);
  plan.add_option("--gpus", options.gpus, "GPUs of each pool, a multiple of --tp; 0: as many as --tp.")
      ->capture_default_str()
      ->group(machine);
  plan.add_option("--reserve", options.reserve,
                  "Memory of each GPU that neither weights nor KV get: 10%, 0.1, 14GB, 13GiB, or bytes.")
      ->capture_default_str()
      ->group(machine);
  plan.add_option("--gpu-memory", options.gpu_memory, "Instead of the GPU's nominal memory: 141GB, 139GiB, or bytes.")
      ->group(machine);
  plan.add_option("--read-bandwidth", options.read_bandwidth, "Bytes a second, instead of the table's.")
      ->group(machine);
  plan.add_option("--flops-bf16", options.flops_bf16, "FLOP/s of dense BF16 products, instead of the table's.")
      ->group(machine);
  plan.add_option("--flops-fp8", options.flops_fp8, "FLOP/s of dense FP8 products, instead of the table's.")
      ->group(machine);

  const std::string precision = "Precision";
  plan.add_option(
          "--weights", options.weights,
          "Of both pools: as-stored, bf16, fp8 (blocks of 128x128), fp8-channel, int4 (routed experts in groups "
          "of 32, the rest BF16), int4-fp8 (the rest FP8).")
      ->capture_default_str()
      ->group(precision);
  plan.add_option("--prefill-weights", options.prefill_weights, "Of the prefill pool alone.")->group(precision);
  plan.add_option("--decode-weights", options.decode_weights, "Of the decode pool alone.")->group(precision);
  plan.add_option("--decode-kv-b-proj", options.decode_kv_b_proj,
                  "How decode holds latent attention's kv_b_proj: bf16 (absorbed by head), or as-weights.")
      ->capture_default_str()
      ->group(precision);
  plan.add_option("--kv-cache-dtype", options.kv_cache_dtype,
                  "Of both pools: auto (prefill bf16, decode fp8_e4m3), bf16, fp8_e4m3, f32.")
      ->capture_default_str()
      ->group(precision);
  plan.add_option("--prefill-kv-cache-dtype", options.prefill_kv_cache_dtype, "Of the prefill pool alone.")
      ->group(precision);
  plan.add_option("--decode-kv-cache-dtype", options.decode_kv_cache_dtype, "Of the decode pool alone.")
      ->group(precision);
  plan.add_option("--page-size,--block-size", options.page_size, "Tokens of a KV page.")
      ->capture_default_str()
      ->group(precision);

  const std::string load = "Load";
  plan.add_option("--context", options.contexts, "Tokens of a sequence, and of a prompt; several with commas.")
      ->delimiter(',')
      ->capture_default_str()
      ->group(load);
  plan.add_option("--batch", options.batches, "Sequences of a decode step; several with commas.")
      ->delimiter(',')
      ->capture_default_str()
      ->group(load);
  plan.add_option("--routing", options.routing, "uniform, or zipf:S: an expert's share falls with its rank to the S.")
      ->capture_default_str()
      ->group(load);
  plan.add_option("--held-tokens", options.held_tokens,
                  "Print the reserve that would explain holding so many tokens; several with commas.")
      ->delimiter(',')
      ->group(load);
}

base::Status run_chat_command(ChatCommand& command) {
  TESSERA_ASSIGN_OR_RETURN(const ServerAddress address, parse_url(command.url));
  command.options.server.host = address.host;
  command.options.server.port = address.port;
  if (command.completion) command.options.ask_by = AskBy::kCompletion;
  if (!command.tools.empty()) {
    TESSERA_ASSIGN_OR_RETURN(command.options.tools, read_tools(command.tools));
  }
  if (command.once.has_value()) return ask_once(command.options, *command.once);
  return run_chat(command.options, {.greeting = "Connected to " + command.url + "."});
}

// The command line with the lines of the file that `serve --config FILE` names put, as flags, before the flags that
// were given. CLI11 reads a file for the program as a whole only, not for a subcommand.
std::vector<std::string> with_config(std::vector<std::string> arguments) {
  std::string path;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--config" && i + 1 < arguments.size()) path = arguments[i + 1];
    if (arguments[i].starts_with("--config=")) path = arguments[i].substr(9);
  }
  const auto serve = std::ranges::find(arguments, "serve");
  if (path.empty() || serve == arguments.end() || !std::ifstream(path)) return arguments;
  std::vector<std::string> flags;
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(path)) {
    for (const std::string& value : item.inputs) flags.push_back("--" + item.fullname() + "=" + value);
  }
  arguments.insert(serve + 1, flags.begin(), flags.end());
  return arguments;
}

int report(const base::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "tessera: " << status.message() << std::endl;
  return 1;
}

int run(int argc, char** argv) {
  CLI::App app("tessera: a serving engine with separate prefill and decode precision and verified KV pages.",
               "tessera");
  app.set_version_flag("--version", std::string(TESSERA_VERSION));
  app.require_subcommand(1);
  app.get_formatter()->column_width(44);
  ServeOptions serve;
  serve.version = TESSERA_VERSION;
  ChatCommand chat;
  InspectOptions inspect;
  PlanOptions plan;
  EvaluateOptions evaluate;
  evaluate.version = TESSERA_VERSION;
  evaluate.command = typed_command(argc, argv);
  add_serve(app, serve);
  add_chat(app, chat);
  add_inspect(app, inspect);
  add_plan(app, plan);
  add_evaluate(app, evaluate);
  // Named here for the help; its options are its own program's.
  app.add_subcommand("bench", "Measure what the checks of KV pages cost, on the engine itself (tessera bench --help).");
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments.front() == "bench") return report(run_bench(std::span(arguments).subspan(1)));
  arguments = with_config(std::move(arguments));
  std::ranges::reverse(arguments);  // As CLI11 takes a vector.
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }

  base::Status status;
  if (app.got_subcommand("serve")) {
    status = run_serve(serve);
  } else if (app.got_subcommand("chat")) {
    status = run_chat_command(chat);
  } else if (app.got_subcommand("inspect")) {
    status = run_inspect(inspect);
  } else if (app.got_subcommand("evaluate")) {
    status = run_evaluate(evaluate);
  } else {
    status = run_plan(plan);
  }
  return report(status);
}

}  // namespace
}  // namespace tessera::app

int main(int argc, char** argv) {
  try {
    return tessera::app::run(argc, argv);
  } catch (const std::exception& exception) {
    std::cerr << "tessera: " << exception.what() << std::endl;
    return 1;
  }
}
