// What a decoder's forward pass scribbles on: one buffer, cut once into matrices for tokens_max tokens. Attention's
// part and the feed-forward block's share memory, for a layer is done with one before it begins the other; the residual
// stream and a selection of tokens outlive a layer. One forward pass at a time uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/models/mla_block.h"

namespace tessera::models {

class DecoderWorkspace final : public Workspace {
 public:
  // out_of_range: limits that no batch can have; resource_exhausted: the memory cannot be had. The scratch that the ops
  // of the loaded blocks ask for is part of it.
  static base::Result<std::unique_ptr<DecoderWorkspace>> create(const LoadedModel& loaded,
                                                                const WorkspaceLimits& limits);

  std::int64_t device_bytes() const override { return storage_.bytes(); }
  std::int64_t tokens_max() const { return limits_.tokens_max; }
  std::int64_t context_tokens_max() const { return limits_.context_tokens_max; }

  // Matrices of tokens_max rows.
  ops::Matrix residual;  // [tokens, hidden]
  ops::Matrix normed;    // [tokens, hidden]
  GqaScratch gqa;
  MlaScratch mla;
  SwigluScratch dense;
  MoeScratch moe;
  ops::TokenSelection selection;    // Of the last full layer; width 0 where attention is dense.
  std::vector<ops::MlaForm> forms;  // host, of the batch under way

 private:
  class Cutter;
  explicit DecoderWorkspace(const WorkspaceLimits& limits) : limits_(limits) {}
  void cut(const LoadedModel& loaded, Cutter& cutter);

  WorkspaceLimits limits_;
  ops::Buffer storage_;
};

}  // namespace tessera::models
