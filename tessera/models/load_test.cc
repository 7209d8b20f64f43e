// What loading refuses and what it reports, on tiny checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/models/family.h"
#include "tessera/models/model.h"
#include "tessera/models/weight_loader.h"
#include "tessera/weights/mapped_file.h"
#include "tessera/weights/safetensors_writer.h"
#include "tests/support/recipe_checkpoint.h"
#include "tests/support/sequence_runner.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace tessera::models {
namespace {

using base::DType;
using base::StatusCode;
using test_support::HeadKind;
using test_support::TemporaryFolder;
using test_support::TinyLlamaOptions;
using testing::HasSubstr;

// One stored tensor, for rewriting a checkpoint with something wrong in it.
struct Stored {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

class LoadTest : public testing::Test {
 protected:
  void write(const TinyLlamaOptions& options) {
    const base::Status status = test_support::write_tiny_llama(folder_.path(), options);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void write_recipe(const std::string& name) {
    const base::Status status = test_support::write_recipe_checkpoint(name, folder_.path());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  // Rewrites the checkpoint as a single file, with its tensors as `change` leaves them.
  void rewrite(const std::function<void(std::vector<Stored>&)>& change) {
    std::vector<Stored> tensors;
    {
      const auto checkpoint = weights::Checkpoint::open(folder_.path());
      ASSERT_TRUE(checkpoint.has_value());
      for (const weights::Tensor& t : checkpoint->tensors()) {
        tensors.push_back(
            {std::string(t.name), t.dtype, {t.shape.begin(), t.shape.end()}, {t.data.begin(), t.data.end()}});
      }
    }
    change(tensors);
    std::vector<weights::TensorDeclaration> declarations;
    for (const Stored& t : tensors) declarations.push_back({t.name, t.dtype, t.shape});
    auto writer = weights::SafetensorsWriter::create(folder_.path() / weights::kSingleFileName, declarations);
    ASSERT_TRUE(writer.has_value());
    for (const Stored& t : tensors) ASSERT_TRUE(writer->write(t.name, t.data).ok());
    ASSERT_TRUE(writer->finish().ok());
    std::vector<std::filesystem::path> others;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.contains(".safetensors") && name != weights::kSingleFileName) others.push_back(entry.path());
    }
    for (const std::filesystem::path& path : others) std::filesystem::remove(path);
  }
  static Stored& find(std::vector<Stored>& tensors, const std::string& name) {
    return *std::ranges::find(tensors, name, &Stored::name);
  }
  void expect_refused(StatusCode code, const std::string& message) {
    const auto model = load_model(folder_.path(), *backend_);
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code(), code) << model.error().to_string();
    EXPECT_THAT(model.error().message(), HasSubstr(message));
  }
  std::unique_ptr<Model> load() {
    auto model = load_model(folder_.path(), *backend_);
    EXPECT_TRUE(model.has_value()) << model.error().to_string();
    return model.has_value() ? std::move(*model) : nullptr;
  }
  std::vector<float> logits_of(const Model& model) {
    test_support::SequenceRunner runner(model, *backend_, {.page_size = 16});
    return runner.step(std::vector<std::int32_t>{3, 1, 4, 1, 5}, test_support::WantedLogits::kAll);
  }

  TemporaryFolder folder_{"load"};
  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
};

TEST_F(LoadTest, ReportsWhatItLoaded) {
  write({});
  std::vector<LoadProgress> seen;
  auto model = load_model(folder_.path(), *backend_, [&](const LoadProgress& p) { seen.push_back(p); });
  ASSERT_TRUE(model.has_value()) << model.error().to_string();
  EXPECT_EQ((*model)->config().hidden_size, 64);
  EXPECT_EQ((*model)->weight_format(), "bf16");
  EXPECT_EQ((*model)->digest().size(), 64u);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().bytes_done, seen.back().bytes_total);
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);

  const ops::KvLayout kv = (*model)->kv_layout(ops::KvFormat::kF8E4M3, 32);
  EXPECT_EQ(kv, ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, 2, 32, 2, 16));
}

