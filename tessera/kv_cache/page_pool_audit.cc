// What brings pages back from quarantine, and what tells which belong there: the device's memory, read back.
#include <algorithm>
#include <cstring>

#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/kv_cache/page_pool.h"

namespace tessera::kv_cache {

std::span<const std::byte> PagePool::read_back(ops::Stream& stream, const void* device, std::int64_t bytes) {
  TESSERA_CHECK(bytes <= std::ssize(audit_found_));
  backend_.copy_to_host(stream, audit_found_.data(), device, bytes);
  stream.synchronize();
  return std::span(audit_found_).first(static_cast<std::size_t>(bytes));
}

bool PagePool::reads_back(ops::Stream& stream, const void* device, std::int64_t bytes, const void* expected) {
  return std::memcmp(read_back(stream, device, bytes).data(), expected, static_cast<std::size_t>(bytes)) == 0;
}

// Every bit is seen as one and as zero.
bool PagePool::rewrites_cleanly(ops::Stream& stream, std::byte* device, std::int64_t bytes) {
  backend_.copy_to_device(stream, device, audit_pattern_.data(), bytes);
  const bool held_ones = reads_back(stream, device, bytes, audit_pattern_.data());
  backend_.fill_zero(stream, device, bytes);
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  return std::ranges::all_of(read_back(stream, device, bytes), is_zero) && held_ones;
}

// The records end as those of a free page.
bool PagePool::rewrites_cleanly(ops::Stream& stream, PageId page) {
  bool clean = true;
  const ops::KvLayout& layout = cache_.layout;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int part = 0; part < layout.layer_parts(layer); ++part) {
      clean &= rewrites_cleanly(stream, cache_.page_data(layer, part, page), layout.row_bytes(part) * layout.page_size);
      if (!layout.part_has_scales(part)) continue;
      clean &= rewrites_cleanly(stream, cache_.page_scales(layer, part, page),
                                layout.row_scale_bytes(part) * layout.page_size);
    }
  }
  write_record(stream, page);
  const Page& p = pages_[page];
  constexpr std::uint64_t kNoDigest = 0;
  return clean && reads_back(stream, digests_ + page, sizeof(kNoDigest), &kNoDigest) &&
         reads_back(stream, tags_ + page, sizeof(p.tag), &p.tag) &&
         reads_back(stream, owners_ + page, sizeof(p.owner), &p.owner) &&
         reads_back(stream, positions_ + page, sizeof(p.position), &p.position) &&
         reads_back(stream, lease_counts_ + page, sizeof(p.leases), &p.leases);
}

AuditProgress PagePool::audit_quarantined(ops::Stream& stream, QuarantineAudit& audit, std::int64_t bytes_max) {
  TESSERA_CHECK(audit.next >= 1);
  std::int64_t bytes = 0;
  for (; audit.next <= total(); ++audit.next) {
    const PageId page = audit.next;
    const Page& p = pages_[page];
    if (p.state != PageState::kQuarantined) continue;
    if (p.write_in_flight) {
      ++audit.kept;
      continue;
    }
    if (bytes >= bytes_max) return AuditProgress::kGoesOn;
    bytes += layout().page_bytes();
    if (rewrites_cleanly(stream, page)) {
      make_free(stream, page, PageEvent::kAudit);
      base::log().info("page pool: page {} was rewritten and is free again", page);
      ++audit.freed;
    } else {
      base::log().error("page pool: page {} does not read back what was written, and stays in quarantine", page);
      ++audit.kept;
    }
  }
  return AuditProgress::kDone;
}

QuarantineAudit PagePool::audit_quarantined(ops::Stream& stream) {
  QuarantineAudit audit;
  while (audit_quarantined(stream, audit, layout().page_bytes()) == AuditProgress::kGoesOn) {
  }
  return audit;
}

std::vector<PageId> PagePool::contradicted(ops::Stream& stream, std::span<const Lease> leases) {
  struct Records {
    std::uint64_t tag;
    std::uint64_t owner;
    std::int32_t position;
    std::int32_t leases;
  };
  std::vector<Records> found(leases.size());
  for (std::size_t i = 0; i < leases.size(); ++i) {
    if (!is_current(leases[i])) continue;
    const PageId page = leases[i].page;
    backend_.copy_to_host(stream, &found[i].tag, tags_ + page, sizeof(*tags_));
    backend_.copy_to_host(stream, &found[i].owner, owners_ + page, sizeof(*owners_));
    backend_.copy_to_host(stream, &found[i].position, positions_ + page, sizeof(*positions_));
    backend_.copy_to_host(stream, &found[i].leases, lease_counts_ + page, sizeof(*lease_counts_));
  }
  stream.synchronize();
  std::vector<PageId> pages;
  for (std::size_t i = 0; i < leases.size(); ++i) {
    if (!is_current(leases[i])) continue;
    const Page& p = pages_[leases[i].page];
    const Records& r = found[i];
    const bool holds = r.tag == p.tag && r.owner == p.owner && r.position == p.position && r.leases == p.leases;
    if (!holds) pages.push_back(leases[i].page);
  }
  return pages;
}

}  // namespace tessera::kv_cache
