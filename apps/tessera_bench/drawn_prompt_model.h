// A model whose prompts cost next to nothing: their keys and values are drawn at random and written to the sequence's
// own pages through the op that always writes them; weights are not touched. Generated tokens are computed by the real
// model. The time of a decode step does not depend on what the cache holds, so decode can be measured at long contexts
// without hours of prefill. What comes out is no text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/models/model.h"

namespace tessera::bench {

class DrawnPromptModel final : public models::Model {
 public:
  // `model` and `backend` outlive it. A batch has at most `tokens_max` tokens.
  static base::Result<std::unique_ptr<DrawnPromptModel>> create(const models::Model& model, ops::Backend& backend,
                                                                std::int64_t tokens_max);

  const models::ModelConfig& config() const override { return model_.config(); }
  ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const override {
    return model_.kv_layout(format, page_size);
  }
  base::Result<std::unique_ptr<models::Workspace>> make_workspace(
      const models::WorkspaceLimits& limits) const override {
    return model_.make_workspace(limits);
  }
  // A batch with a row of a prompt is drawn as a whole: its logits are zero.
  void forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
               ops::Matrix logits) const override;
  std::int64_t weight_bytes() const override { return model_.weight_bytes(); }
  const std::string& digest() const override { return model_.digest(); }
  const std::string& weight_format() const override { return model_.weight_format(); }

 private:
  DrawnPromptModel(const models::Model& model, ops::Backend& backend) : model_(model), backend_(backend) {}
  const models::Model& model_;
  ops::Backend& backend_;
  std::int64_t tokens_max_ = 0;
  std::int64_t elements_max_ = 0;
  ops::Buffer drawn_;  // [tokens_max, elements_max], F32
};

}  // namespace tessera::bench