TEST_F(LoadTest, WeightMemoryCountsATiedTensorOnce) {
  TinyLlamaOptions options;
  options.dtype = DType::kF32;  // The reference backend computes on F32 vectors and matrices in place.
  write(options);
  const auto checkpoint = weights::Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(load()->weight_bytes(), checkpoint->tensor_bytes());
}

TEST_F(LoadTest, ShardsAndOneFileAreTheSameModel) {
  TinyLlamaOptions options;
  options.head = HeadKind::kUntied;
  write(options);
  const std::unique_ptr<Model> one = load();
  TemporaryFolder other("shards");
  options.shards = 3;
  ASSERT_TRUE(test_support::write_tiny_llama(other.path(), options).ok());
  const auto three = load_model(other.path(), *backend_);
  ASSERT_TRUE(three.has_value()) << three.error().to_string();
  EXPECT_EQ(one->digest(), (*three)->digest());
  EXPECT_EQ(logits_of(*one), logits_of(**three));
  options.seed = 2;
  ASSERT_TRUE(test_support::write_tiny_llama(other.path(), options).ok());
  EXPECT_NE(one->digest(), (*load_model(other.path(), *backend_))->digest());
}

// A one-byte tensor in front moves all others off their alignment.
TEST_F(LoadTest, UnalignedTensorsLoadTheSame) {
  write({});
  const std::vector<float> expected = logits_of(*load());
  const std::filesystem::path path = folder_.path() / weights::kSingleFileName;
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), std::ssize(bytes));
  // One space more after the header.
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  bytes.insert(8 + length, " ");
  ++length;
  std::memcpy(bytes.data(), &length, 8);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  EXPECT_EQ(logits_of(*load()), expected);
}

TEST_F(LoadTest, MissingTensor) {
  write({});
  rewrite(
      [](std::vector<Stored>& t) { std::erase_if(t, [](const Stored& s) { return s.name == "model.norm.weight"; }); });
  expect_refused(StatusCode::kNotFound, "model.safetensors: tensor 'model.norm.weight' is missing");
}

TEST_F(LoadTest, UnconsumedTensors) {
  write({});
  rewrite([](std::vector<Stored>& t) {
    t.push_back({"model.layers.0.self_attn.q_proj.bias", DType::kBF16, {1}, std::vector<std::byte>(2)});
  });
  expect_refused(StatusCode::kInvalidArgument,
                 "1 tensors that the model does not use, expected none: 'model.layers.0.self_attn.q_proj.bias' "
                 "(model.safetensors)");
}

TEST_F(LoadTest, FewerLayersInTheConfigThanInTheFile) {
  write({});
  TinyLlamaOptions options;
  options.num_hidden_layers = 1;
  std::ofstream(folder_.path() / kConfigFileName, std::ios::trunc) << test_support::tiny_llama_config(options);
  expect_refused(StatusCode::kInvalidArgument, "9 tensors that the model does not use");
}

TEST_F(LoadTest, WrongShape) {
  write({});
  rewrite([](std::vector<Stored>& t) { find(t, "model.layers.1.mlp.up_proj.weight").shape = {64, 96}; });
  expect_refused(StatusCode::kInvalidArgument,
                 "model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight' has shape [64, 96], expected [96, 64]");
}

TEST_F(LoadTest, WrongDtype) {
  write({});
  rewrite([](std::vector<Stored>& t) { find(t, "model.norm.weight").dtype = DType::kF16; });
  expect_refused(StatusCode::kUnimplemented,
                 "model.safetensors: tensor 'model.norm.weight' is stored as F16, expected F32 or BF16");
}

TEST_F(LoadTest, MixedFormatsAreNamed) {
  write({});
  rewrite([](std::vector<Stored>& t) {
    Stored& s = find(t, "model.layers.0.self_attn.k_proj.weight");
    s.dtype = DType::kF32;
    s.data.resize(2 * s.data.size());
  });
  EXPECT_EQ(load()->weight_format(), "bf16+f32");
}

