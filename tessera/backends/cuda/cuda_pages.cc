// The ops that check, move and digest pages.
#include <fmt/format.h>

#include "tessera/backends/cuda/cuda_ops.h"
#include "tessera/backends/cuda/kernels/digests.h"
#include "tessera/backends/cuda/kernels/kv_write.h"
#include "tessera/backends/cuda/kernels/page_images.h"
#include "tessera/backends/cuda/kernels/verify_pages.h"
#include "tessera/base/check.h"
#include "tessera/ops/param_checks.h"

namespace tessera::backends::cuda {

namespace {

// The layers of a cache whose rows a kernel can hash.
KvLayers hashed_layers(const ops::KvCacheView& cache) {
  TESSERA_CHECK(cache.layout.format != ops::KvFormat::kF32);
  KvLayers layers = layers_of_cache(cache);
  TESSERA_CHECK(layers.first.row_bytes <= kPageRowBytesMax, fmt::format("a row of {} bytes", layers.first.row_bytes));
  return layers;
}

// Of a gather or a digest: what both take from `source`, and the images that a gather makes of it.
template <typename Params>
PageImagesKernel page_images(const Params& params, const ops::KvCacheView& source, const KvRows& images) {
  TESSERA_CHECK(images.row_bytes <= kPageRowBytesMax, fmt::format("a row of {} bytes", images.row_bytes));
  return {.table = params.pages.table() + params.row * params.pages.max_pages_per_row(),
          .kv_len = params.pages.kv_lens() + params.row,
          .source = rows_of_cache(source, params.layer),
          .images = images,
          .layer = params.layer,
          .first_page = params.first_page,
          .num_pages = params.num_pages,
          .digest_key = params.digest_key,
          .digests = params.digests};
}

}  // namespace

void CudaBackend::verify_pages(ops::Stream& stream, const ops::VerifyPagesParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_verify_pages(params, s.launch());
  s.launched("verify_pages");
}

void CudaBackend::gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.source.layout.format) && supports(params.target.format));
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  PageImagesKernel kernel =
      page_images(params, params.source, rows_of_images(params.target, params.layer, params.images));
  kernel.write_images = true;
  launch_page_images(kernel, s.launch());
  s.launched("gather_pages");
}

void CudaBackend::digest_pages(ops::Stream& stream, const ops::DigestPagesParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.cache.layout.format));
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  const KvRows images = rows_of_images(params.cache.layout, params.layer, nullptr);
  launch_page_images(page_images(params, params.cache, images), s.launch());
  s.launched("digest_pages");
}

void CudaBackend::digest_tokens(ops::Stream& stream, const ops::DigestTokensParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_digest_tokens({.cache = hashed_layers(params.cache),
                        .slots = params.slots.slots(),
                        .tokens = params.slots.tokens(),
                        .num_pages = params.cache.num_pages,
                        .first_layer = params.first_layer,
                        .num_layers = params.num_layers,
                        .digest_key = params.digest_key,
                        .digests = params.digests},
                       s.launch());
  s.launched("digest_tokens");
}

void CudaBackend::check_digests(ops::Stream& stream, const ops::CheckDigestsParams& params) {
  ops::check_params(params);
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_check_digests({.cache = hashed_layers(params.cache),
                        .table = params.pages.table(),
                        .kv_lens = params.pages.kv_lens(),
                        .rows = params.pages.rows(),
                        .max_pages_per_row = params.pages.max_pages_per_row(),
                        .num_layers = params.cache.layout.num_layers,
                        .digest_key = params.digest_key,
                        .recorded = params.recorded,
                        .count = params.count,
                        .entries = params.entries,
                        .verdicts = params.verdicts},
                       s.launch());
  s.launched("check_digests");
}

void CudaBackend::scatter_pages(ops::Stream& stream, const ops::ScatterPagesParams& params) {
  ops::check_params(params);
  TESSERA_CHECK(supports(params.target.layout.format));
  CudaStream& s = cuda_stream(stream);
  if (!s.begin()) return;
  launch_scatter_pages(
      {.slots = params.slots.slots(),
       .tokens = params.slots.tokens(),
       // Read only.
       .images = rows_of_images(params.target.layout, params.layer, const_cast<std::byte*>(params.images)),
       .cache = rows_of_cache(params.target, params.layer),
       .num_pages = params.target.num_pages},
      s.launch());
  s.launched("scatter_pages");
}

}  // namespace tessera::backends::cuda
