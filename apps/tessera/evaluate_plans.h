// The plans of `tessera evaluate`: what a --plan or --url says, read and checked before anything is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend_choice.h"
#include "kv_rounding.h"
#include "tessera/base/status.h"
#include "tessera/ops/kv_layout.h"

namespace tessera::app {

// One plan: engines that the command starts itself, or a server that somebody else runs.
struct PlanSpec {
  std::string name;

  // Of a server elsewhere; url is empty where the engines are the command's own.
  std::string url;           // "http://HOST:PORT", as parse_url() takes it.
  std::string api_key_file;  // Its first line is the key; empty: none.

  std::string model;  // Folder of a checkpoint; with a url the model's name there, empty: the server's only one.

  // Of own engines.
  bool split = true;                                 // Else unified: one pool for both phases.
  ops::KvFormat prefill_kv = ops::KvFormat::kBF16;   // Also the unified pool's.
  ops::KvFormat decode_kv = ops::KvFormat::kF8E4M3;  // Equal to prefill_kv where unified.
  std::optional<KvRounding> kv_rounding;             // A simulated KV format, over BF16 in both pools of a split.
  std::int64_t batch = 64;                           // Sequences of a pool that run at once.
  std::int64_t chunk = 512;                          // Prompt tokens of one step.
  BackendOptions backend;

  bool is_own() const { return url.empty(); }
};

// What a --plan leaves out.
struct PlanDefaults {
  std::string model;
  BackendOptions backend;
};

// "NAME" or "NAME:key=value,key=value": NAME of letters, digits, '-', '_' and '.'; a value ends at a comma. Keys of own
// engines: model, role, kv, prefill-kv, decode-kv, kv-rounding, batch, chunk, device, backend; of a server elsewhere:
// url, model, api-key-file. invalid_argument: names the plan, the key and what it takes; not_found: no model lies
// there.
base::Result<PlanSpec> parse_plan(std::string_view text, const PlanDefaults& defaults);

// All plans of a command line, --plan before --url, each in its order; at least one, each with a name of its own. One
// of the server's defaults where nothing but a model was given.
base::Result<std::vector<PlanSpec>> parse_plans(std::span<const std::string> plans, std::span<const std::string> urls,
                                                const PlanDefaults& defaults);

// Everything that the plan's answers depend on, as keys and values in a fixed order: what a report shows of it, and
// what a journal is compared by.
std::string describe(const PlanSpec& plan);

}  // namespace tessera::app