TEST_F(LoadTest, TiedHeadThatTheFileHas) {
  write({});
  rewrite([](std::vector<Stored>& t) {
    Stored head = find(t, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    t.push_back(head);
  });
  expect_refused(StatusCode::kInvalidArgument,
                 "config.json: tie_word_embeddings is true, expected tensor 'lm_head.weight' to be absent from "
                 "model.safetensors, which has it");
}

TEST_F(LoadTest, UntiedHeadThatTheFileLacks) {
  TinyLlamaOptions options;
  options.head = HeadKind::kUntied;
  write(options);
  rewrite([](std::vector<Stored>& t) { std::erase_if(t, [](const Stored& s) { return s.name == "lm_head.weight"; }); });
  expect_refused(StatusCode::kInvalidArgument,
                 "tie_word_embeddings is false, expected tensor 'lm_head.weight' to be in model.safetensors, which "
                 "lacks it");
}

// The largest sizes that a config may ask for, over a tiny file: refused at once, and nothing of that size is touched.
TEST_F(LoadTest, AbsurdConfigOverATinyFile) {
  write({});
  TinyLlamaOptions options;
  options.vocab_size = 1 << 21;
  options.hidden_size = 1 << 17;
  options.intermediate_size = 1 << 20;
  options.num_hidden_layers = 1024;
  std::ofstream(folder_.path() / kConfigFileName, std::ios::trunc) << test_support::tiny_llama_config(options);
  const auto begin = std::chrono::steady_clock::now();
  expect_refused(StatusCode::kInvalidArgument, "tensor 'model.embed_tokens.weight' has shape [256, 64], expected");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(LoadTest, NoFolder) {
  const auto model = load_model(folder_.path() / "none", *backend_);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code(), StatusCode::kNotFound);
}

TEST_F(LoadTest, AWorkspaceThatCannotBeHadIsRefused) {
  write({});
  const std::unique_ptr<Model> model = load();
  for (const WorkspaceLimits& limits : {WorkspaceLimits{.tokens_max = 1ll << 62, .context_tokens_max = 64},
                                        WorkspaceLimits{.tokens_max = 0, .context_tokens_max = 64},
                                        WorkspaceLimits{.tokens_max = 8, .context_tokens_max = 1ll << 62},
                                        WorkspaceLimits{.tokens_max = 8, .context_tokens_max = 0}}) {
    EXPECT_EQ(model->make_workspace(limits).error().code(), StatusCode::kOutOfRange);
  }
  const auto workspace = model->make_workspace({.tokens_max = 8, .context_tokens_max = 64});
  ASSERT_TRUE(workspace.has_value());
  EXPECT_EQ((*workspace)->device_bytes(), 8 * 4 * (2 * 64 + 2 * (4 + 2) * 16));
}

// ---- Experts, quantized weights and skipped tensors ----

TEST_F(LoadTest, QuantizedExpertsAndASkippedVisionTower) {
  write_recipe("kimi_k26_int4");
  EXPECT_EQ(load()->weight_format(), "bf16+int4_group");

  const ModelConfig config = *read_config(folder_.path());
  const ModelDescription description = describe(config);
  auto checkpoint = weights::Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.has_value());
  SkippedTensors skipped;
  for (const weights::Tensor& tensor : checkpoint->tensors()) {
    if (!tensor.name.starts_with("vision_tower.") && !tensor.name.starts_with("mm_projector.")) continue;
    ++skipped.tensors;
    skipped.bytes += std::ssize(tensor.data);
  }
  EXPECT_GT(skipped.tensors, 0);
  const auto loaded = load_weights(config, "", description, std::move(*checkpoint), *backend_, {});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
  EXPECT_EQ(loaded->skipped.tensors, skipped.tensors);
  EXPECT_EQ(loaded->skipped.bytes, skipped.bytes);
  EXPECT_EQ(loaded->expert_stacks.size(), 2u);
  EXPECT_EQ(loaded->expert_stacks[0].experts, 8);
  EXPECT_EQ(loaded->expert_stacks[0].format, ops::WeightFormat::kInt4Group);
  EXPECT_EQ(loaded->mla_ups.size(), 3u);
}

