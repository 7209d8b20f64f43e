// A model whose prompts cost next to nothing: their keys and values are drawn at random and written to the sequence's
// own pages through the op that always writes them; weights are not touched. Generated tokens are computed by the real
// model. The time of a decode step does not depend on what the cache holds, so decode can be measured at long contexts
// without hours of prefill. What comes out is no text.
#pragma once

#include <cstdint>
#include <memory>

#include "forwarding_model.h"
#include "tessera/models/model.h"

namespace tessera::bench {

class DrawnPromptModel final : public app::ForwardingModel {
 public:
  // `model` and `backend` outlive it. A batch has at most `tokens_max` tokens.
  static base::Result<std::unique_ptr<DrawnPromptModel>> create(const models::Model& model, ops::Backend& backend,
                                                                std::int64_t tokens_max);

  // A batch with a row of a prompt is drawn as a whole: its logits are zero.
  void forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
               ops::Matrix logits) const override;

 private:
  DrawnPromptModel(const models::Model& model, ops::Backend& backend) : ForwardingModel(model), backend_(backend) {}
  ops::Backend& backend_;
  std::int64_t tokens_max_ = 0;
  std::int64_t elements_max_ = 0;
  ops::Buffer drawn_;  // [tokens_max, elements_max], F32
};

}  // namespace tessera::bench
