#include "inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/models/config.h"
#include "tessera/models/family.h"
#include "tessera/ops/kv_layout.h"
#include "tessera/server/json_writer.h"
#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"
#include "tessera/weights/checkpoint.h"

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
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;
};

// Compares the tensors that are there with those that the family computes with.
std::vector<std::string> faults(const models::ModelConfig& config, const weights::Checkpoint& checkpoint) {
  std::vector<std::string> found;
  std::set<std::string, std::less<>> wanted;
  for (const models::TensorSpec& spec : models::describe(config).tensors) {
    wanted.insert(spec.name);
    const weights::Tensor* tensor = checkpoint.find(spec.name);
    if (tensor == nullptr) {
      found.push_back(fmt::format("tensor {} is missing", spec.name));
    } else if (!std::ranges::equal(tensor->shape, spec.shape)) {
      found.push_back(fmt::format("tensor {} in {} has shape {}, expected {}", spec.name, tensor->file,
                                  weights::shape_text(tensor->shape), weights::shape_text(spec.shape)));
    }
  }
  for (const weights::Tensor& tensor : checkpoint.tensors()) {
    if (!wanted.contains(tensor.name)) {
      found.push_back(fmt::format("tensor {} in {} is not part of a {}", weights::quote_name(tensor.name), tensor.file,
                                  config.architecture));
    }
  }
  return found;
}

struct Report {
  models::ModelConfig config;
  std::map<std::string, DTypeTotal> by_dtype;
  DTypeTotal all;
  std::string tokenizer;
  std::string chat_format;
};

void print_table(const Report& report, const weights::Checkpoint& checkpoint) {
  const models::ModelConfig& c = report.config;
  std::cout << fmt::format("architecture  {} ({})\n", c.architecture, c.model_type);
  std::cout << fmt::format(
      "shape         {} layers, hidden {}, ffn {}, {} heads, {} kv heads of {}, vocabulary {}, "
      "context {}\n",
      c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim,
      c.vocab_size, c.max_position_embeddings);
  std::cout << fmt::format("weights       {} tensors, {:.2f} M parameters, {} in {} file(s)\n", report.all.tensors,
                           static_cast<double>(report.all.parameters) / 1e6, mebibytes(report.all.bytes),
                           checkpoint.file_count());
  for (const auto& [dtype, total] : report.by_dtype) {
    std::cout << fmt::format("  {:<10}  {} tensors, {:.2f} M parameters, {}\n", dtype, total.tensors,
                             static_cast<double>(total.parameters) / 1e6, mebibytes(total.bytes));
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
  json.key("num_key_value_heads").integer(c.num_key_value_heads).key("head_dim").integer(c.head_dim);
  json.key("vocab_size").integer(c.vocab_size);
  json.key("max_position_embeddings").integer(c.max_position_embeddings);
  json.key("files").integer(checkpoint.file_count()).key("file_bytes").integer(checkpoint.file_bytes());
  json.key("tensors").integer(report.all.tensors).key("parameters").integer(report.all.parameters);
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
  TESSERA_ASSIGN_OR_RETURN(const weights::Checkpoint checkpoint, weights::Checkpoint::open(options.dir));
  for (const weights::Tensor& tensor : checkpoint.tensors()) {
    for (DTypeTotal* total : {&report.all, &report.by_dtype[std::string(base::dtype_name(tensor.dtype))]}) {
      ++total->tensors;
      total->parameters += elements(tensor);
      total->bytes += static_cast<std::int64_t>(tensor.data.size());
    }
  }
  const auto tokenizer = text::Tokenizer::load(options.dir);
  report.tokenizer = tokenizer.has_value() ? fmt::format("{} tokens", (*tokenizer)->vocab_size())
                                           : "none: " + tokenizer.error().message();
  report.chat_format = "none";
  if (tokenizer.has_value()) {
    const auto format = text::ChatFormat::load(options.dir, **tokenizer);
    report.chat_format = format.has_value() ? std::string((*format)->name()) : "none: " + format.error().message();
  }
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
  const std::vector<std::string> found = faults(report.config, checkpoint);
  if (!found.empty()) {
    std::string message = fmt::format("{}: {} fault(s)", options.dir.string(), found.size());
    for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 20); ++i) message += "\n  " + found[i];
    return base::data_loss(message);
  }
  if (!options.json) std::cout << "sound: every tensor is there, in its shape, and none is left over\n";
  return base::ok_status();
}

}  // namespace tessera::app