// Scales that the file has in another dtype are held once, by the loaded model, and count as its memory.
TEST_F(LoadTest, ConvertedScalesAreHeldOnceAndCounted) {
  write_recipe("glm4_moe_f8_channel");
  const ModelConfig config = *read_config(folder_.path());
  const ModelDescription description = describe(config);
  auto checkpoint = weights::Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.has_value());
  std::int64_t bytes = 0;
  for (const weights::Tensor& t : checkpoint->tensors()) {
    if (description.skips(t.name)) continue;
    const bool widened = t.dtype == DType::kBF16 &&
                         (t.name.ends_with("_scale") || t.shape.size() == 1 || t.name.ends_with(".mlp.gate.weight"));
    bytes += std::ssize(t.data) * (widened ? 2 : 1);
  }
  auto loaded = load_weights(config, "", description, std::move(*checkpoint), *backend_, {});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
  EXPECT_EQ(loaded->weight_bytes, bytes);
  std::set<const void*> held;
  for (const weights::StoredWeight& stored : loaded->converted) held.insert(stored.converted_scales.data());
  std::size_t in_place = 0;
  const auto look = [&](const ops::Weight& weight) {
    if (weight.format != ops::WeightFormat::kF8Channel) return;
    EXPECT_TRUE(held.contains(weight.scales));
    EXPECT_EQ(weight.storage.bytes(), 0);
    ++in_place;
  };
  for (const ops::Weight& weight : loaded->weights) look(weight);
  for (const ops::ExpertStack& stack : loaded->expert_stacks) {
    for (const auto* weights : {&stack.gate, &stack.up, &stack.down}) std::ranges::for_each(*weights, look);
  }
  EXPECT_EQ(in_place, held.size());
  EXPECT_GT(in_place, 20u);
}

TEST_F(LoadTest, AScaleThatIsNotFinite) {
  write_recipe("glm4_moe_f8_channel");
  rewrite([](std::vector<Stored>& t) {
    const base::BF16 nan = base::to_bf16(std::numeric_limits<float>::quiet_NaN());
    std::memcpy(find(t, "model.layers.1.mlp.experts.3.up_proj.weight_scale").data.data() + 2 * 5, &nan, 2);
  });
  expect_refused(StatusCode::kInvalidArgument,
                 "model.safetensors: tensor 'model.layers.1.mlp.experts.3.up_proj.weight_scale' holds nan at element "
                 "5, expected finite scales");
}

// A head that is the embedding's tensor is plain as that is, whatever is quantized beside it.
TEST_F(LoadTest, ATiedHeadOfAQuantizedCheckpointIsPlain) {
  write_recipe("glm4_moe_f8_channel");
  rewrite([](std::vector<Stored>& t) { std::erase_if(t, [](const Stored& s) { return s.name == "lm_head.weight"; }); });
  std::string text = *weights::read_text_file(folder_.path() / kConfigFileName, 1 << 20);
  for (const auto& [from, to] : std::map<std::string, std::string>{
           {R"("tie_word_embeddings": false)", R"("tie_word_embeddings": true)"}, {R"("lm_head")", R"("other")"}}) {
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
  }
  std::ofstream(folder_.path() / kConfigFileName, std::ios::trunc) << text;
  const std::unique_ptr<Model> model = load();
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->weight_format(), "bf16+f8_channel");
  for (const float logit : logits_of(*model)) ASSERT_TRUE(std::isfinite(logit));
}

