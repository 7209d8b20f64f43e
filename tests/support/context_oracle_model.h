// A model whose next token is a hash of its whole context as the KV pages have it: the judge of everything that moves,
// shares, evicts, hands over or recomputes pages. Whatever goes wrong with a page (another sequence's, an old one, one
// that was never written, one that another plan wrote) changes the next token.
//
// For each token and layer it hashes (token, position, layer, flavor, row phase) to 64 bits and writes them as keys and
// values with two bits an element, small enough to come back unchanged from FP8. A forward pass reads every position of
// the context back through the checked page table and folds it into a hash; the logits are pseudo-random in that hash.
// The flavor says which engine's plan wrote the KV, so that provenance is judged as well, and so is the phase that
// every row was said to be in: a generated token that is replayed as a prompt token, or the other way round, changes
// what follows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/models/model.h"

namespace tessera::test_support {

// What a token's 64 bits are stored as: keys and values; or latents whose two scale groups are the keys and the values,
// with the keys once more as index keys in the last layer. Index keys that differ from the keys change the next token.
enum class OracleKv : std::uint8_t { kKeysAndValues, kLatents };

struct ContextOracleOptions {
  OracleKv kv = OracleKv::kKeysAndValues;
  std::uint32_t flavor = 1;
  std::int64_t context = 4096;
  // Called at the start of every forward pass, on the engine's thread.
  std::function<void()> before_forward;
  // Likewise, with what it is given.
  std::function<void(const models::ForwardBatch&)> on_batch;
};

class ContextOracleModel final : public models::Model {
 public:
  static constexpr std::int64_t kVocab = 128;
  static constexpr std::int32_t kLayers = 2;
  static constexpr std::int32_t kKvHeads = 2;
  static constexpr std::int32_t kHeadDim = 8;
  // A token whose keys are NaN.
  static constexpr std::int32_t kPoison = kVocab - 1;

  ContextOracleModel(ops::Backend& backend, ContextOracleOptions options);

  const models::ModelConfig& config() const override { return config_; }
  ops::KvLayout kv_layout(ops::KvFormat format, std::int32_t page_size) const override;
  base::Result<std::unique_ptr<models::Workspace>> make_workspace(const models::WorkspaceLimits& limits) const override;
  void forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
               ops::Matrix logits) const override;
  std::int64_t weight_bytes() const override { return 0; }
  const std::string& digest() const override { return digest_; }
  const std::string& weight_format() const override { return weight_format_; }

 private:
  ops::Backend& backend_;
  const ContextOracleOptions options_;
  models::ModelConfig config_;
  std::string digest_ = "context-oracle";
  std::string weight_format_ = "none";
};

// Which flavor wrote the prompt's KV, and the generated tokens'.
struct Flavors {
  std::uint32_t prompt = 1;
  std::uint32_t generated = 1;
};

// The logits after any number of tokens, one token at a time, computed without pages, engines or backends.
class ContextOracle {
 public:
  ContextOracle(std::span<const std::int32_t> prompt, Flavors flavors);
  // Of the next token; kVocab of them.
  void logits(std::span<float> out) const;
  std::int32_t greedy_token() const;
  // The next token is this one.
  void take(std::int32_t token);
  // Index of the next token, counted from the prompt's first.
  std::int64_t position() const { return position_; }

 private:
  void take(std::int32_t token, std::uint32_t flavor, models::RowPhase phase);
  Flavors flavors_;
  std::uint64_t context_ = 0;
  std::int64_t position_ = 0;
};

// What an undisturbed greedy run generates: `count` tokens.
std::vector<std::int32_t> oracle_tokens(std::span<const std::int32_t> prompt, std::int64_t count, Flavors flavors);

}  // namespace tessera::test_support
