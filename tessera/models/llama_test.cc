// The Llama forward pass against an independent one: dense, without pages or ops, in double, written from the papers'
// formulas.
#include "tessera/models/llama.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/models/model.h"
#include "tests/support/compare.h"
#include "tests/support/sequence_runner.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace tessera::models {
namespace {

using test_support::HeadKind;
using test_support::relative_error;
using test_support::RunnerOptions;
using test_support::RunnerRow;
using test_support::SequenceRunner;
using test_support::TemporaryFolder;
using test_support::TinyLlamaOptions;
using test_support::WantedLogits;

using Row = std::vector<double>;

class DenseLlama {
 public:
  explicit DenseLlama(const TinyLlamaOptions& options) : o_(options) {
    const ModelConfig config = *parse_config(test_support::tiny_llama_config(options));
    for (const TensorSpec& spec : describe(config).tensors) {
      weights_[spec.name] = test_support::tiny_tensor_values(spec, options);
    }
  }

  // Logits of every position.
  std::vector<Row> forward(const std::vector<std::int32_t>& tokens) const {
    std::vector<Row> x;
    for (const std::int32_t token : tokens) {
      const auto begin = at("model.embed_tokens").begin() + token * o_.hidden_size;
      x.emplace_back(begin, begin + o_.hidden_size);
    }
    for (std::int64_t layer = 0; layer < o_.num_hidden_layers; ++layer) {
      const std::string p = "model.layers." + std::to_string(layer) + ".";
      attention(p, x);
      for (Row& row : x) {
        const Row h = norm(p + "post_attention_layernorm", row);
        Row gate = product(p + "mlp.gate_proj", h);
        const Row up = product(p + "mlp.up_proj", h);
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
        add(row, product(p + "mlp.down_proj", gate));
      }
    }
    std::vector<Row> logits;
    const std::string head = o_.head == HeadKind::kTied ? "model.embed_tokens" : "lm_head";
    for (const Row& row : x) logits.push_back(product(head, norm("model.norm", row)));
    return logits;
  }

 private:
  const std::vector<float>& at(const std::string& name) const { return weights_.at(name + ".weight"); }

  static void add(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Row product(const std::string& name, const Row& x) const {
    const std::vector<float>& w = at(name);
    Row y(w.size() / x.size());
    for (std::size_t n = 0; n < y.size(); ++n) {
      for (std::size_t k = 0; k < x.size(); ++k) y[n] += static_cast<double>(w[n * x.size() + k]) * x[k];
    }
    return y;
  }
  Row norm(const std::string& name, const Row& x) const {
    const double mean = std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
    Row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(mean + o_.rms_norm_eps) * at(name)[i];
    return y;
  }
  void rotate(Row& x, std::int64_t position) const {
    const std::int64_t half = o_.head_dim / 2;
    for (std::size_t head = 0; head < x.size() / static_cast<std::size_t>(o_.head_dim); ++head) {
      double* v = x.data() + head * static_cast<std::size_t>(o_.head_dim);
      for (std::int64_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(o_.head_dim);
        const double angle = static_cast<double>(position) * std::pow(o_.rope_theta, exponent);
        const double a = v[i], b = v[i + half];
        v[i] = a * std::cos(angle) - b * std::sin(angle);
        v[i + half] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
  void attention(const std::string& p, std::vector<Row>& x) const {
    std::vector<Row> q, k, v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Row h = norm(p + "input_layernorm", x[t]);
      q.push_back(product(p + "self_attn.q_proj", h));
      k.push_back(product(p + "self_attn.k_proj", h));
      v.push_back(product(p + "self_attn.v_proj", h));
      rotate(q.back(), static_cast<std::int64_t>(t));
      rotate(k.back(), static_cast<std::int64_t>(t));
    }
    const std::int64_t d = o_.head_dim;
    const std::int64_t group = o_.num_attention_heads / o_.num_key_value_heads;
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row context(q[t].size());
      for (std::int64_t head = 0; head < o_.num_attention_heads; ++head) {
        const std::int64_t kv = head / group;
        Row weight(t + 1);
        double total = 0.0;
        for (std::size_t j = 0; j <= t; ++j) {
          double score = 0.0;
          for (std::int64_t i = 0; i < d; ++i) score += q[t][head * d + i] * k[j][kv * d + i];
          weight[j] = std::exp(score / std::sqrt(static_cast<double>(d)));
          total += weight[j];
        }
        for (std::size_t j = 0; j <= t; ++j) {
          for (std::int64_t i = 0; i < d; ++i) context[head * d + i] += weight[j] / total * v[j][kv * d + i];
        }
      }
      add(x[t], product(p + "self_attn.o_proj", context));
    }
  }

  TinyLlamaOptions o_;
  std::map<std::string, std::vector<float>> weights_;
};

// Odd sizes on purpose: heads x head_dim is not the hidden size, pages do not divide the length.
TinyLlamaOptions odd_options(HeadKind head, base::DType dtype) {
  TinyLlamaOptions options;
  options.vocab_size = 97;
  options.hidden_size = 44;
  options.intermediate_size = 70;
  options.num_hidden_layers = 3;
  options.num_attention_heads = 6;
  options.num_key_value_heads = 2;
  options.head_dim = 10;
  options.head = head;
  options.dtype = dtype;
  options.seed = 20;
  return options;
}

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocab, std::int64_t salt) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>((i * i * 7 + i * salt + 3) % vocab));
  return tokens;
}

