#include "drawn_prompt_model.h"

#include <algorithm>
#include <vector>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::bench {

base::Result<std::unique_ptr<DrawnPromptModel>> DrawnPromptModel::create(const models::Model& model,
                                                                         ops::Backend& backend,
                                                                         std::int64_t tokens_max) {
  std::unique_ptr<DrawnPromptModel> made(new DrawnPromptModel(model, backend));
  made->tokens_max_ = tokens_max;
  // The widest part is the same in every format.
  const ops::KvLayout layout = model.kv_layout(ops::KvFormat::kBF16, 64);
  for (const ops::KvPart& part : layout.parts) {
    made->elements_max_ = std::max<std::int64_t>(made->elements_max_, part.elements);
  }
  std::vector<float> drawn(static_cast<std::size_t>(tokens_max * made->elements_max_));
  std::uint64_t state = 0;
  for (float& value : drawn) {
    value = static_cast<float>(base::mix64(state += base::kMix64Step) >> 40) * 0x1.0p-23f - 1.0f;  // -1 to 1
  }
  const auto bytes = static_cast<std::int64_t>(drawn.size() * sizeof(float));
  TESSERA_ASSIGN_OR_RETURN(made->drawn_, backend.allocate(bytes, "drawn keys and values"));
  const std::unique_ptr<ops::Stream> stream = backend.make_stream();
  backend.copy_to_device(*stream, made->drawn_.data(), drawn.data(), bytes);
  stream->synchronize();
  return made;
}

void DrawnPromptModel::forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
                               ops::Matrix logits) const {
  if (std::ranges::find(batch.row_phases, models::RowPhase::kPrompt) == batch.row_phases.end()) {
    ForwardingModel::forward(stream, workspace, batch, logits);
    return;
  }
  const std::int64_t tokens = std::ssize(batch.token_ids);
  TESSERA_CHECK(tokens <= tokens_max_);
  const ops::KvLayout& layout = batch.cache.layout;
  for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
    ops::KvWriteParams write{.slots = batch.slots,
                             .parts = {},
                             .cache = batch.cache,
                             .layer = layer,
                             .nonfinite_rows = batch.nonfinite_rows};
    for (std::int32_t part = 0; part < layout.layer_parts(layer); ++part) {
      const auto at = static_cast<std::size_t>(part);
      ops::Matrix values = ops::f32_matrix(drawn_.as<float>(), tokens, layout.parts[at].elements);
      values.row_stride = elements_max_;
      write.parts[at] = values;
    }
    backend_.kv_write(stream, write);
    if (batch.after_layer) batch.after_layer(layer);
  }
  backend_.fill_zero(stream, logits.data, logits.rows * logits.row_stride * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace tessera::bench
