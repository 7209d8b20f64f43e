#include "tests/support/context_oracle_model.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::test_support {

namespace {

constexpr std::int32_t kElements = ContextOracleModel::kKvHeads * ContextOracleModel::kHeadDim;
static_assert(kElements * 2 * 2 == 64, "keys and values of a token hold 64 bits, two an element");

constexpr std::uint64_t mix(std::uint64_t x) { return base::mix64(x + base::kMix64Step); }

std::uint64_t token_bits(std::int32_t token, std::int64_t position, std::int32_t layer, std::uint32_t flavor,
                         models::RowPhase phase) {
  return mix(mix(static_cast<std::uint64_t>(token) << 32 | static_cast<std::uint64_t>(position)) ^
             (static_cast<std::uint64_t>(flavor) << 16) ^ (static_cast<std::uint64_t>(phase) << 8) ^
             static_cast<std::uint64_t>(layer));
}

std::uint64_t fold(std::uint64_t context, std::uint64_t bits) { return mix(context ^ bits); }

float logit(std::uint64_t context, std::int64_t token) {
  return static_cast<float>(mix(context ^ (static_cast<std::uint64_t>(token) * 0x632be59bd9b4e019ull)) >> 40) *
         0x1.0p-22f;
}

// Poison is never generated, so that only tests that ask for it meet it.
float logit_or_nothing(std::uint64_t context, std::int64_t token) {
  return token == ContextOracleModel::kPoison ? -std::numeric_limits<float>::infinity() : logit(context, token);
}

// Two bits of an element's value. Anything that was not written by this model reads as some other number, or as 3.
std::uint64_t two_bits(float value) {
  const float size = std::abs(value);
  if (size < 0x1.0p20f) return static_cast<std::uint32_t>(size + 0.5f) & 3u;
  return std::isfinite(value) ? static_cast<std::uint64_t>(std::llround(size)) & 3u : 3u;
}

std::array<float, 256> f8_values() {
  std::array<float, 256> values;
  for (std::size_t code = 0; code < values.size(); ++code) {
    values[code] = base::to_float(std::bit_cast<base::F8E4M3>(static_cast<std::uint8_t>(code)));
  }
  return values;
}

// Reads one part of one layer, page by page: every step reads the whole context, so that this decides how fast
// simulations are.
class PartReader {
 public:
  PartReader(const ops::KvCacheView& cache, int layer, int part)
      : shape_(cache.layout.parts[static_cast<std::size_t>(part)]),
        dtype_(cache.layout.part_dtype(part)),
        row_bytes_(cache.layout.row_bytes(part)),
        data_(cache.page_data(layer, part, 0)),
        page_bytes_(cache.page_data(layer, part, 1) - data_) {
    if (!cache.layout.part_has_scales(part)) return;
    scale_dtype_ = cache.layout.part_scale_dtype(part);
    scale_row_bytes_ = cache.layout.row_scale_bytes(part);
    scales_ = cache.page_scales(layer, part, 0);
    scale_page_bytes_ = cache.page_scales(layer, part, 1) - scales_;
  }

  // Two bits of each element of a slot, from bit 0 on.
  std::uint64_t bits(std::int64_t page, std::int64_t offset) const {
    const std::byte* row = data_ + page * page_bytes_ + offset * row_bytes_;
    std::uint64_t bits = 0;
    const auto gather = [&](auto value) {
      for (int i = 0; i < shape_.elements; ++i) bits |= two_bits(value(i)) << (2 * i);
    };
    if (scales_ == nullptr && dtype_ == base::DType::kF32) {
      gather([&](int i) { return reinterpret_cast<const float*>(row)[i]; });
    } else if (scales_ == nullptr) {
      gather([&](int i) { return base::to_float(reinterpret_cast<const base::BF16*>(row)[i]); });
    } else {
      const std::byte* scales = scales_ + page * scale_page_bytes_ + offset * scale_row_bytes_;
      gather([&, group = -1, end = 0, scale = 0.0f](int i) mutable {
        if (i == end) {
          end += ++group == 0 ? shape_.first_group : shape_.other_groups;
          scale = scale_dtype_ == base::DType::kF32
                      ? reinterpret_cast<const float*>(scales)[group]
                      : base::to_float(reinterpret_cast<const base::BF16*>(scales)[group]);
        }
        return f8_[std::to_integer<std::size_t>(row[i])] * scale;
      });
    }
    return bits;
  }

