#include "tessera/kv_transfer/chunk_gatherer.h"

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::kv_transfer {

base::Result<std::unique_ptr<ChunkGatherer>> ChunkGatherer::create(ops::Backend& backend, ops::Stream& stream,
                                                                   const kv_cache::PagePool& pool,
                                                                   const ChunkGathererOptions& options) {
  auto made = std::unique_ptr<ChunkGatherer>(new ChunkGatherer(backend, stream, pool, options));
  const std::int64_t row_pages = base::ceil_div(options.kv_len_max, pool.layout().page_size);
  const std::int64_t pages = std::int64_t{options.chunks_max} * options.chunk_pages_max;
  TESSERA_ASSIGN_OR_RETURN(made->verifier_, kv_cache::Verifier::create(backend, {1, row_pages, 0}));
  TESSERA_ASSIGN_OR_RETURN(made->table_, kv_cache::PageTable::create(backend, 1, row_pages));
  TESSERA_ASSIGN_OR_RETURN(made->images_,
                           backend.allocate(pages * pool.layout().page_layer_bytes_max(), "handoff images"));
  TESSERA_ASSIGN_OR_RETURN(made->digests_, backend.allocate(pages * 8, "handoff digests"));
  return made;
}

kv_cache::CheckedPages ChunkGatherer::check(const Pages& pages) {
  table_->set_row(stream_, 0, pages.leases);
  const kv_cache::RowExpectation row{pages.leases, pages.kv_len, pages.kv_len};
  kv_cache::CheckInput input;
  input.records = pool_.records();
  input.page_size = pool_.layout().page_size;
  input.page_table = table_->device();
  input.max_pages_per_row = table_->pages_per_row_max();
  input.rows = std::span(&row, 1);
  return verifier_->check_before(stream_, input);
}

std::expected<std::vector<GatheredChunk>, ops::RowVerdict> ChunkGatherer::gather(const Source& source,
                                                                                 const ops::KvLayout& target,
                                                                                 std::span<const Chunk> chunks) {
  TESSERA_CHECK(std::ssize(chunks) <= options_.chunks_max);
  TESSERA_CHECK(target.page_layer_bytes_max() <= pool_.layout().page_layer_bytes_max());
  const kv_cache::CheckedPages checked = check({source.leases, source.kv_len});

  std::vector<GatheredChunk> gathered;
  gathered.reserve(chunks.size());
  std::int64_t at = 0;
  for (const Chunk& chunk : chunks) {
    TESSERA_CHECK(chunk.num_pages <= options_.chunk_pages_max);
    ops::GatherPagesParams params{checked.pages, pool_.cache(), target};
    params.layer = chunk.layer;
    params.row = 0;
    params.first_page = chunk.first_page;
    params.num_pages = chunk.num_pages;
    params.digest_key = source.digest_key;
    params.images = images_.data() + at * pool_.layout().page_layer_bytes_max();
    params.digests = digests_.as<std::uint64_t>() + at;
    backend_.gather_pages(stream_, params);
    at += options_.chunk_pages_max;

    GatheredChunk& g = gathered.emplace_back();
    g.handoff = source.handoff;
    g.chunk = chunk;
    g.digests.resize(static_cast<std::size_t>(chunk.num_pages));
    g.message = wire::make_page_data(source.session, source.handoff, chunk.layer, chunk.first_page, chunk.num_pages,
                                     target.page_layer_bytes(chunk.layer));
    const std::span<std::byte> images = wire::page_data_images(g.message);
    backend_.copy_to_host(stream_, images.data(), params.images, std::ssize(images));
    backend_.copy_to_host(stream_, g.digests.data(), params.digests, chunk.num_pages * 8);
  }
  verifier_->check_after(stream_);
  const ops::RowVerdict verdict = verifier_->read_verdicts(stream_)[0];
  if (verdict.failed_checks != 0) return std::unexpected(verdict);
  for (GatheredChunk& g : gathered) {
    for (std::int32_t i = 0; i < g.chunk.num_pages; ++i) {
      wire::set_page_data_digest(g.message, i, g.digests[static_cast<std::size_t>(i)]);
    }
    wire::seal(g.message);
  }
  return gathered;
}

std::expected<std::int32_t, ops::RowVerdict> ChunkGatherer::prove(const Pages& pages, std::int32_t first,
                                                                  std::int32_t& budget) {
  const auto left = pages.leases.subspan(static_cast<std::size_t>(first));
  if (left.empty()) return 0;
  if (options_.digests == nullptr) {
    check(pages);
    const ops::RowVerdict tags = verifier_->read_verdicts(stream_)[0];
    if (tags.failed_checks != 0) return std::unexpected(tags);
    return static_cast<std::int32_t>(left.size());
  }
  if (budget <= 0) return 0;
  // A chunk is some pages of one layer; here it is all layers of some pages.
  const std::int64_t layers = pool_.layout().num_layers;
  const std::int64_t affordable = std::max<std::int64_t>(1, std::int64_t{budget} * options_.chunk_pages_max / layers);
  const std::int64_t count = std::min<std::int64_t>(std::ssize(left), affordable);
  budget -= static_cast<std::int32_t>(base::ceil_div(count * layers, std::int64_t{options_.chunk_pages_max}));
  for (const ops::RowVerdict& verdict :
       options_.digests->check_pages(stream_, pool_, left.first(static_cast<std::size_t>(count)))) {
    if (verdict.failed_checks != 0) return std::unexpected(verdict);
  }
  return static_cast<std::int32_t>(count);
}

std::int64_t ChunkGatherer::device_bytes() const {
  return verifier_->device_bytes() + table_->device_bytes() + images_.bytes() + digests_.bytes();
}

}  // namespace tessera::kv_transfer
