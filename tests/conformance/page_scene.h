// Sequences of random tokens in all layers of a cache, for the ops that move and digest pages.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "tests/conformance/independent.h"
#include "tests/conformance/paged_kv.h"

namespace tessera::conformance {

// Latents of 24 and rope of 10 in three layers, the second and third with index keys of 20.
inline ops::KvLayout indexed_layout(ops::KvFormat format, std::int32_t page_size) {
  ops::LayerSet index_layers;
  index_layers.insert(1);
  index_layers.insert(2);
  return ops::mla_kv_layout(format, 3, page_size, 24, 10, 20, index_layers);
}

// Calls body(layout) for keys and values in two heads and for indexed_layout, in every format, with pages of 16 and 64.
template <typename Body>
void for_each_layout(std::span<const ops::KvFormat> formats, std::uint64_t seed, Body body) {
  for (const ops::KvFormat format : formats) {
    for (const std::int32_t page_size : {16, 64}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ops::kv_format_name(format) << ", page size "
                                      << page_size);
      body(ops::gqa_kv_layout(format, 2, page_size, 3, 20));
      body(indexed_layout(format, page_size));
    }
  }
}

inline constexpr std::uint64_t kDigestKey = 0x1234'5678'9abc'def0ull;

// Values that every backend stores alike, spread over many magnitudes.
inline std::unique_ptr<PagedKv> page_scene(Device& device, const ops::KvLayout& layout,
                                           const std::vector<std::int32_t>& lengths, std::uint64_t seed) {
  auto kv = std::make_unique<PagedKv>(device, layout, lengths, seed);
  Random random(seed);
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
      const std::int32_t length = lengths[static_cast<std::size_t>(s)];
      if (length == 0) continue;
      std::vector<HostMatrix> parts;
      for (int p = 0; p < layout.layer_parts(layer); ++p) {
        const std::int64_t elements = layout.parts[static_cast<std::size_t>(p)].elements;
        parts.push_back(random_matrix(random, length, elements, p == 0 ? 1.0f : 0.05f));
      }
      for (float& value : parts[0].values) value = std::ldexp(value, static_cast<int>(random.below(20)) - 10);
      kv->write(layer, std::vector<Window>{{s, length, length}}, parts);
    }
  }
  return kv;
}

struct Gathered {
  std::vector<std::byte> images;
  std::vector<std::uint64_t> digests;
};

// Gathers pages of row `row` of the windows, into memory that held 0xee.
inline Gathered gather(Device& device, PagedKv& kv, std::span<const Window> windows, std::int64_t row, int layer,
                       ops::KvFormat format, std::int32_t first_page, std::int32_t num_pages) {
  const kv_cache::CheckedPages checked = kv.check(windows);
  ops::KvLayout target = kv.layout();
  target.format = format;
  const auto images = device.upload(
      std::vector<std::byte>(static_cast<std::size_t>(num_pages * target.page_layer_bytes(layer)), std::byte{0xee}));
  const auto digests = device.upload(std::vector<std::uint64_t>(static_cast<std::size_t>(num_pages), 77));
  device.backend().gather_pages(device.stream(), {checked.pages, kv.cache(), target, layer, row, first_page, num_pages,
                                                  kDigestKey, images.data(), digests.data()});
  return {device.download(images), device.download(digests)};
}

inline std::vector<std::uint64_t> digest(Device& device, PagedKv& kv, std::span<const Window> windows, std::int64_t row,
                                         int layer, std::int32_t first_page, std::int32_t num_pages,
                                         std::uint64_t key = kDigestKey) {
  const kv_cache::CheckedPages checked = kv.check(windows);
  const auto digests = device.upload(std::vector<std::uint64_t>(static_cast<std::size_t>(num_pages), 77));
  device.backend().digest_pages(device.stream(),
                                {checked.pages, kv.cache(), layer, row, first_page, num_pages, key, digests.data()});
  return device.download(digests);
}

// The rows of some tokens, as the cache's bytes are now, added up page by page: sums[page] for every page of the pool.
inline void add_row_digests(PagedKv& kv, std::span<const Window> windows, std::int32_t first_layer,
                            std::int32_t num_layers, std::uint64_t key, std::vector<std::uint64_t>& sums) {
  std::vector<std::byte> bytes = kv.bytes();
  for (const Window& window : windows) {
    for (std::int32_t i = window.kv_len - window.new_tokens; i < window.kv_len; ++i) {
      const std::int64_t slot = kv.slot(window.sequence, i);
      for (std::int32_t layer = first_layer; layer < first_layer + num_layers; ++layer) {
        sums[static_cast<std::size_t>(slot / kv.layout().page_size)] +=
            row_digest(key, layer, static_cast<std::int32_t>(slot % kv.layout().page_size),
                       token_bytes(kv.view_of(bytes), layer, slot));
      }
    }
  }
}

// Writes images into the slots of the windows' new tokens.
inline void scatter(Device& device, PagedKv& kv, std::span<const Window> windows, int layer,
                    const std::vector<std::byte>& images) {
  const kv_cache::CheckedPages checked = kv.check(windows);
  const auto device_images = device.upload(images);
  device.backend().scatter_pages(device.stream(), {checked.slots, kv.cache(), layer, device_images.data()});
}

}  // namespace tessera::conformance
