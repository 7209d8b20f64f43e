#include "tessera/ops/param_checks.h"

#include <fmt/format.h>

#include <cmath>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/ops/kv_conversion.h"

namespace tessera::ops {

namespace {

void check_matrix(const ConstMatrix& m, std::int64_t rows, std::int64_t cols) {
  TESSERA_CHECK(m.dtype == DType::kF32, fmt::format("activations are F32, not {}", base::dtype_name(m.dtype)));
  TESSERA_CHECK(m.rows == rows && m.cols == cols,
                fmt::format("matrix is [{}, {}], expected [{}, {}]", m.rows, m.cols, rows, cols));
  TESSERA_CHECK(m.rows >= 0 && m.cols > 0 && m.row_stride >= m.cols,
                fmt::format("[{}, {}] with row stride {}", m.rows, m.cols, m.row_stride));
  TESSERA_CHECK(m.rows == 0 || m.data != nullptr);
}

void check_weight(const Weight* weight, WeightUsage usage, std::int64_t rows, std::int64_t cols) {
  TESSERA_CHECK(weight != nullptr && weight->data != nullptr);
  TESSERA_CHECK(weight->usage == usage);
  TESSERA_CHECK(weight->rows == rows && weight->cols == cols,
                fmt::format("weight is [{}, {}], expected [{}, {}]", weight->rows, weight->cols, rows, cols));
  TESSERA_CHECK((usage != WeightUsage::kVector && usage != WeightUsage::kRouter) ||
                weight->format == WeightFormat::kF32);
}

void check_cache(const KvCacheView& cache, std::int32_t layer) {
  const KvLayout& layout = cache.layout;
  TESSERA_CHECK(cache.base != nullptr && cache.num_pages > 0 && layout.page_size > 0);
  TESSERA_CHECK(layer >= 0 && layer < layout.num_layers, fmt::format("layer {} of {}", layer, layout.num_layers));
  TESSERA_CHECK(layout.num_parts > 0 && layout.num_parts <= KvLayout::kPartsMax);
  for (int p = 0; p < layout.num_parts; ++p) {
    const KvPart& part = layout.parts[p];
    TESSERA_CHECK(part.elements > 0);
    TESSERA_CHECK(part.kind == KvPartKind::kValues || (p > 0 && p == layout.num_parts - 1),
                  "index keys are the last part, behind the values");
    TESSERA_CHECK(
        !layout.part_has_scales(p) || (part.scales > 0 && part.first_group > 0 &&
                                       part.first_group + (part.scales - 1) * part.other_groups == part.elements),
        fmt::format("part {}: {} scale groups do not divide {} elements", p, part.scales, part.elements));
  }
}

// Query rows of a ragged batch over paged KV.
void check_rows(std::span<const std::int32_t> cu_seqlens_q, const VerifiedPages& pages) {
  TESSERA_CHECK(std::ssize(cu_seqlens_q) == pages.rows() + 1 && cu_seqlens_q.front() == 0);
  for (std::int64_t r = 0; r < pages.rows(); ++r) TESSERA_CHECK(cu_seqlens_q[r] <= cu_seqlens_q[r + 1]);
}

void check_shape(const MlaShape& shape) {
  TESSERA_CHECK(
      shape.heads > 0 && shape.kv_lora_rank > 0 && shape.qk_rope_head_dim > 0 && shape.qk_nope_head_dim > 0 &&
          shape.v_head_dim > 0,
      fmt::format("{} heads, kv_lora_rank {}, qk_rope_head_dim {}, qk_nope_head_dim {}, v_head_dim {}", shape.heads,
                  shape.kv_lora_rank, shape.qk_rope_head_dim, shape.qk_nope_head_dim, shape.v_head_dim));
}

void check_page_range(const VerifiedPages& pages, std::int64_t row, std::int32_t first_page, std::int32_t num_pages) {
  TESSERA_CHECK(row >= 0 && row < pages.rows(), fmt::format("row {} of {}", row, pages.rows()));
  TESSERA_CHECK(first_page >= 0 && num_pages >= 0 &&
                    static_cast<std::int64_t>(first_page) + num_pages <= pages.max_pages_per_row(),
                fmt::format("{} pages from {} of {}", num_pages, first_page, pages.max_pages_per_row()));
}

}  // namespace

void check_copy_matrix(const ConstMatrix& from, const Matrix& to) {
  TESSERA_CHECK(from.rows == to.rows && from.cols == to.cols && from.dtype == to.dtype,
                fmt::format("[{}, {}] of {} into [{}, {}] of {}", from.rows, from.cols, base::dtype_name(from.dtype),
                            to.rows, to.cols, base::dtype_name(to.dtype)));
  TESSERA_CHECK(from.rows >= 0 && from.cols > 0 && from.row_stride >= from.cols && to.row_stride >= to.cols);
  TESSERA_CHECK(from.rows == 0 || (from.data != nullptr && to.data != nullptr && from.data != to.data));
}

void check_params(const EmbeddingParams& p) {
  const std::int64_t tokens = std::ssize(p.token_ids);
  TESSERA_CHECK(p.table != nullptr);
  check_weight(p.table, WeightUsage::kEmbedding, p.table->rows, p.table->cols);
  check_matrix(p.out, tokens, p.table->cols);
}

void check_token_ids(const EmbeddingParams& p) {
  for (const std::int32_t id : p.token_ids) {
    TESSERA_CHECK(id >= 0 && id < p.table->rows, fmt::format("token id {} of {}", id, p.table->rows));
  }
}

void check_params(const RmsNormParams& p) {
  check_matrix(p.in, p.in.rows, p.in.cols);
  check_matrix(p.out, p.in.rows, p.in.cols);
  check_weight(p.weight, WeightUsage::kVector, 1, p.in.cols);
  TESSERA_CHECK(p.epsilon >= 0.0f);
}

void check_params(const LayerNormParams& p) {
  check_matrix(p.in, p.in.rows, p.in.cols);
  check_matrix(p.out, p.in.rows, p.in.cols);
  check_weight(p.weight, WeightUsage::kVector, 1, p.in.cols);
  check_weight(p.bias, WeightUsage::kVector, 1, p.in.cols);
  TESSERA_CHECK(p.epsilon >= 0.0f);
}

void check_params(const RopeParams& p) {
  TESSERA_CHECK(p.heads > 0 && p.head_dim > 0);
  TESSERA_CHECK(p.rotary_dim > 0 && p.rotary_dim % 2 == 0 && p.rotary_dim <= p.head_dim,
                fmt::format("rotary dim {} of head dim {}", p.rotary_dim, p.head_dim));
  check_matrix(p.x, std::ssize(p.positions), static_cast<std::int64_t>(p.heads) * p.head_dim);
  TESSERA_CHECK(std::ssize(p.inverse_frequencies) == p.rotary_dim / 2);
}

void check_params(const LinearParams& p) {
  TESSERA_CHECK(p.weight != nullptr);
  const bool router = p.weight->usage == WeightUsage::kRouter;
  check_weight(p.weight, router ? WeightUsage::kRouter : WeightUsage::kLinear, p.weight->rows, p.weight->cols);
  check_matrix(p.in, p.in.rows, p.weight->cols);
  check_matrix(p.out, p.in.rows, p.weight->rows);
  if (p.bias != nullptr) check_weight(p.bias, WeightUsage::kVector, 1, p.weight->rows);
  TESSERA_CHECK(p.in.rows == 0 || p.in.data != p.out.data, "in and out overlap");
}

void check_params(const SwigluParams& p) {
  check_matrix(p.gate, p.gate.rows, p.gate.cols);
  check_matrix(p.up, p.gate.rows, p.gate.cols);
  check_matrix(p.out, p.gate.rows, p.gate.cols);
}

void check_params(const KvWriteParams& p) {
  check_cache(p.cache, p.layer);
  const KvLayout& layout = p.cache.layout;
  const int parts = layout.layer_parts(p.layer);
  for (int part = 0; part < KvLayout::kPartsMax; ++part) {
    if (part < parts) {
      check_matrix(p.parts[part], p.slots.tokens(), layout.parts[part].elements);
    } else {
      TESSERA_CHECK(p.parts[part].data == nullptr, fmt::format("layer {} has {} parts", p.layer, parts));
    }
  }
  TESSERA_CHECK(p.slots.tokens() == 0 || p.nonfinite_rows != nullptr);
}

void check_params(const PagedAttentionParams& p) {
  check_cache(p.cache, p.layer);
  TESSERA_CHECK(p.kv_heads > 0 && p.head_dim > 0 && p.heads > 0 && p.heads % p.kv_heads == 0,
                fmt::format("{} heads over {} KV heads of {}", p.heads, p.kv_heads, p.head_dim));
  const KvLayout& layout = p.cache.layout;
  TESSERA_CHECK(layout.num_parts == 2);
  for (int part = 0; part < 2; ++part) {
    TESSERA_CHECK(layout.parts[part].kind == KvPartKind::kValues);
    TESSERA_CHECK(layout.parts[part].elements == p.kv_heads * p.head_dim);
    TESSERA_CHECK(!layout.part_has_scales(part) || layout.parts[part].scales == p.kv_heads);
  }
  check_rows(p.cu_seqlens_q, p.pages);
  check_matrix(p.q, p.cu_seqlens_q.back(), static_cast<std::int64_t>(p.heads) * p.head_dim);
  check_matrix(p.out, p.q.rows, p.q.cols);
  TESSERA_CHECK(p.q.rows == 0 || p.q.data != p.out.data, "q and out overlap");
}

void check_params(const MlaAttentionParams& p) {
  check_cache(p.cache, p.layer);
  TESSERA_CHECK(p.up != nullptr);
  const MlaShape& shape = p.up->shape;
  check_shape(shape);
  const KvPart& part = p.cache.layout.parts[kPartLatent];
  TESSERA_CHECK(part.elements == shape.kv_lora_rank + shape.qk_rope_head_dim && part.first_group == shape.kv_lora_rank,
                fmt::format("KV rows of {}, the first group of {}; expected [{} | {}]", part.elements, part.first_group,
                            shape.kv_lora_rank, shape.qk_rope_head_dim));
  TESSERA_CHECK(
      !p.cache.layout.part_has_scales(kPartLatent) || (part.scales == 2 && part.other_groups == shape.qk_rope_head_dim),
      fmt::format("{} scales, the second for groups of {}; expected one for {} and one for {} elements", part.scales,
                  part.other_groups, shape.kv_lora_rank, shape.qk_rope_head_dim));
  TESSERA_CHECK(std::isfinite(p.softmax_scale), fmt::format("softmax_scale {}", p.softmax_scale));
  check_rows(p.cu_seqlens_q, p.pages);
  TESSERA_CHECK(std::ssize(p.forms) == p.pages.rows(),
                fmt::format("{} forms of {} rows", p.forms.size(), p.pages.rows()));
  const std::int64_t tokens = p.cu_seqlens_q.back();
  check_matrix(p.q, tokens, std::int64_t{shape.heads} * (shape.qk_nope_head_dim + shape.qk_rope_head_dim));
  check_matrix(p.out, tokens, std::int64_t{shape.heads} * shape.v_head_dim);
  TESSERA_CHECK(tokens == 0 || p.q.data != p.out.data, "q and out overlap");
  if (p.selection != nullptr) {
    TESSERA_CHECK(p.selection->width > 0);
    TESSERA_CHECK(tokens == 0 || (p.selection->positions != nullptr && p.selection->counts != nullptr));
  }
}

void check_params(const DsaSelectParams& p) {
  check_cache(p.cache, p.layer);
  const KvLayout& layout = p.cache.layout;
  const int parts = layout.layer_parts(p.layer);
  TESSERA_CHECK(parts == kPartIndexKeys + 1 && layout.parts[kPartIndexKeys].kind == KvPartKind::kIndexKeys,
                fmt::format("layer {} has no index keys", p.layer));
  TESSERA_CHECK(p.index_n_heads > 0 && p.index_head_dim == layout.parts[kPartIndexKeys].elements,
                fmt::format("{} heads of {} over index keys of {}", p.index_n_heads, p.index_head_dim,
                            layout.parts[kPartIndexKeys].elements));
  TESSERA_CHECK(!layout.part_has_scales(kPartIndexKeys) || layout.parts[kPartIndexKeys].scales == 1,
                fmt::format("{} scales of an index key", layout.parts[kPartIndexKeys].scales));
  TESSERA_CHECK(std::isfinite(p.softmax_scale) && p.softmax_scale > 0.0f,
                fmt::format("softmax_scale {}, expected more than 0", p.softmax_scale));
  check_rows(p.cu_seqlens_q, p.pages);
  const std::int64_t tokens = p.cu_seqlens_q.back();
  check_matrix(p.q, tokens, std::int64_t{p.index_n_heads} * p.index_head_dim);
  check_matrix(p.weights, tokens, p.index_n_heads);
  TESSERA_CHECK(p.selection.width > 0);
  TESSERA_CHECK(tokens == 0 || (p.selection.positions != nullptr && p.selection.counts != nullptr));
}

void check_params(const MoeRouteParams& p) {
  check_matrix(p.logits, p.logits.rows, p.logits.cols);
  if (p.correction_bias != nullptr) check_weight(p.correction_bias, WeightUsage::kVector, 1, p.logits.cols);
  TESSERA_CHECK(p.n_group > 0 && p.logits.cols % p.n_group == 0 && (p.n_group == 1 || p.logits.cols / p.n_group >= 2),
                fmt::format("{} experts in {} groups", p.logits.cols, p.n_group));
  TESSERA_CHECK(p.topk_group > 0 && p.topk_group <= p.n_group, fmt::format("{} of {} groups", p.topk_group, p.n_group));
  const std::int64_t candidates = p.logits.cols / p.n_group * p.topk_group;
  TESSERA_CHECK(p.num_experts_per_tok > 0 && p.num_experts_per_tok <= candidates,
                fmt::format("{} of {} experts", p.num_experts_per_tok, candidates));
  TESSERA_CHECK(p.logits.rows == 0 || (p.expert_ids != nullptr && p.expert_weights != nullptr));
}

void check_params(const MoeExpertsParams& p) {
  TESSERA_CHECK(p.experts != nullptr && p.experts->experts > 0);
  check_matrix(p.in, p.in.rows, p.experts->hidden);
  check_matrix(p.out, p.in.rows, p.experts->hidden);
  TESSERA_CHECK(p.num_experts_per_tok > 0 && p.num_experts_per_tok <= p.experts->experts,
                fmt::format("{} of {} experts", p.num_experts_per_tok, p.experts->experts));
  TESSERA_CHECK(p.in.rows == 0 || (p.expert_ids != nullptr && p.expert_weights != nullptr));
  TESSERA_CHECK(p.in.rows == 0 || p.in.data != p.out.data, "in and out overlap");
}

void check_params(const VerifyPagesParams& p) {
  TESSERA_CHECK(p.page_size > 0 && p.rows >= 0 && p.max_pages_per_row > 0 && p.tokens >= 0);
  TESSERA_CHECK(p.records.num_pages > 0 && p.records.tags != nullptr && p.records.owners != nullptr &&
                p.records.positions != nullptr && p.records.lease_counts != nullptr);
  TESSERA_CHECK(p.rows == 0 || (p.page_table != nullptr && p.kv_lens != nullptr && p.expected_tags != nullptr &&
                                p.expected_owners != nullptr && p.verdicts != nullptr));
  TESSERA_CHECK(p.tokens == 0 || (p.rows > 0 && p.token_rows != nullptr && p.token_positions != nullptr &&
                                  p.slot_mapping != nullptr && p.write_starts != nullptr));
  TESSERA_CHECK((p.sanitized_table != nullptr) == (p.sanitized_kv_lens != nullptr));
  TESSERA_CHECK(p.tokens == 0 || (p.sanitized_table != nullptr) == (p.sanitized_slots != nullptr));
}

void check_params(const GatherPagesParams& p) {
  check_cache(p.source, p.layer);
  check_page_range(p.pages, p.row, p.first_page, p.num_pages);
  KvLayout same = p.target;
  same.format = p.source.layout.format;
  TESSERA_CHECK(same == p.source.layout, "gather changes nothing but the format");
  const base::Status convertible = check_conversion(p.source.layout.format, p.target.format);
  TESSERA_CHECK(convertible.ok(), convertible.message());
  check_cache(KvCacheView{p.target, p.source.base, p.source.num_pages}, p.layer);
  TESSERA_CHECK(p.num_pages == 0 || (p.images != nullptr && p.digests != nullptr));
}

void check_params(const ScatterPagesParams& p) {
  check_cache(p.target, p.layer);
  TESSERA_CHECK(p.slots.tokens() == 0 || p.images != nullptr);
}

void check_params(const DigestPagesParams& p) {
  check_cache(p.cache, p.layer);
  check_page_range(p.pages, p.row, p.first_page, p.num_pages);
  TESSERA_CHECK(p.num_pages == 0 || p.digests != nullptr);
}

void check_params(const DigestTokensParams& p) {
  check_cache(p.cache, 0);
  TESSERA_CHECK(p.first_layer >= 0 && p.num_layers >= 0 && p.first_layer + p.num_layers <= p.cache.layout.num_layers,
                fmt::format("{} layers from {} of {}", p.num_layers, p.first_layer, p.cache.layout.num_layers));
  TESSERA_CHECK(p.slots.tokens() == 0 || p.digests != nullptr);
}

void check_params(const CheckDigestsParams& p) {
  check_cache(p.cache, 0);
  TESSERA_CHECK(p.count >= 0 && (p.count == 0 || p.pages.rows() > 0), fmt::format("{} entries", p.count));
  TESSERA_CHECK(p.count == 0 || (p.recorded != nullptr && p.entries != nullptr && p.verdicts != nullptr));
}

void check_params(const SampleTokensParams& p) {
  const std::int64_t rows = std::ssize(p.rows);
  check_matrix(p.logits, rows, p.logits.cols);
  TESSERA_CHECK(p.top_width >= 0 && (rows == 0 || p.out != nullptr));
  TESSERA_CHECK(p.top_width == 0 || rows == 0 || (p.top_ids != nullptr && p.top_logprobs != nullptr));
  for (const SampleRow& row : p.rows) {
    TESSERA_CHECK(std::isfinite(row.temperature) && row.temperature >= 0.0f && row.top_p >= 0.0f && row.top_k >= 0,
                  fmt::format("temperature {}, top_p {}, top_k {}", row.temperature, row.top_p, row.top_k));
    TESSERA_CHECK(row.forced_token < p.logits.cols, fmt::format("forced token {}", row.forced_token));
    TESSERA_CHECK(row.top_logprobs >= 0 && row.top_logprobs <= p.top_width);
  }
}

void check_sources(const ExpertSources& sources) {
  TESSERA_CHECK(
      !sources.gate.empty() && sources.up.size() == sources.gate.size() && sources.down.size() == sources.gate.size(),
      fmt::format("{} gate, {} up and {} down projections", sources.gate.size(), sources.up.size(),
                  sources.down.size()));
  const WeightSource& first = sources.gate[0];
  const auto check = [&first](std::span<const WeightSource> weights, std::int64_t rows, std::int64_t cols) {
    for (const WeightSource& weight : weights) {
      TESSERA_CHECK(weight.usage == WeightUsage::kLinear && weight.data != nullptr);
      TESSERA_CHECK(weight.format == first.format && weight.group_size == first.group_size,
                    "experts of several formats");
      TESSERA_CHECK(weight.rows == rows && weight.cols == cols,
                    fmt::format("expert weight is [{}, {}], expected [{}, {}]", weight.rows, weight.cols, rows, cols));
    }
  };
  check(sources.gate, first.rows, first.cols);
  check(sources.up, first.rows, first.cols);
  check(sources.down, first.cols, first.rows);
}

void check_sources(const WeightSource& kv_b_proj, const MlaShape& shape) {
  check_shape(shape);
  TESSERA_CHECK(kv_b_proj.usage == WeightUsage::kLinear && kv_b_proj.data != nullptr);
  const std::int64_t rows = std::int64_t{shape.heads} * (shape.qk_nope_head_dim + shape.v_head_dim);
  TESSERA_CHECK(kv_b_proj.rows == rows && kv_b_proj.cols == shape.kv_lora_rank,
                fmt::format("kv_b_proj is [{}, {}], expected [{}, {}]", kv_b_proj.rows, kv_b_proj.cols, rows,
                            shape.kv_lora_rank));
}

base::Status check_source(const WeightSource& source, std::string_view backend, std::int64_t element_bytes_max) {
  const bool vector = source.usage == WeightUsage::kVector;
  const auto count = base::checked_mul(source.rows, source.cols);
  const bool fits = count.has_value() && base::checked_mul(*count, element_bytes_max).has_value();
  if (!fits || *count == 0 || (vector && source.rows != 1)) {
    return base::invalid_argument(fmt::format("weight of shape [{}, {}]: expected {}", source.rows, source.cols,
                                              vector ? "[1, n]" : "two positive dimensions"));
  }
  if (!is_quantized(source.format)) return base::ok_status();
  if (source.usage != WeightUsage::kLinear) {
    return base::unimplemented(fmt::format(
        "weight format {} is not supported by backend {} in embeddings, routers and vectors; it takes {} and {} there",
        weight_format_name(source.format), backend, weight_format_name(WeightFormat::kF32),
        weight_format_name(WeightFormat::kBF16)));
  }
  TESSERA_CHECK(source.scales != nullptr, "a quantized weight without scales");
  if (source.format == WeightFormat::kInt4Group) {
    const std::int32_t group = source.group_size;
    if (group != 32 && group != 64 && group != 128) {
      return base::invalid_argument(fmt::format("weight groups of {}: expected 32, 64 or 128", group));
    }
    if (source.cols % group != 0) {
      return base::invalid_argument(fmt::format("weight of shape [{}, {}]: groups of {} do not divide its rows",
                                                source.rows, source.cols, group));
    }
  }
  return base::ok_status();
}

}  // namespace tessera::ops
