// The digest by which a checkpoint is known: to the API's users, to the prefix cache, to a peer in a handoff. It is
// computed in the same pass as loading, so that the bytes are read from disk once.
//
// SHA-256 over, each preceded by its length as a little-endian u64: the text of config.json; then for every tensor
// that the model computes with (what loading skips is not read), in the order of names: name, dtype name, shape as
// text, and the XXH3-128 of its bytes (canonical, big-endian). So it does not depend on how tensors are spread over
// shards, nor on the order of loading.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tessera/weights/checkpoint.h"

namespace tessera::weights {

class CheckpointDigest {
 public:
  explicit CheckpointDigest(std::string_view config_text) : config_text_(config_text) {}
  // Reads the tensor's bytes, once: adding a name again has no effect.
  void add(const Tensor& tensor);
  // 64 hexadecimal digits.
  std::string finish() const;

 private:
  struct Entry {
    std::string dtype;
    std::string shape;
    std::array<std::uint8_t, 16> hash;
  };
  std::string config_text_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace tessera::weights