TEST_F(LoadTest, LayersForSpeculationThatTheConfigDoesNotCount) {
  write_recipe("deepseek_v3_groups_yarn");
  EXPECT_NE(load(), nullptr);
  std::string text = *weights::read_text_file(folder_.path() / kConfigFileName, 1 << 20);
  const std::string counted = R"("num_nextn_predict_layers": 1)";
  ASSERT_NE(text.find(counted), std::string::npos);
  text.replace(text.find(counted), counted.size(), R"("num_nextn_predict_layers": 0)");
  std::ofstream(folder_.path() / kConfigFileName, std::ios::trunc) << text;
  expect_refused(StatusCode::kInvalidArgument, "tensors that the model does not use, expected none: 'model.layers.3.");
}

TEST_F(LoadTest, ExpertsOfALayerAreStoredAlike) {
  write_recipe("deepseek_v3");
  rewrite([](std::vector<Stored>& t) {
    Stored& s = find(t, "model.layers.2.mlp.experts.5.up_proj.weight");
    s.dtype = DType::kBF16;
    s.data.resize(s.data.size() / 2);
  });
  expect_refused(StatusCode::kUnimplemented,
                 "model.safetensors: tensor 'model.layers.2.mlp.experts.5.up_proj.weight': is stored as bf16, expected "
                 "all experts of a layer to be stored alike, as f32");
}

TEST_F(LoadTest, ARouterWithoutItsBias) {
  write_recipe("deepseek_v3");
  rewrite([](std::vector<Stored>& t) {
    std::erase_if(t, [](const Stored& s) { return s.name == "model.layers.1.mlp.gate.e_score_correction_bias"; });
  });
  expect_refused(StatusCode::kNotFound, "tensor 'model.layers.1.mlp.gate.e_score_correction_bias' is missing");
}

TEST_F(LoadTest, OneExpertLessThanTheConfigSays) {
  write_recipe("deepseek_v3");
  rewrite([](std::vector<Stored>& t) {
    std::erase_if(t, [](const Stored& s) { return s.name.starts_with("model.layers.1.mlp.experts.7."); });
  });
  expect_refused(StatusCode::kNotFound, "tensor 'model.layers.1.mlp.experts.7.gate_proj.weight' is missing");
}

TEST_F(LoadTest, ScalesForAQuantizedKvCacheAreReportedAndNotUsed) {
  write_recipe("qwen3");
  const std::vector<float> expected = logits_of(*load());
  rewrite([](std::vector<Stored>& t) {
    t.push_back({"model.layers.0.self_attn.k_scale", DType::kBF16, {1}, std::vector<std::byte>(2)});
  });
  EXPECT_EQ(logits_of(*load()), expected);
}

// Every tensor of the description can be divided as it says, and the ranks' parts add up to the whole.
TEST(Describe, ShardsTileEveryTensor) {
  TinyLlamaOptions options;
  options.num_attention_heads = 8;
  options.num_key_value_heads = 4;
  const ModelConfig config = *parse_config(test_support::tiny_llama_config(options));
  for (const std::int32_t world : {1, 2, 4}) {
    for (const TensorSpec& spec : describe(config).tensors) {
      std::int64_t elements = 0;
      for (std::int32_t rank = 0; rank < world; ++rank) {
        const auto slice = weights::slice_for_rank(spec.name, spec.rows(), spec.cols(), spec.shard, {rank, world});
        ASSERT_TRUE(slice.has_value()) << slice.error().to_string();
        elements += slice->rows() * slice->cols();
      }
      const bool whole = spec.shard.dimension == weights::ShardDimension::kNone;
      EXPECT_EQ(elements, spec.rows() * spec.cols() * (whole ? world : 1)) << spec.name;
    }
  }
  // Eight ranks cannot share four KV heads.
  const ModelDescription description = describe(config);
  const TensorSpec& k =
      *std::ranges::find(description.tensors, "model.layers.0.self_attn.k_proj.weight", &TensorSpec::name);
  EXPECT_FALSE(weights::slice_for_rank(k.name, k.rows(), k.cols(), k.shard, {0, 8}).has_value());
}

}  // namespace
}  // namespace tessera::models
