#include "tests/support/context_oracle_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
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
  return token == ContextOracleModel::kPoison ? -1.0f : logit(context, token);
}

float element(const ops::KvCacheView& cache, int layer, int part, std::int64_t page, std::int64_t offset, int index) {
  const ops::KvLayout& layout = cache.layout;
  const std::byte* row = cache.page_data(layer, part, page) + offset * layout.row_bytes(part);
  if (!layout.part_has_scales(part)) {
    return layout.part_dtype(part) == base::DType::kF32
               ? reinterpret_cast<const float*>(row)[index]
               : base::to_float(reinterpret_cast<const base::BF16*>(row)[index]);
  }
  const ops::KvPart& shape = layout.parts[static_cast<std::size_t>(part)];
  const int group = index < shape.first_group ? 0 : 1 + (index - shape.first_group) / shape.other_groups;
  const std::byte* scales = cache.page_scales(layer, part, page) + offset * layout.row_scale_bytes(part);
  const float scale = layout.part_scale_dtype(part) == base::DType::kF32
                          ? reinterpret_cast<const float*>(scales)[group]
                          : base::to_float(reinterpret_cast<const base::BF16*>(scales)[group]);
  return base::to_float(reinterpret_cast<const base::F8E4M3*>(row)[index]) * scale;
}

// Two bits of each element of a part, from bit 0 on.
std::uint64_t part_bits(const ops::KvCacheView& cache, int layer, int part, std::int64_t page, std::int64_t offset) {
  std::uint64_t bits = 0;
  for (int i = 0; i < cache.layout.parts[static_cast<std::size_t>(part)].elements; ++i) {
    const float value = element(cache, layer, part, page, offset, i);
    // Anything that was not written by this model reads as some other number, or as 3.
    const std::uint64_t two = std::isfinite(value) ? static_cast<std::uint64_t>(std::lround(std::abs(value))) & 3u : 3u;
    bits |= two << (2 * i);
  }
  return bits;
}

std::uint64_t stored_bits(const ops::KvCacheView& cache, int layer, std::int64_t page, std::int64_t offset) {
  constexpr int kKeyBits = 2 * kElements;
  const std::uint64_t first = part_bits(cache, layer, 0, page, offset);
  if (cache.layout.layer_parts(layer) == 1) return first;
  const std::uint64_t second = part_bits(cache, layer, 1, page, offset);
  if (cache.layout.parts[1].kind == ops::KvPartKind::kValues) return first | second << kKeyBits;
  const std::uint64_t keys = first & ((1ull << kKeyBits) - 1);
  return first ^ keys ^ second;
}

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
        for (int layer = 0; layer < kLayers; ++layer) {
          context = fold(context, stored_bits(batch.cache, layer, table[p / page_size], p % page_size));
        }
      }
    }
    for (std::int64_t token = 0; token < kVocab; ++token) {
      logits.f32()[static_cast<std::int64_t>(l) * logits.row_stride + token] = logit_or_nothing(context, token);
    }
  }
}

std::vector<std::int32_t> oracle_tokens(std::span<const std::int32_t> prompt, std::int64_t count, Flavors flavors) {
  std::vector<std::int32_t> generated;
  std::uint64_t context = 0;
  using models::RowPhase;
  const auto take = [&](std::int32_t token, std::int64_t position, std::uint32_t flavor, RowPhase phase) {
    for (int layer = 0; layer < ContextOracleModel::kLayers; ++layer) {
      context = fold(context, token_bits(token, position, layer, flavor, phase));
    }
  };
  for (std::int64_t p = 0; p < std::ssize(prompt); ++p) {
    take(prompt[static_cast<std::size_t>(p)], p, flavors.prompt, RowPhase::kPrompt);
  }
  while (std::ssize(generated) < count) {
    std::int32_t best = 0;
    for (std::int32_t token = 1; token < ContextOracleModel::kVocab; ++token) {
      if (logit_or_nothing(context, token) > logit_or_nothing(context, best)) best = token;
    }
    take(best, std::ssize(prompt) + std::ssize(generated), flavors.generated, RowPhase::kGenerated);
    generated.push_back(best);
  }
  return generated;
}

}  // namespace tessera::test_support
