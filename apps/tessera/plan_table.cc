#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "plan_output.h"
#include "tessera/base/arithmetic.h"

namespace tessera::app {

namespace {

using planner::Plan;

constexpr double kGigabyte = 1e9;
constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

std::string gb(double bytes) { return fmt::format("{:.2f}", bytes / kGigabyte); }
std::string gb(std::int64_t bytes) { return gb(static_cast<double>(bytes)); }
std::string gib(double bytes) { return fmt::format("{:.2f}", bytes / kGibibyte); }
std::string gib(std::int64_t bytes) { return gib(static_cast<double>(bytes)); }

// 1234567 as "1,234,567".
std::string grouped(std::int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool groups_follow = (digits.size() - i) % 3 == 0;
    if (groups_follow && i > (value < 0 ? 1u : 0u)) text += ',';
    text += digits[i];
  }
  return text;
}

// Rows of cells, printed with columns as wide as their widest cell: the first flush left, the others flush right, but
// for those that are last in their row and hold words.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const {
    std::vector<std::size_t> widths;
    for (const std::vector<std::string>& row : rows_) {
      if (widths.size() < row.size()) widths.resize(row.size(), 0);
      // A sentence at the end of a row may run on.
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (!runs_on(row, i)) widths[i] = std::max(widths[i], row[i].size());
      }
    }
    std::string out;
    for (const std::vector<std::string>& row : rows_) {
      std::string line = "  ";
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (i > 0) line += "  ";
        const bool left = i == 0 || runs_on(row, i);
        line += left ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("{:>{}}", row[i], widths[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  bool runs_on(const std::vector<std::string>& row, std::size_t i) const {
    return i > 0 && i + 1 == row.size() && row[i].contains(' ') && &row != &rows_.front();
  }
  std::vector<std::vector<std::string>> rows_;
};

std::string figure(const planner::GpuFigure& value, std::string_view unit) {
  return fmt::format("{:.4g} {} {}", value.value / 1e12, unit, planner::figure_source_name(value.source));
}

void print_head(std::string& out, const Plan& plan, const std::string& model) {
  const planner::ModelFacts& facts = plan.facts;
  const planner::PlanRequest& request = plan.request;
  const auto line = [&out](std::string_view name, std::string_view text) {
    fmt::format_to(std::back_inserter(out), "{:<12}{}\n", name, text);
  };
  line("model", fmt::format("{}: {} ({})", model, facts.architecture, facts.model_type));
  std::string shape = fmt::format("{} layers, hidden {}, {} heads", facts.num_hidden_layers, facts.hidden_size,
                                  facts.num_attention_heads);
  if (facts.expert_layers > 0) {
    shape += fmt::format("; {} layers with {} routed experts, {} a token", facts.expert_layers, facts.n_routed_experts,
                         facts.num_experts_per_tok);
  }
  if (facts.index_topk > 0) {
    shape += fmt::format("; attention to {} selected tokens, {} layers with an indexer", facts.index_topk,
                         facts.index_layers);
  }
  line("shape", shape);
  line("parameters", fmt::format("{:.2f} B; {:.2f} B active a token (all but the embedding table and the experts not "
                                 "taken)",
                                 static_cast<double>(facts.parameters()) / 1e9,
                                 static_cast<double>(facts.active_parameters()) / 1e9));
  for (const std::string& sentence : facts.uncounted) line("not counted", sentence);
  line("gpu", fmt::format("{} ({}): {} GB = {} GiB; reads {}; BF16 {}, FP8 {}", request.gpu.name,
                          request.gpu.description, gb(request.gpu.memory_bytes), gib(request.gpu.memory_bytes),
                          figure(request.gpu.read_bandwidth, "TB/s"), figure(request.gpu.bf16_flops, "TFLOP/s"),
                          figure(request.gpu.fp8_flops, "TFLOP/s")));
  line("pools", fmt::format("prefill and decode, each on {} GPU{}: {} group{} of tensor parallelism {}", request.gpus,
                            request.gpus == 1 ? "" : "s", plan.replicas, plan.replicas == 1 ? "" : "s", request.tp));
  const double share = static_cast<double>(plan.reserve_bytes) / static_cast<double>(request.gpu.memory_bytes);
  line("reserve", fmt::format("{} GB = {} GiB of each GPU ({:.1f}% of its memory) assumed for all that is neither "
                              "weights nor KV (--reserve)",
                              gb(plan.reserve_bytes), gib(plan.reserve_bytes), 100 * share));
  line("units", "GB is 1e9 bytes, GiB is 2^30 bytes, B parameters is 1e9");
}

void print_checkpoints(std::string& out, const Plan& plan) {
  const planner::ModelFacts& facts = plan.facts;
  out += "\nCheckpoint size by weight format";
  if (facts.speculation_layers > 0) {
    out += fmt::format(" (with {} layer for speculation, MTP, that is not loaded)", facts.speculation_layers);
  }
  out += "\n";
  Table table({"weights", "routed experts GB", "others GB", "MTP GB", "sum GB", "sum GiB",
               fmt::format("GiB / {}", plan.request.tp)});
  for (const planner::CheckpointSize& size : plan.checkpoints) {
    table.add({std::string(planner::weight_recipe_name(size.recipe)), gb(size.expert_bytes), gb(size.other_bytes),
               gb(size.speculation_bytes), gb(size.bytes()), gib(size.bytes()),
               gib(static_cast<double>(size.bytes()) / plan.request.tp)});
  }
  out += table.text();
}

void print_phase(std::string& out, std::string_view name, const Plan& plan, const planner::PhasePlan& phase) {
  fmt::format_to(std::back_inserter(out), "\n{} pool: weights {}, KV {}\n", name,
                 planner::weight_recipe_name(phase.precision.weights), ops::kv_format_name(phase.precision.kv));
  Table parts({"part", "parameters B", "whole GB", "each GPU GB", "of that replicated GB"});
  for (const planner::PartBytes& part : phase.weights.parts) {
    parts.add({std::string(models::weight_part_name(part.part)),
               fmt::format("{:.3f}", static_cast<double>(part.parameters) / 1e9), gb(part.bytes), gb(part.rank_bytes),
               gb(part.replicated_bytes)});
  }
  parts.add({"sum", fmt::format("{:.3f}", static_cast<double>(plan.facts.parameters()) / 1e9), gb(phase.weights.bytes),
             gb(phase.weights.rank_bytes), gb(phase.weights.replicated_bytes)});
  out += parts.text();
  out += "  " + planner::memory_sentence(plan, phase.weights.rank_bytes, plan.request.tp) + "\n";

  std::vector<std::string> header = {"KV format", "bytes a token", "of that index keys", "each GPU", "tokens a group"};
  for (const std::int64_t context : plan.request.contexts) {
    header.push_back(fmt::format("requests of {}", grouped(context)));
  }
  if (plan.replicas > 1) header.push_back(fmt::format("tokens, {} groups", plan.replicas));
  Table kv(header);
  for (const planner::KvMemory& memory : phase.kv) {
    std::vector<std::string> row = {ops::kv_format_name(memory.format), grouped(memory.token_bytes),
                                    grouped(memory.index_token_bytes), grouped(memory.rank_token_bytes),
                                    grouped(memory.tokens)};
    for (const std::int64_t context : plan.request.contexts) {
      row.push_back(grouped(planner::requests_that_fit(memory, plan.request.page_size, context)));
    }
    if (plan.replicas > 1) {
      const auto tokens = base::checked_mul(memory.tokens, plan.replicas);
      row.push_back(tokens.has_value() ? grouped(*tokens) : "more than 2^63");
    }
    kv.add(std::move(row));
  }
  out += kv.text();
}

void print_decode_floor(std::string& out, const Plan& plan) {
  fmt::format_to(std::back_inserter(out),
                 "\nDecode floor: bytes that one step must read on each GPU, at {:.4g} TB/s; routing {}\n"
                 "  {} GB outside the routed experts; one expert of one layer {:.3f} MB\n",
                 plan.request.gpu.read_bandwidth.value / 1e12, planner::routing_text(plan.request.routing),
                 gb(plan.step.outside_bytes), static_cast<double>(plan.step.expert_bytes) / 1e6);
  Table table(
      {"context", "batch", "experts a layer", "experts GB", "KV GB", "sum GB", "floor ms", "tokens/s", "KV fits"});
  for (const planner::DecodeRow& row : plan.decode_rows) {
    const double layers = static_cast<double>(std::max<std::int64_t>(plan.step.expert_layers, 1));
    table.add({grouped(row.context), grouped(row.batch), fmt::format("{:.1f}", row.floor.experts_touched / layers),
               gb(row.floor.expert_bytes), gb(row.floor.kv_bytes), gb(row.floor.bytes_moved),
               fmt::format("{:.3f}", row.floor.floor_ms), fmt::format("{:.0f}", row.floor.tokens_per_second),
               row.kv_fits ? "yes" : "no"});
  }
  out += table.text();
}

void print_prefill_floor(std::string& out, const Plan& plan) {
  out += "\nPrefill floor: one prompt on one group, all of it new; TFLOP of each GPU\n";
  Table table({"prompt", "dense", "experts", "attention", "indexer", "compute ms", "reading weights ms", "floor ms",
               "tokens/s"});
  const auto tera = [](double flop) { return fmt::format("{:.2f}", flop / 1e12); };
  for (const planner::PrefillFloor& row : plan.prefill_rows) {
    table.add({grouped(row.tokens), tera(row.dense_flop), tera(row.expert_flop), tera(row.attention_flop),
               tera(row.indexer_flop), fmt::format("{:.2f}", row.compute_ms), fmt::format("{:.2f}", row.weights_ms),
               fmt::format("{:.2f}", row.floor_ms), fmt::format("{:.0f}", row.tokens_per_second)});
  }
  out += table.text();
}

void print_groups(std::string& out, const Plan& plan) {
  fmt::format_to(std::back_inserter(out), "\nDecode pool on groups of other sizes: weights {}, KV {}\n",
                 planner::weight_recipe_name(plan.decode.precision.weights),
                 ops::kv_format_name(plan.decode.precision.kv));
  Table table({"GPUs", "tokens", "arithmetic"});
  for (const planner::GroupRow& row : plan.groups) {
    if (row.refused.empty()) {
      table.add(
          {fmt::format("{}", row.tp), grouped(row.tokens), planner::memory_sentence(plan, row.rank_bytes, row.tp)});
    } else {
      table.add({fmt::format("{}", row.tp), "-", "cannot be divided: " + row.refused});
    }
  }
  out += table.text();
}

void print_implied(std::string& out, const Plan& plan) {
  if (plan.implied.empty()) return;
  out += "\nReserve that would explain a count of tokens: memory - weights - tokens x bytes a token, of each GPU\n";
  Table table({"tokens", "weights", "KV", "weights GB", "KV GB", "reserve GB", "reserve GiB", "source"});
  for (const planner::ImpliedReserve& row : plan.implied) {
    std::string source = row.source;
    if (row.reserve_bytes < 0) source += ": impossible at this precision";
    table.add({grouped(row.tokens), std::string(planner::weight_recipe_name(row.weights)),
               ops::kv_format_name(row.format), gb(row.weight_bytes), gb(row.kv_bytes), gb(row.reserve_bytes),
               gib(row.reserve_bytes), source});
  }
  out += table.text();
}

}  // namespace

std::string plan_table(const Plan& plan, const std::string& model) {
  std::string out;
  print_head(out, plan, model);
  print_checkpoints(out, plan);
  print_phase(out, "Prefill", plan, plan.prefill);
  print_phase(out, "Decode", plan, plan.decode);
  print_decode_floor(out, plan);
  print_prefill_floor(out, plan);
  print_groups(out, plan);
  print_implied(out, plan);
  return out;
}

}  // namespace tessera::app