 private:
  inline static const std::array<float, 256> f8_ = f8_values();
  const ops::KvPart& shape_;
  const base::DType dtype_;
  const std::int64_t row_bytes_;
  const std::byte* const data_;
  const std::int64_t page_bytes_;
  base::DType scale_dtype_ = base::DType::kF32;
  std::int64_t scale_row_bytes_ = 0;
  const std::byte* scales_ = nullptr;
  std::int64_t scale_page_bytes_ = 0;
};

// Reads a layer's 64 bits of a token.
class LayerReader {
 public:
  LayerReader(const ops::KvCacheView& cache, int layer) : first_(cache, layer, 0) {
    if (cache.layout.layer_parts(layer) == 1) return;
    second_.emplace(cache, layer, 1);
    second_is_values_ = cache.layout.parts[1].kind == ops::KvPartKind::kValues;
  }
  std::uint64_t bits(std::int64_t page, std::int64_t offset) const {
    constexpr int kKeyBits = 2 * kElements;
    const std::uint64_t first = first_.bits(page, offset);
    if (!second_.has_value()) return first;
    const std::uint64_t second = second_->bits(page, offset);
    if (second_is_values_) return first | second << kKeyBits;
    const std::uint64_t keys = first & ((1ull << kKeyBits) - 1);
    return first ^ keys ^ second;
  }

 private:
  PartReader first_;
  std::optional<PartReader> second_;
  bool second_is_values_ = false;
};

class NoWorkspace final : public models::Workspace {
 public:
  std::int64_t device_bytes() const override { return 0; }
};

}  // namespace

ContextOracleModel::ContextOracleModel(ops::Backend& backend, ContextOracleOptions options)
    : backend_(backend), options_(std::move(options)) {
  config_.architecture = "ContextOracle";
  config_.vocab_size = kVocab;
  config_.num_hidden_layers = kLayers;
  if (options_.kv == OracleKv::kLatents) {
    config_.mla.emplace();
    config_.mla->kv_lora_rank = kElements;
    config_.mla->qk_rope_head_dim = kElements;
  } else {
    config_.gqa.emplace();
    config_.gqa->num_key_value_heads = kKvHeads;
    config_.gqa->head_dim = kHeadDim;
  }
  config_.max_position_embeddings = options_.context;
}

ops::KvLayout ContextOracleModel::kv_layout(ops::KvFormat format, std::int32_t page_size) const {
  if (options_.kv == OracleKv::kKeysAndValues) {
    return ops::gqa_kv_layout(format, kLayers, page_size, kKvHeads, kHeadDim);
  }
  ops::LayerSet index_layers;
  index_layers.insert(kLayers - 1);
  return ops::mla_kv_layout(format, kLayers, page_size, kElements, kElements, kElements, index_layers);
}

base::Result<std::unique_ptr<models::Workspace>> ContextOracleModel::make_workspace(
    const models::WorkspaceLimits&) const {
  return std::make_unique<NoWorkspace>();
}

