// `tessera serve`: puts the parts together: backend, model, engines, transport, router, service, sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend_choice.h"
#include "tessera/base/status.h"

namespace tessera::app {

struct ServeOptions {
  std::string config;  // A file with some of these; already read.
  std::string model;   // Folder.
  std::string served_model_name;
  std::string role = "split";  // unified or split

  std::string host = "127.0.0.1";
  std::int64_t port = 30000;
  std::vector<std::string> api_keys;
  std::string admin_api_key;
  std::int64_t request_body_mib = 256;  // Of all bodies in memory at once.

  BackendOptions backend;

  std::string kv_cache_dtype = "auto";  // Both phases; auto: bf16 for prefill and unified, fp8_e4m3 for decode.
  std::string prefill_kv_cache_dtype;   // Override one phase.
  std::string decode_kv_cache_dtype;
  std::int64_t page_size = 64;
  std::int64_t max_total_tokens = 0;  // Of each pool.
  std::int64_t prefill_pages = 0;     // Override max_total_tokens for one pool.
  std::int64_t decode_pages = 0;
  double mem_fraction_static = 0.0;  // Of this machine's memory, for everything; 0: pools as said above.

  std::string on_integrity_error = "abort";  // or recompute
  bool shared_prefix_cache = false;          // Between API keys.

  std::string kv_integrity = "tags";                      // or digest, digest-step
  std::optional<std::int64_t> kv_sweep_pages_per_second;  // Levels with digests only; IntegrityConfig's by default.

  std::int64_t context_length = 0;
  std::int64_t max_running_requests = 64;
  std::int64_t chunked_prefill_size = 512;
  std::int64_t max_queued_requests = 1024;
  std::int64_t drain_seconds = 30;

  std::string chat_format = "auto";
  std::string reasoning_parser = "auto";
  std::string tool_call_parser = "auto";
  std::string reasoning_field = "reasoning_content";  // or reasoning

  std::string log_level = "info";
  bool show_progress = true;  // Of loading, on standard error.
  bool chat = false;
  double temperature = 0.2;  // Of that chat.
  std::optional<std::string> once;
  std::string version;
};

// Serves until SIGTERM or SIGINT, then drains. With `chat` or `once`: until the conversation or the answer is over.
base::Status run_serve(const ServeOptions& options);

}  // namespace tessera::app
