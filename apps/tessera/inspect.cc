#include "inspect.h"

#include <fmt/format.h>

#include <iostream>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "tessera/models/config.h"
#include "tessera/models/family.h"
#include "tessera/models/weight_loader.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/server/json_writer.h"
#include "tessera/weights/checkpoint.h"
#include "text_files.h"

namespace tessera::app {

namespace {

constexpr std::int32_t kPageSize = 64;  // Bytes a token do not depend on it.

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

std::int64_t elements(const weights::Tensor& tensor) {
  std::int64_t product = 1;
  for (const std::int64_t extent : tensor.shape) product *= extent;
  return product;
}

struct DTypeTotal {
  std::int64_t tensors = 0;
  std::int64_t numbers = 0;  // As stored: eight INT4 weights are one.
  std::int64_t bytes = 0;
};

// Of all tensors that are computed with, a tied one once, however they are stored.
std::int64_t parameters(const models::ModelConfig& config) {
  std::int64_t sum = 0;
  std::set<std::string_view> seen;
  const models::ModelDescription description = models::describe(config);
  for (const models::TensorSpec& spec : description.tensors) {
    if (seen.insert(spec.name).second) sum += spec.rows() * spec.cols();
  }
  return sum;
}

std::string attention_text(const models::ModelConfig& c) {
  if (c.gqa.has_value()) {
    return fmt::format("{} heads, {} kv heads of {}", c.num_attention_heads, c.gqa->num_key_value_heads,
                       c.gqa->head_dim);
  }
  return fmt::format("{} heads over latents of {} + {}{}", c.num_attention_heads, c.mla->kv_lora_rank,
                     c.mla->qk_rope_head_dim,
                     c.dsa.has_value() ? fmt::format(", {} selected tokens", c.dsa->index_topk) : "");
}

std::string experts_text(const models::ModelConfig& c) {
  if (!c.moe.has_value()) return "";
  return fmt::format(", {} of {} experts and {} shared, of {}", c.moe->num_experts_per_tok, c.moe->n_routed_experts,
                     c.moe->n_shared_experts, c.moe->moe_intermediate_size);
}

struct Report {
  models::ModelConfig config;
  std::map<std::string, DTypeTotal> by_dtype;
  DTypeTotal all;
  std::string tokenizer;
  std::string chat_format;
};

// The tensors, by the very checks of loading.
base::Status check_weights(const models::ModelConfig& config, weights::Checkpoint& checkpoint) {
  const auto taken = models::take_weights(config, models::describe(config), checkpoint);
  return taken.has_value() ? base::ok_status() : taken.error();
}

// The text files, by the very checks of serving, described in the report. A folder without a tokenizer is no fault of
// its weights: the report says so, and no more.
base::Status check_text(const std::filesystem::path& dir, Report& report) {
  report.chat_format = "none";
  const auto files = load_text_files(dir);
  if (!files.has_value()) {
    const bool absent = files.error().code() == base::StatusCode::kNotFound;
    report.tokenizer = (absent ? "none: " : "refused: ") + files.error().message();
    return absent ? base::ok_status() : files.error();
  }
  report.tokenizer = fmt::format("{} tokens", files->tokenizer->vocab_size());
  report.chat_format =
      files->chat_format != nullptr ? std::string(files->chat_format->name()) : "none: " + files->no_chat;
  return check_vocabulary(dir, *files->tokenizer, report.config.vocab_size);
}

void print_table(const Report& report, const weights::Checkpoint& checkpoint) {
  const models::ModelConfig& c = report.config;
  std::cout << fmt::format("architecture  {} ({})\n", c.architecture, c.model_type);
  std::cout << fmt::format("shape         {} layers, hidden {}, ffn {}{}, {}, vocabulary {}, context {}\n",
                           c.num_hidden_layers, c.hidden_size, c.intermediate_size, experts_text(c), attention_text(c),
                           c.vocab_size, c.max_position_embeddings);
  std::cout << fmt::format("weights       {} tensors, {:.2f} M parameters, {} in {} file(s)\n", report.all.tensors,
                           static_cast<double>(parameters(c)) / 1e6, mebibytes(report.all.bytes),
                           checkpoint.file_count());
  for (const auto& [dtype, total] : report.by_dtype) {
    std::cout << fmt::format("  {:<10}  {} tensors, {:.2f} M numbers, {}\n", dtype, total.tensors,
                             static_cast<double>(total.numbers) / 1e6, mebibytes(total.bytes));
  }
  const models::ModelDescription description = models::describe(c);
  for (const ops::KvFormat format : {ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3}) {
    std::cout << fmt::format("KV {:<9}  {} bytes a token\n", ops::kv_format_name(format),
                             description.kv_layout(format, kPageSize).token_bytes());
  }
  std::cout << "tokenizer     " << report.tokenizer << "\nchat format   " << report.chat_format << "\n";
}

void print_json(const Report& report, const weights::Checkpoint& checkpoint, const InspectOptions& options) {
  const models::ModelConfig& c = report.config;
  server::JsonWriter json;
  json.begin_object().key("architecture").string(c.architecture).key("model_type").string(c.model_type);
  json.key("num_hidden_layers").integer(c.num_hidden_layers).key("hidden_size").integer(c.hidden_size);
  json.key("intermediate_size").integer(c.intermediate_size);
  json.key("num_attention_heads").integer(c.num_attention_heads);
  if (c.gqa.has_value()) {
    json.key("num_key_value_heads").integer(c.gqa->num_key_value_heads).key("head_dim").integer(c.gqa->head_dim);
  } else {
    json.key("kv_lora_rank").integer(c.mla->kv_lora_rank).key("qk_rope_head_dim").integer(c.mla->qk_rope_head_dim);
  }
  if (c.moe.has_value()) {
    json.key("n_routed_experts").integer(c.moe->n_routed_experts);
    json.key("num_experts_per_tok").integer(c.moe->num_experts_per_tok);
  }
  json.key("vocab_size").integer(c.vocab_size);
  json.key("max_position_embeddings").integer(c.max_position_embeddings);
  json.key("files").integer(checkpoint.file_count()).key("file_bytes").integer(checkpoint.file_bytes());
  json.key("tensors").integer(report.all.tensors).key("parameters").integer(parameters(c));
  json.key("tensor_bytes").integer(report.all.bytes);
  const models::ModelDescription description = models::describe(c);
  json.key("kv_bytes_per_token").begin_object();
  for (const ops::KvFormat format : {ops::KvFormat::kF32, ops::KvFormat::kBF16, ops::KvFormat::kF8E4M3}) {
    json.key(ops::kv_format_name(format)).integer(description.kv_layout(format, kPageSize).token_bytes());
  }
  json.end_object().key("tokenizer").string(report.tokenizer).key("chat_format").string(report.chat_format);
  if (options.list_tensors) {
    json.key("tensor_list").begin_array();
    for (const weights::Tensor& tensor : checkpoint.tensors()) {
      json.begin_object().key("name").string(tensor.name).key("dtype").string(base::dtype_name(tensor.dtype));
      json.key("shape").begin_array();
      for (const std::int64_t extent : tensor.shape) json.integer(extent);
      json.end_array().key("file").string(tensor.file).end_object();
    }
    json.end_array();
  }
  json.end_object();
  std::cout << json.take() << "\n";
}

}  // namespace

base::Status run_inspect(const InspectOptions& options) {
  Report report;
  TESSERA_ASSIGN_OR_RETURN(report.config, models::read_config(options.dir));
  TESSERA_ASSIGN_OR_RETURN(weights::Checkpoint checkpoint, weights::Checkpoint::open(options.dir));
  for (const weights::Tensor& tensor : checkpoint.tensors()) {
    for (DTypeTotal* total : {&report.all, &report.by_dtype[std::string(base::dtype_name(tensor.dtype))]}) {
      ++total->tensors;
      total->numbers += elements(tensor);
      total->bytes += static_cast<std::int64_t>(tensor.data.size());
    }
  }
  const base::Status text_status = check_text(options.dir, report);
  if (options.json) {
    print_json(report, checkpoint, options);
  } else {
    print_table(report, checkpoint);
    if (options.list_tensors) {
      for (const weights::Tensor& tensor : checkpoint.tensors()) {
        std::cout << fmt::format("  {:<60} {:<8} {:<18} {}\n", tensor.name, base::dtype_name(tensor.dtype),
                                 weights::shape_text(tensor.shape), tensor.file);
      }
    }
  }
  TESSERA_RETURN_IF_ERROR(check_weights(report.config, checkpoint));
  TESSERA_RETURN_IF_ERROR(text_status);
  if (!options.json) std::cout << "sound: every tensor is there, in its shape and dtype, and none is left over\n";
  return base::ok_status();
}

}  // namespace tessera::app
