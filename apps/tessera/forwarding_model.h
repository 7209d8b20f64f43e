// A model that passes everything on to another one: the base of those that change one thing, for an evaluation or a
// measurement.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/models/model.h"

namespace tessera::app {

class ForwardingModel : public models::Model {
 public:
  // `inner` outlives it.
  explicit ForwardingModel(const models::Model& inner) : inner_(inner) {}

  const models::ModelConfig& config() const override { return inner_.config(); }
  ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const override {
    return inner_.kv_layout(format, page_size);
  }
  base::Result<std::unique_ptr<models::Workspace>> make_workspace(
      const models::WorkspaceLimits& limits) const override {
    return inner_.make_workspace(limits);
  }
  void forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
               ops::Matrix logits) const override {
    inner_.forward(stream, workspace, batch, logits);
  }
  std::int64_t weight_bytes() const override { return inner_.weight_bytes(); }
  const std::string& digest() const override { return inner_.digest(); }
  const std::string& weight_format() const override { return inner_.weight_format(); }

 private:
  const models::Model& inner_;
};

}  // namespace tessera::app
