// A model: one family's layer mathematics over ops. Weights are loaded once and shared, read-only, by every engine of
// the process; what a forward pass scribbles on is the engine's Workspace.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tessera/base/status.h"
#include "tessera/models/config.h"
#include "tessera/ops/backend.h"

namespace tessera::models {

// What a row's tokens of one batch are; never both. Some products have two forms that differ in rounding, and the phase
// alone chooses: so a token is computed the same way however it is batched, and again when it is replayed.
enum class RowPhase : std::uint8_t {
  kPrompt,     // Tokens of the sequence's prompt.
  kGenerated,  // Tokens that were drawn for it, replayed ones included.
};

// One forward pass over the flat arrays of a batch. Rows are sequences; row r's tokens are cu_seqlens_q[r] ..
// cu_seqlens_q[r+1] and are its sequence's last tokens so far.
struct ForwardBatch {
  std::span<const std::int32_t> token_ids;     // device, [tokens]
  std::span<const std::int32_t> positions;     // device, [tokens]
  std::span<const std::int32_t> cu_seqlens_q;  // host, [rows + 1]
  std::span<const RowPhase> row_phases;        // host, [rows]
  ops::VerifiedPages pages;
  ops::WritableSlots slots;
  ops::KvCacheView cache;
  std::span<const std::int32_t> logit_tokens;  // host: indices into the tokens whose logits are wanted, ascending.
  std::uint8_t* nonfinite_rows = nullptr;  // device, [tokens]: set to 1 where K or V was NaN or infinite. The caller
                                           // clears it before the pass.
  std::function<void(int layer)> after_layer;  // May be empty. The layer's KV is written (enqueued) when it is called.
};

struct WorkspaceLimits {
  std::int64_t tokens_max = 0;          // Of one batch.
  std::int64_t context_tokens_max = 0;  // Of one row: its KV, this batch's tokens included.
};

// Scratch memory of one engine for one model, sized once.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual std::int64_t device_bytes() const = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // The KV layout of this family and size.
  virtual ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const = 0;
  virtual base::Result<std::unique_ptr<Workspace>> make_workspace(const WorkspaceLimits& limits) const = 0;
  // logits: [logit_tokens.size(), vocab_size], F32, device.
  virtual void forward(ops::Stream& stream, Workspace& workspace, const ForwardBatch& batch,
                       ops::Matrix logits) const = 0;
  // Device memory of the weights as prepared, and a digest of the checkpoint (hex).
  virtual std::int64_t weight_bytes() const = 0;
  virtual const std::string& digest() const = 0;
  virtual const std::string& weight_format() const = 0;  // "bf16", "f32", "bf16+int4_group", ...
};

struct LoadProgress {
  std::int64_t bytes_done = 0;
  std::int64_t bytes_total = 0;
};

// Opens the checkpoint in `dir` (config.json, safetensors), recognises its family, and loads it into `backend`, which
// must outlive the model. Refuses what it does not understand, naming file, tensor and expectation.
base::Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& dir, ops::Backend& backend,
                                                const std::function<void(const LoadProgress&)>& progress = {});

}  // namespace tessera::models
