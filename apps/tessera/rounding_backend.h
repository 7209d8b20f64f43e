// Where simulated KV formats (kv_rounding.h) stand in the way of rows: between a model and the cache that it writes to,
// and between two pools, when pages are gathered for a handoff.
#pragma once

#include <cstdint>

#include "forwarding_model.h"
#include "kv_rounding.h"
#include "tessera/ops/forwarding_backend.h"

namespace tessera::app {

// What becomes of rows on their way.
struct RowTreatment {
  const KvRounder* round = nullptr;  // Rounds each.
  KvRounder* observe = nullptr;      // Is shown each, before it is rounded.
};

// Passes everything on; rows of keys and values only after their treatment. Without one it costs a virtual call.
// Rows are treated on their way into BF16 pages only. Used from one thread.
class RoundingBackend final : public ops::ForwardingBackend {
 public:
  explicit RoundingBackend(ops::Backend& inner) : ForwardingBackend(inner) {}

  // Of kv_write, and of gather_pages; until it is set again.
  void set_write_treatment(const RowTreatment& treatment) { write_ = treatment; }
  void set_gather_treatment(const RowTreatment& treatment) { gather_ = treatment; }

  // A failure to get memory for the treated rows aborts: it is no expected failure of an op.
  void kv_write(ops::Stream& stream, const ops::KvWriteParams& params) override;
  void gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) override;

 private:
  RowTreatment write_;
  RowTreatment gather_;
};

// A model that writes its rows after the treatment. The models of one backend may each have another one: it holds
// during their own forward passes. Inner model and backend outlive it; the inner model was loaded into the backend.
class RoundingModel final : public ForwardingModel {
 public:
  RoundingModel(const models::Model& inner, RoundingBackend& backend) : ForwardingModel(inner), backend_(backend) {}

  void set_treatment(const RowTreatment& treatment) { treatment_ = treatment; }
  void forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
               ops::Matrix logits) const override;

 private:
  RoundingBackend& backend_;
  RowTreatment treatment_;
};

}  // namespace tessera::app
