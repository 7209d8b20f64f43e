// The `quantization_config` of a config.json: which weights of a checkpoint are quantized, and how they are stored
// (docs/checkpoints.md). Whatever it says that would be computed wrongly here is refused by field. Immutable once
// parsed, cheap to copy; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/ops/weight.h"
#include "tessera/weights/module_pattern.h"

namespace tessera::weights {

enum class StoredKind : std::uint8_t {
  kPlain,       // F32 or BF16, as the tensor itself says.
  kF8Block128,  // `X.weight` F8_E4M3 and `X.weight_scale_inv`.
  kF8Channel,   // `X.weight` F8_E4M3 and `X.weight_scale`.
  kInt4Group,   // `X.weight_packed`, `X.weight_scale` and `X.weight_shape`.
};

// How one weight is to be found in the checkpoint.
struct StoredFormat {
  StoredKind kind = StoredKind::kPlain;
  std::int32_t group_size = 0;  // kInt4Group: 32, 64 or 128.
  friend bool operator==(const StoredFormat&, const StoredFormat&) = default;
};

// "plain", "f8_block128", "f8_channel", "int4_group32": for messages and reports.
std::string stored_format_text(const StoredFormat& format);

class QuantizationConfig {
 public:
  // Of a checkpoint without the object: every weight is plain.
  QuantizationConfig() = default;

  // `json` is the text of the object (not of the file); file_name goes into messages, which name field and expectation.
  //
  // Refused: malformed JSON, unknown fields, and every unknown value of quant_method, format, fmt, activation_scheme,
  // quantization_status, num_bits, type, strategy, group and block sizes; asymmetric and dynamic weights, actorder,
  // static or grouped activation scales, sparsity and transforms, several config groups, and patterns that
  // ModulePattern refuses.
  static base::Result<QuantizationConfig> parse(std::string_view json, std::string_view file_name);

  bool quantized() const { return rules_ != nullptr; }
  // Of the weights that are quantized; plain where none is.
  StoredFormat format() const;

  // How the weight `tensor_name` (a name that ends in ".weight", as a family lists it) is stored. Only products are
  // ever quantized: routers, embeddings and vectors are plain whatever the lists say. Names are compared as they are
  // and without a leading "language_model.". `budget` is one for all names of a model. Fails only where patterns take
  // too many steps.
  base::Result<StoredFormat> expected(std::string_view tensor_name, ops::WeightUsage usage,
                                      PatternBudget& budget) const;

  // What was read and has no effect here (say, that activations are not quantized), one sentence each, for the load's
  // log.
  std::vector<std::string> notes() const;

  struct Rules;

 private:
  std::shared_ptr<const Rules> rules_;
};

}  // namespace tessera::weights