struct Case {
  HeadKind head;
  base::DType dtype;
};

class LlamaForward : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    options_ = odd_options(GetParam().head, GetParam().dtype);
    ASSERT_TRUE(test_support::write_tiny_llama(folder_.path(), options_).ok());
    auto model = load_model(folder_.path(), *backend_);
    ASSERT_TRUE(model.has_value()) << model.error().to_string();
    model_ = std::move(*model);
  }
  SequenceRunner runner(std::int64_t rows = 1) {
    return SequenceRunner(
        *model_, *backend_,
        RunnerOptions{
            .kv_format = ops::KvFormat::kF32, .page_size = 16, .rows = rows, .tokens_max = 80, .context_max = 128});
  }
  void expect_near(std::span<const float> logits, const Row& reference) const {
    EXPECT_LT(relative_error(logits, std::span<const double>(reference)), 1e-5);
  }

  TinyLlamaOptions options_;
  TemporaryFolder folder_{"llama"};
  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<Model> model_;
};

TEST_P(LlamaForward, PrefillInOnePiece) {
  const std::vector<std::int32_t> tokens = some_tokens(75, options_.vocab_size, 5);
  const std::vector<Row> reference = DenseLlama(options_).forward(tokens);
  SequenceRunner run = runner();
  const std::vector<float> logits = run.step(tokens, WantedLogits::kAll);
  ASSERT_EQ(logits.size(), tokens.size() * static_cast<std::size_t>(options_.vocab_size));
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    SCOPED_TRACE(t);
    expect_near(std::span(logits).subspan(t * reference[t].size(), reference[t].size()), reference[t]);
  }
  EXPECT_EQ(run.layers_seen(), options_.num_hidden_layers);
}

TEST_P(LlamaForward, PrefillInChunks) {
  const std::vector<std::int32_t> tokens = some_tokens(75, options_.vocab_size, 11);
  const std::vector<Row> reference = DenseLlama(options_).forward(tokens);
  SequenceRunner run = runner();
  std::size_t done = 0;
  for (const std::size_t chunk : {1, 16, 7, 24, 27}) {
    const std::vector<float> logits = run.step(std::span(tokens).subspan(done, chunk), WantedLogits::kLastOfEachRow);
    done += chunk;
    SCOPED_TRACE(done);
    expect_near(logits, reference[done - 1]);
  }
  EXPECT_EQ(done, tokens.size());
}

TEST_P(LlamaForward, TokenByToken) {
  const std::vector<std::int32_t> tokens = some_tokens(40, options_.vocab_size, 3);
  const std::vector<Row> reference = DenseLlama(options_).forward(tokens);
  SequenceRunner run = runner();
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    SCOPED_TRACE(t);
    expect_near(run.step(std::span(tokens).subspan(t, 1), WantedLogits::kLastOfEachRow), reference[t]);
  }
}

// Prefill of one sequence, decode of another and an idle third in one pass; logits only where wanted.
TEST_P(LlamaForward, RaggedBatch) {
  const std::vector<std::int32_t> a = some_tokens(33, options_.vocab_size, 2);
  const std::vector<std::int32_t> b = some_tokens(18, options_.vocab_size, 9);
  const DenseLlama dense(options_);
  const std::vector<Row> reference_a = dense.forward(a);
  const std::vector<Row> reference_b = dense.forward(b);
  SequenceRunner run = runner(3);
  run.step(std::span(b).first(17), WantedLogits::kLastOfEachRow, 1);
  const std::vector<RunnerRow> rows = {{0, a}, {2, {}}, {1, std::span(b).subspan(17)}};
  const std::vector<float> logits = run.step(rows, WantedLogits::kLastOfEachRow);
  const std::size_t vocab = static_cast<std::size_t>(options_.vocab_size);
  ASSERT_EQ(logits.size(), 2 * vocab);
  expect_near(std::span(logits).first(vocab), reference_a.back());
  expect_near(std::span(logits).subspan(vocab), reference_b.back());
}

INSTANTIATE_TEST_SUITE_P(All, LlamaForward,
                         testing::Values(Case{HeadKind::kTied, base::DType::kF32},
                                         Case{HeadKind::kUntied, base::DType::kF32},
                                         Case{HeadKind::kTied, base::DType::kBF16},
                                         Case{HeadKind::kUntied, base::DType::kBF16}),
                         [](const testing::TestParamInfo<Case>& tested) {
                           return std::string(tested.param.head == HeadKind::kTied ? "Tied" : "Untied") +
                                  std::string(base::dtype_name(tested.param.dtype));
                         });

}  // namespace
}  // namespace tessera::models
