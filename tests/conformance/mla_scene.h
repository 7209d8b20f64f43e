// Sequences of latent rows (and index keys, where layers have them) in a cache, as they read back, for the ops of
// latent attention.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/conformance/independent.h"
#include "tests/conformance/paged_kv.h"

namespace tessera::conformance {

struct MlaScene {
  std::unique_ptr<PagedKv> kv;
  // Of one layer, for each sequence: [length, elements of the part] as they read back.
  std::vector<HostMatrix> latents;
  std::vector<HostMatrix> index_keys;
};

inline HostMatrix as_stored(const ops::KvLayout& layout, int part, const HostMatrix& x) {
  HostMatrix out(x.rows, x.cols);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const StoredRow row = store_row(layout, part, {x.row(t), static_cast<std::size_t>(x.cols)});
    std::copy(row.values.begin(), row.values.end(), out.values.begin() + t * x.cols);
  }
  return out;
}

// Fills `layer` with given rows; every other byte of the cache is NaN.
inline MlaScene mla_scene(Device& device, const ops::KvLayout& layout, int layer,
                          const std::vector<HostMatrix>& latents, const std::vector<HostMatrix>& index_keys,
                          std::uint64_t seed) {
  MlaScene scene;
  std::vector<std::int32_t> lengths;
  for (const HostMatrix& rows : latents) lengths.push_back(static_cast<std::int32_t>(rows.rows));
  scene.kv = std::make_unique<PagedKv>(device, layout, lengths, seed);
  for (std::size_t s = 0; s < latents.size(); ++s) {
    std::vector<HostMatrix> parts = {latents[s]};
    if (layout.layer_parts(layer) == 2) {
      parts.push_back(index_keys[s]);
      scene.index_keys.push_back(as_stored(layout, ops::kPartIndexKeys, index_keys[s]));
    }
    scene.latents.push_back(as_stored(layout, ops::kPartLatent, latents[s]));
    if (lengths[s] == 0) continue;
    scene.kv->write(layer, std::vector<Window>{{static_cast<int>(s), lengths[s], lengths[s]}}, parts);
  }
  return scene;
}

// The same with random rows of the given lengths.
inline MlaScene random_mla_scene(Device& device, const ops::KvLayout& layout, int layer,
                                 const std::vector<std::int32_t>& lengths, std::uint64_t seed) {
  Random random(seed);
  std::vector<HostMatrix> latents;
  std::vector<HostMatrix> index_keys;
  for (const std::int32_t length : lengths) {
    latents.push_back(random_matrix(random, length, layout.parts[ops::kPartLatent].elements));
    index_keys.push_back(random_matrix(random, length, layout.parts[ops::kPartIndexKeys].elements));
  }
  return mla_scene(device, layout, layer, latents, index_keys, seed);
}

inline std::vector<std::int32_t> cumulative(std::span<const Window> windows) {
  std::vector<std::int32_t> cu = {0};
  for (const Window& window : windows) cu.push_back(cu.back() + window.new_tokens);
  return cu;
}

}  // namespace tessera::conformance
