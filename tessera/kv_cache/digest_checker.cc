#include "tessera/kv_cache/digest_checker.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"

namespace tessera::kv_cache {

struct DigestChecker::Arrays {
  static constexpr std::int64_t kTableBytes = base::round_up(kPortion * std::int64_t{sizeof(std::int32_t)}, 256);
  static constexpr std::int64_t kEntryBytes = base::round_up(kPortion * std::int64_t{sizeof(ops::PageTableEntry)}, 256);
  static constexpr std::int64_t kBytes = kTableBytes + kEntryBytes + kPortion * std::int64_t{sizeof(ops::RowVerdict)};

  explicit Arrays(std::byte* base)
      : table(reinterpret_cast<std::int32_t*>(base)),
        entries(reinterpret_cast<ops::PageTableEntry*>(base + kTableBytes)),
        verdicts(reinterpret_cast<ops::RowVerdict*>(base + kTableBytes + kEntryBytes)) {}
  std::int32_t* table;           // Of rows of one page.
  ops::PageTableEntry* entries;  // What the op is to check,
  ops::RowVerdict* verdicts;     // and what it found.
};

base::Result<std::unique_ptr<DigestChecker>> DigestChecker::create(ops::Backend& backend) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Verifier> verifier,
                           Verifier::create(backend, {.rows_max = kPortion, .pages_per_row_max = 1, .tokens_max = 0}));
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer storage, backend.allocate(Arrays::kBytes, "page digest check"));
  return std::unique_ptr<DigestChecker>(new DigestChecker(backend, std::move(verifier), std::move(storage)));
}

DigestChecker::DigestChecker(ops::Backend& backend, std::unique_ptr<Verifier> verifier, ops::Buffer storage)
    : backend_(backend), verifier_(std::move(verifier)), storage_(std::move(storage)) {}

void DigestChecker::enqueue(ops::Stream& stream, const PagePool& pool, const ops::VerifiedPages& pages,
                            std::size_t first, std::size_t count) {
  const Arrays arrays(storage_.data());
  backend_.copy_to_device(stream, arrays.entries, entries_.data() + first,
                          static_cast<std::int64_t>(count * sizeof(ops::PageTableEntry)));
  ops::CheckDigestsParams params{pages, pool.cache()};
  params.digest_key = pool.digest_key();
  params.recorded = pool.records().digests;
  params.count = static_cast<std::int64_t>(count);
  params.entries = arrays.entries;
  params.verdicts = arrays.verdicts;
  backend_.check_digests(stream, params);
  backend_.copy_to_host(stream, found_.data() + first, arrays.verdicts,
                        static_cast<std::int64_t>(count * sizeof(ops::RowVerdict)));
}

std::span<const ops::RowVerdict> DigestChecker::check_pages(ops::Stream& stream, const PagePool& pool,
                                                            std::span<const Lease> leases) {
  verdicts_.resize(leases.size());
  for (std::size_t done = 0; done < leases.size();) {
    const std::size_t count = std::min<std::size_t>(leases.size() - done, kPortion);
    table_.clear();
    rows_.clear();
    entries_.clear();
    for (const Lease& lease : leases.subspan(done, count)) {
      const std::int32_t filled = pool.filled(lease.page);
      TESSERA_CHECK(filled > 0 || !pool.is_current(lease), "page " + std::to_string(lease.page) + " is empty");
      // Of a lease that ended, the check finds the tag wrong before anything else matters.
      entries_.push_back({static_cast<std::int32_t>(rows_.size()), 0});
      table_.push_back(lease.page);
      rows_.push_back({.leases = std::span(&lease, 1),
                       .kv_len = std::max(filled, 1),
                       .write_start = 0,
                       .first_logical_page = std::max(pool.position(lease.page), 0)});
    }
    const Arrays arrays(storage_.data());
    backend_.copy_to_device(stream, arrays.table, table_.data(),
                            static_cast<std::int64_t>(count * sizeof(std::int32_t)));
    CheckInput input;
    input.records = pool.records();
    input.page_size = pool.layout().page_size;
    input.page_table = arrays.table;
    input.max_pages_per_row = 1;
    input.rows = rows_;
    const CheckedPages checked = verifier_->check_before(stream, input);
    found_.resize(count);
    enqueue(stream, pool, checked.pages, 0, count);
    verifier_->check_after(stream);
    const std::span<const ops::RowVerdict> verified = verifier_->read_verdicts(stream);
    for (std::size_t i = 0; i < count; ++i) {
      ops::RowVerdict& verdict = verdicts_[done + i];
      verdict = verified[i].failed_checks != 0 ? verified[i] : found_[i];
      if (is_byte_damage(verdict)) verdict.logical_page += rows_[i].first_logical_page;
    }
    done += count;
  }
  return verdicts_;
}

std::span<const ops::RowVerdict> DigestChecker::check_rows(ops::Stream& stream, const PagePool& pool,
                                                           const ops::VerifiedPages& pages,
                                                           std::span<const RowExpectation> rows,
                                                           std::span<const ops::RowVerdict> verdicts) {
  TESSERA_CHECK(std::ssize(rows) == pages.rows() && rows.size() == verdicts.size());
  const std::int64_t page_size = pool.layout().page_size;
  const auto pages_of = [&](std::size_t r) {
    const std::int64_t count = verdicts[r].failed_checks == 0 ? base::ceil_div(rows[r].kv_len, page_size) : 0;
    return rows[r].leases.first(static_cast<std::size_t>(count));
  };
  constexpr std::int32_t kNone = -1;
  entry_of_page_.assign(static_cast<std::size_t>(pool.cache().num_pages), kNone);
  entries_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::int32_t index = 0;
    for (const Lease& lease : pages_of(r)) {
      std::int32_t& entry = entry_of_page_[static_cast<std::size_t>(lease.page)];
      if (entry == kNone) {
        entry = static_cast<std::int32_t>(entries_.size());
        entries_.push_back({static_cast<std::int32_t>(r), index});
      }
      ++index;
    }
  }
  found_.resize(entries_.size());
  for (std::size_t first = 0; first < entries_.size(); first += kPortion) {
    enqueue(stream, pool, pages, first, std::min<std::size_t>(entries_.size() - first, kPortion));
  }
  stream.synchronize();
  verdicts_.assign(rows.size(), {});
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (const Lease& lease : pages_of(r)) {
      const ops::RowVerdict& found = found_[entry_of_page_[static_cast<std::size_t>(lease.page)]];
      if (found.failed_checks == 0) continue;
      verdicts_[r] = found;
      break;
    }
  }
  return verdicts_;
}

}  // namespace tessera::kv_cache