void ContextOracleModel::forward(ops::Stream& stream, models::Workspace&, const models::ForwardBatch& batch,
                                 ops::Matrix logits) const {
  if (options_.before_forward) options_.before_forward();
  if (options_.on_batch) options_.on_batch(batch);
  const std::int64_t tokens = std::ssize(batch.token_ids);
  std::vector<float> kv(static_cast<std::size_t>(tokens * 2 * kElements));  // A token's keys, then its values.
  const ops::Matrix rows = ops::f32_matrix(kv.data(), tokens, 2 * kElements);
  ops::Matrix k = rows;
  k.cols = kElements;
  ops::Matrix v = ops::f32_matrix(kv.data() + kElements, tokens, kElements);
  v.row_stride = rows.row_stride;
  TESSERA_CHECK(batch.row_phases.size() + 1 == batch.cu_seqlens_q.size());
  std::vector<models::RowPhase> phases;  // Of the tokens.
  for (std::size_t r = 0; r < batch.row_phases.size(); ++r) {
    phases.insert(phases.end(), static_cast<std::size_t>(batch.cu_seqlens_q[r + 1] - batch.cu_seqlens_q[r]),
                  batch.row_phases[r]);
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int32_t token = batch.token_ids[static_cast<std::size_t>(t)];
      TESSERA_CHECK(token >= 0 && token < kVocab);
      const std::uint64_t bits = token_bits(token, batch.positions[static_cast<std::size_t>(t)], layer, options_.flavor,
                                            phases[static_cast<std::size_t>(t)]);
      for (int i = 0; i < kElements; ++i) {
        const auto at = static_cast<std::size_t>(t * 2 * kElements + i);
        kv[at] =
            token == kPoison ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>((bits >> (2 * i)) & 3u);
        kv[at + kElements] = static_cast<float>((bits >> (2 * (kElements + i))) & 3u);
      }
    }
    ops::KvWriteParams write{.slots = batch.slots,
                             .parts = {},
                             .cache = batch.cache,
                             .layer = layer,
                             .nonfinite_rows = batch.nonfinite_rows};
    if (options_.kv == OracleKv::kKeysAndValues) {
      write.parts = {k, v};
    } else {
      write.parts[ops::kPartLatent] = rows;
      if (batch.cache.layout.layer_parts(layer) > ops::kPartIndexKeys) write.parts[ops::kPartIndexKeys] = k;
    }
    backend_.kv_write(stream, write);
    if (batch.after_layer) batch.after_layer(layer);
  }
  const std::int64_t page_size = batch.cache.layout.page_size;
  std::vector<LayerReader> layers;
  for (int layer = 0; layer < kLayers; ++layer) layers.emplace_back(batch.cache, layer);
  std::size_t row = 0;
  for (std::size_t l = 0; l < batch.logit_tokens.size(); ++l) {
    const std::int32_t t = batch.logit_tokens[l];
    while (batch.cu_seqlens_q[row + 1] <= t) ++row;
    const std::int64_t position = batch.positions[static_cast<std::size_t>(t)];
    std::uint64_t context = 0;
    // A row that failed its check may read nothing.
    if (batch.pages.kv_lens()[row] > 0) {
      TESSERA_CHECK(position < batch.pages.kv_lens()[row]);
      const std::int32_t* table =
          batch.pages.table() + static_cast<std::int64_t>(row) * batch.pages.max_pages_per_row();
      for (std::int64_t p = 0; p <= position; ++p) {
        for (const LayerReader& layer : layers) {
          context = fold(context, layer.bits(table[p / page_size], p % page_size));
        }
      }
    }
    for (std::int64_t token = 0; token < kVocab; ++token) {
      logits.f32()[static_cast<std::int64_t>(l) * logits.row_stride + token] = logit_or_nothing(context, token);
    }
  }
}

ContextOracle::ContextOracle(std::span<const std::int32_t> prompt, Flavors flavors) : flavors_(flavors) {
  for (const std::int32_t token : prompt) take(token, flavors.prompt, models::RowPhase::kPrompt);
}

void ContextOracle::logits(std::span<float> out) const {
  TESSERA_CHECK(std::ssize(out) == ContextOracleModel::kVocab);
  for (std::size_t token = 0; token < out.size(); ++token) {
    out[token] = logit_or_nothing(context_, static_cast<std::int64_t>(token));
  }
}

std::int32_t ContextOracle::greedy_token() const {
  std::int32_t best = 0;
  for (std::int32_t token = 1; token < ContextOracleModel::kVocab; ++token) {
    if (logit_or_nothing(context_, token) > logit_or_nothing(context_, best)) best = token;
  }
  return best;
}

void ContextOracle::take(std::int32_t token) { take(token, flavors_.generated, models::RowPhase::kGenerated); }

void ContextOracle::take(std::int32_t token, std::uint32_t flavor, models::RowPhase phase) {
  for (int layer = 0; layer < ContextOracleModel::kLayers; ++layer) {
    context_ = fold(context_, token_bits(token, position_, layer, flavor, phase));
  }
  ++position_;
}

std::vector<std::int32_t> oracle_tokens(std::span<const std::int32_t> prompt, std::int64_t count, Flavors flavors) {
  ContextOracle oracle(prompt, flavors);
  std::vector<std::int32_t> generated;
  while (std::ssize(generated) < count) {
    generated.push_back(oracle.greedy_token());
    oracle.take(generated.back());
  }
  return generated;
}

}  // namespace tessera::test_support
