#include "tessera/kv_transfer/chunk_storer.h"

#include <algorithm>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::kv_transfer {

base::Result<std::unique_ptr<ChunkStorer>> ChunkStorer::create(ops::Backend& backend, ops::Stream& stream,
                                                               const kv_cache::PagePool& pool,
                                                               const ChunkStorerOptions& options) {
  auto made = std::unique_ptr<ChunkStorer>(new ChunkStorer(backend, stream, pool, options));
  const ops::KvLayout& layout = pool.layout();
  const std::int64_t row_pages = base::ceil_div(options.kv_len_max, layout.page_size);
  const std::int64_t chunk_tokens = std::int64_t{options.chunk_pages_max} * layout.page_size;
  TESSERA_ASSIGN_OR_RETURN(made->verifier_, kv_cache::Verifier::create(backend, {1, row_pages, chunk_tokens}));
  TESSERA_ASSIGN_OR_RETURN(made->table_, kv_cache::PageTable::create(backend, 1, row_pages));
  TESSERA_ASSIGN_OR_RETURN(
      made->images_, backend.allocate(options.chunk_pages_max * layout.page_layer_bytes_max(), "received page images"));
  TESSERA_ASSIGN_OR_RETURN(made->digests_,
                           backend.allocate(std::int64_t{options.chunk_pages_max} * 8, "received page digests"));
  return made;
}

void ChunkStorer::stage_writes(const Target& target, const Chunk& chunk) {
  const std::int32_t page_size = pool_.layout().page_size;
  token_positions_.clear();
  slot_mapping_.clear();
  const std::int32_t end = std::min((chunk.first_page + chunk.num_pages) * page_size, target.kv_len);
  for (std::int32_t p = chunk.first_page * page_size; p < end; ++p) {
    const std::int64_t page = target.leases[static_cast<std::size_t>(p / page_size)].page;
    token_positions_.push_back(p);
    slot_mapping_.push_back(page * page_size + p % page_size);
  }
  token_rows_.assign(token_positions_.size(), 0);
}

kv_cache::CheckedPages ChunkStorer::check_before(const Target& target) {
  const std::int32_t page_size = pool_.layout().page_size;
  table_->set_row(stream_, 0, target.leases);
  const kv_cache::RowExpectation row{target.leases, target.kv_len, target.first_page * page_size};
  kv_cache::CheckInput input;
  input.records = pool_.records();
  input.page_size = page_size;
  input.page_table = table_->device();
  input.max_pages_per_row = table_->pages_per_row_max();
  input.rows = std::span(&row, 1);
  input.token_rows = token_rows_;
  input.token_positions = token_positions_;
  input.slot_mapping = slot_mapping_;
  return verifier_->check_before(stream_, input);
}

std::expected<std::vector<std::uint64_t>, ops::RowVerdict> ChunkStorer::store(const Target& target, const Chunk& chunk,
                                                                              std::span<const std::byte> images) {
  TESSERA_CHECK(chunk.num_pages <= options_.chunk_pages_max && chunk.first_page >= target.first_page);
  TESSERA_CHECK(std::ssize(images) == chunk.num_pages * pool_.layout().page_layer_bytes(chunk.layer));
  backend_.copy_to_device(stream_, images_.data(), images.data(), std::ssize(images));
  stage_writes(target, chunk);
  const kv_cache::CheckedPages checked = check_before(target);

  ops::ScatterPagesParams scatter{checked.slots, pool_.cache()};
  scatter.layer = chunk.layer;
  scatter.images = images_.data();
  backend_.scatter_pages(stream_, scatter);

  if (options_.integrity >= kv_cache::IntegrityLevel::kDigest) {
    ops::DigestTokensParams record{checked.slots, pool_.cache()};
    record.first_layer = chunk.layer;
    record.num_layers = 1;
    record.digest_key = pool_.digest_key();
    record.digests = pool_.digests();
    backend_.digest_tokens(stream_, record);
  }

  ops::DigestPagesParams digest{checked.pages, pool_.cache()};
  digest.layer = chunk.layer;
  digest.row = 0;
  digest.first_page = chunk.first_page;
  digest.num_pages = chunk.num_pages;
  digest.digest_key = target.digest_key;
  digest.digests = digests_.as<std::uint64_t>();
  backend_.digest_pages(stream_, digest);
  std::vector<std::uint64_t> found(static_cast<std::size_t>(chunk.num_pages));
  backend_.copy_to_host(stream_, found.data(), digest.digests, chunk.num_pages * 8);

  verifier_->check_after(stream_);
  const ops::RowVerdict verdict = verifier_->read_verdicts(stream_)[0];
  if (verdict.failed_checks != 0) return std::unexpected(verdict);
  return found;
}

ops::RowVerdict ChunkStorer::check(const Target& target) {
  token_rows_.clear();
  token_positions_.clear();
  slot_mapping_.clear();
  check_before(target);
  return verifier_->read_verdicts(stream_)[0];
}

std::int64_t ChunkStorer::device_bytes() const {
  return verifier_->device_bytes() + table_->device_bytes() + images_.bytes() + digests_.bytes();
}

}  // namespace tessera::kv_transfer
