#include <cstdint>

#include "plan_output.h"
#include "tessera/server/json_writer.h"

namespace tessera::app {

namespace {

using planner::Plan;
using server::JsonWriter;

void write_figure(JsonWriter& json, std::string_view name, const planner::GpuFigure& figure) {
  json.key(name).begin_object().key("value").number(figure.value);
  json.key("source").string(planner::figure_source_name(figure.source)).end_object();
}

void write_model(JsonWriter& json, const Plan& plan, const std::string& model) {
  const planner::ModelFacts& facts = plan.facts;
  json.key("model").begin_object().key("path").string(model);
  json.key("architecture").string(facts.architecture).key("model_type").string(facts.model_type);
  json.key("layers").integer(facts.num_hidden_layers).key("expert_layers").integer(facts.expert_layers);
  json.key("hidden_size").integer(facts.hidden_size);
  json.key("n_routed_experts").integer(facts.n_routed_experts);
  json.key("num_experts_per_tok").integer(facts.num_experts_per_tok);
  json.key("index_topk").integer(facts.index_topk).key("index_layers").integer(facts.index_layers);
  json.key("parameters").integer(facts.parameters()).key("active_parameters").integer(facts.active_parameters());
  json.key("speculation_layers").integer(facts.speculation_layers);
  json.key("uncounted").begin_array();
  for (const std::string& sentence : facts.uncounted) json.string(sentence);
  json.end_array().end_object();
}

void write_gpu(JsonWriter& json, const Plan& plan) {
  const planner::PlanRequest& request = plan.request;
  json.key("gpu").begin_object().key("name").string(request.gpu.name);
  json.key("memory_bytes").integer(request.gpu.memory_bytes);
  write_figure(json, "read_bandwidth", request.gpu.read_bandwidth);
  write_figure(json, "bf16_flops", request.gpu.bf16_flops);
  write_figure(json, "fp8_flops", request.gpu.fp8_flops);
  json.end_object();
  json.key("tp").integer(request.tp).key("gpus").integer(request.gpus).key("replicas").integer(plan.replicas);
  json.key("reserve_bytes").integer(plan.reserve_bytes).key("page_size").integer(request.page_size);
  json.key("routing").string(planner::routing_text(request.routing));
  json.key("decode_kv_b_proj").string(request.decode_up == planner::UpProjection::kBf16 ? "bf16" : "as-weights");
}

void write_checkpoints(JsonWriter& json, const Plan& plan) {
  json.key("checkpoints").begin_array();
  for (const planner::CheckpointSize& size : plan.checkpoints) {
    json.begin_object().key("weights").string(planner::weight_recipe_name(size.recipe));
    json.key("routed_expert_bytes").integer(size.expert_bytes).key("other_bytes").integer(size.other_bytes);
    json.key("speculation_bytes").integer(size.speculation_bytes).key("bytes").integer(size.bytes()).end_object();
  }
  json.end_array();
}

void write_phase(JsonWriter& json, std::string_view name, const Plan& plan, const planner::PhasePlan& phase) {
  json.key(name).begin_object().key("weights").string(planner::weight_recipe_name(phase.precision.weights));
  json.key("kv_cache_dtype").string(ops::kv_format_name(phase.precision.kv));
  json.key("parts").begin_array();
  for (const planner::PartBytes& part : phase.weights.parts) {
    json.begin_object().key("part").string(models::weight_part_name(part.part));
    json.key("parameters").integer(part.parameters).key("bytes").integer(part.bytes);
    json.key("rank_bytes").integer(part.rank_bytes).key("replicated_bytes").integer(part.replicated_bytes);
    json.end_object();
  }
  json.end_array().key("weight_bytes").integer(phase.weights.bytes);
  json.key("rank_weight_bytes").integer(phase.weights.rank_bytes);
  json.key("rank_replicated_bytes").integer(phase.weights.replicated_bytes);
  json.key("rank_free_bytes").integer(phase.free_bytes).key("kv").begin_array();
  for (const planner::KvMemory& kv : phase.kv) {
    json.begin_object().key("format").string(ops::kv_format_name(kv.format));
    json.key("token_bytes").integer(kv.token_bytes).key("index_token_bytes").integer(kv.index_token_bytes);
    json.key("rank_token_bytes").integer(kv.rank_token_bytes).key("rank_page_bytes").integer(kv.rank_page_bytes);
    json.key("pages").integer(kv.pages).key("tokens").integer(kv.tokens);
    json.key("requests").begin_array();
    for (const std::int64_t context : plan.request.contexts) {
      json.begin_object().key("context").integer(context);
      json.key("requests").integer(planner::requests_that_fit(kv, plan.request.page_size, context)).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

void write_decode_steps(JsonWriter& json, const Plan& plan) {
  json.key("decode_step").begin_object().key("layers").integer(plan.step.layers);
  json.key("expert_layers").integer(plan.step.expert_layers);
  json.key("read_bandwidth").number(plan.request.gpu.read_bandwidth.value);
  json.key("outside_bytes").integer(plan.step.outside_bytes).key("expert_bytes").integer(plan.step.expert_bytes);
  json.key("rows").begin_array();
  for (const planner::DecodeRow& row : plan.decode_rows) {
    json.begin_object().key("context").integer(row.context).key("batch").integer(row.batch);
    json.key("kv_fits").boolean(row.kv_fits).key("experts_touched").number(row.floor.experts_touched);
    json.key("routed_expert_bytes").number(row.floor.expert_bytes).key("kv_bytes").number(row.floor.kv_bytes);
    json.key("bytes_moved").number(row.floor.bytes_moved).key("floor_ms").number(row.floor.floor_ms);
    json.key("tokens_per_second").number(row.floor.tokens_per_second).end_object();
  }
  json.end_array().end_object();
}

void write_prefill(JsonWriter& json, const Plan& plan) {
  json.key("prefill_prompts").begin_array();
  for (const planner::PrefillFloor& row : plan.prefill_rows) {
    json.begin_object().key("tokens").integer(row.tokens).key("dense_flop").number(row.dense_flop);
    json.key("routed_expert_flop").number(row.expert_flop).key("attention_flop").number(row.attention_flop);
    json.key("indexer_flop").number(row.indexer_flop).key("compute_ms").number(row.compute_ms);
    json.key("weights_ms").number(row.weights_ms).key("floor_ms").number(row.floor_ms);
    json.key("tokens_per_second").number(row.tokens_per_second).end_object();
  }
  json.end_array();
}

void write_groups(JsonWriter& json, const Plan& plan) {
  json.key("groups").begin_array();
  for (const planner::GroupRow& row : plan.groups) {
    json.begin_object().key("tp").integer(row.tp);
    if (row.refused.empty()) {
      json.key("fits").boolean(row.free_bytes > 0).key("rank_weight_bytes").integer(row.rank_bytes);
      json.key("rank_free_bytes").integer(row.free_bytes).key("tokens").integer(row.tokens);
    } else {
      json.key("fits").boolean(false).key("refused").string(row.refused);
    }
    json.end_object();
  }
  json.end_array();
}

void write_implied(JsonWriter& json, const Plan& plan) {
  json.key("implied_reserves").begin_array();
  for (const planner::ImpliedReserve& row : plan.implied) {
    json.begin_object().key("source").string(row.source);
    json.key("weights").string(planner::weight_recipe_name(row.weights));
    json.key("kv_cache_dtype").string(ops::kv_format_name(row.format)).key("tokens").integer(row.tokens);
    json.key("rank_weight_bytes").integer(row.weight_bytes).key("rank_kv_bytes").number(row.kv_bytes);
    json.key("reserve_bytes").number(row.reserve_bytes).end_object();
  }
  json.end_array();
}

}  // namespace

std::string plan_json(const Plan& plan, const std::string& model) {
  JsonWriter json;
  json.begin_object();
  write_model(json, plan, model);
  write_gpu(json, plan);
  const base::Status fits = planner::fit(plan);
  json.key("fits").boolean(fits.ok());
  if (!fits.ok()) json.key("does_not_fit").string(fits.message());
  write_checkpoints(json, plan);
  write_phase(json, "prefill", plan, plan.prefill);
  write_phase(json, "decode", plan, plan.decode);
  write_decode_steps(json, plan);
  write_prefill(json, plan);
  write_groups(json, plan);
  write_implied(json, plan);
  json.end_object();
  return json.take();
}

}  // namespace tessera::app
