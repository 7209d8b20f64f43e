#include "tessera/kv_cache/page_pool.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/base/random.h"

namespace tessera::kv_cache {

namespace {

// The five arrays of records inside their buffer, each aligned to 256 bytes.
struct RecordOffsets {
  std::int64_t tags, owners, positions, lease_counts, digests, bytes;
};

RecordOffsets record_offsets(std::int64_t num_pages) {
  RecordOffsets at{};
  const auto take = [&](std::int64_t element_bytes) {
    const std::int64_t offset = at.bytes;
    at.bytes += base::round_up(num_pages * element_bytes, 256);
    return offset;
  };
  at.tags = take(8);
  at.owners = take(8);
  at.positions = take(4);
  at.lease_counts = take(4);
  at.digests = take(8);
  return at;
}

constexpr std::int64_t kRecordBytesMax = 8;

std::string describe(const Lease& lease) {
  return "page " + std::to_string(lease.page) + ", tag " + std::to_string(lease.tag);
}

}  // namespace

base::Result<std::unique_ptr<PagePool>> PagePool::create(ops::Backend& backend, ops::Stream& stream,
                                                         const ops::KvLayout& layout, std::int64_t num_pages) {
  TESSERA_CHECK(layout.num_layers > 0 && layout.num_parts > 0 && layout.page_size > 0);
  if (num_pages < 1 || num_pages >= std::numeric_limits<PageId>::max()) {
    return base::failure(base::out_of_range("page pool: " + std::to_string(num_pages) + " pages; expected at least 1"));
  }
  if (!backend.supports(layout.format)) {
    return base::failure(base::unimplemented("page pool: backend " + std::string(backend.name()) +
                                             " does not support KV format " + ops::kv_format_name(layout.format)));
  }
  ops::KvCacheView cache;
  cache.layout = layout;
  cache.num_pages = num_pages + 1;
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer storage, backend.allocate(layout.pool_bytes(cache.num_pages), "KV pages"));
  const std::int64_t record_bytes = record_offsets(cache.num_pages).bytes;
  TESSERA_ASSIGN_OR_RETURN(ops::Buffer record_storage, backend.allocate(record_bytes, "KV page records"));
  cache.base = storage.data();
  backend.fill_zero(stream, storage.data(), storage.bytes());
  backend.fill_zero(stream, record_storage.data(), record_storage.bytes());
  auto pool =
      std::unique_ptr<PagePool>(new PagePool(backend, cache, std::move(storage), std::move(record_storage), num_pages));
  // A position that no sequence has: so a record of a free page equals nothing that a check could expect, not even the
  // zeros of a missing lease.
  const std::vector<std::int32_t> positions(static_cast<std::size_t>(cache.num_pages), -1);
  backend.copy_to_device(stream, pool->positions_, positions.data(),
                         cache.num_pages * static_cast<std::int64_t>(sizeof(std::int32_t)));
  stream.synchronize();
  return pool;
}

PagePool::PagePool(ops::Backend& backend, ops::KvCacheView cache, ops::Buffer storage, ops::Buffer record_storage,
                   std::int64_t num_pages)
    : backend_(backend),
      cache_(cache),
      storage_(std::move(storage)),
      record_storage_(std::move(record_storage)),
      digest_key_(base::random_number()),
      pages_(static_cast<std::size_t>(cache.num_pages)),
      // Counting up from a random number: no tag comes twice in a pool's life, and none from another pool's life is
      // likely to be one of this pool's.
      next_tag_(base::random_number()) {
  const RecordOffsets at = record_offsets(cache.num_pages);
  std::byte* base = record_storage_.data();
  tags_ = reinterpret_cast<std::uint64_t*>(base + at.tags);
  owners_ = reinterpret_cast<std::uint64_t*>(base + at.owners);
  positions_ = reinterpret_cast<std::int32_t*>(base + at.positions);
  lease_counts_ = reinterpret_cast<std::int32_t*>(base + at.lease_counts);
  digests_ = reinterpret_cast<std::uint64_t*>(base + at.digests);
  records_ = ops::PageRecords{tags_, owners_, positions_, lease_counts_, cache.num_pages, digests_};
  const ops::KvLayout& layout = cache_.layout;
  std::int64_t part_bytes = kRecordBytesMax;
  for (int part = 0; part < layout.num_parts; ++part) {
    part_bytes = std::max(
        {part_bytes, layout.row_bytes(part) * layout.page_size, layout.row_scale_bytes(part) * layout.page_size});
  }
  audit_pattern_.assign(static_cast<std::size_t>(part_bytes), std::byte{0xff});
  audit_found_.resize(static_cast<std::size_t>(part_bytes));
  counts_.total = num_pages;
  counts_.free = num_pages;
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (std::int64_t page = num_pages; page >= 1; --page) free_.push_back(static_cast<PageId>(page));
}

void PagePool::write_record(ops::Stream& stream, PageId page) {
  const Page& p = pages_[page];
  backend_.copy_to_device(stream, tags_ + page, &p.tag, sizeof(p.tag));
  backend_.copy_to_device(stream, owners_ + page, &p.owner, sizeof(p.owner));
  backend_.copy_to_device(stream, positions_ + page, &p.position, sizeof(p.position));
  backend_.copy_to_device(stream, lease_counts_ + page, &p.leases, sizeof(p.leases));
  backend_.fill_zero(stream, digests_ + page, sizeof(*digests_));
}

void PagePool::write_lease_count(ops::Stream& stream, PageId page) {
  backend_.copy_to_device(stream, lease_counts_ + page, &pages_[page].leases, sizeof(pages_[page].leases));
}

void PagePool::enter(PageId page, PageEvent event, PageState state) {
  const PageState from = pages_[page].state;
  TESSERA_CHECK(may_follow(from, event, state), "page " + std::to_string(page) + ": " + page_event_name(event) +
                                                    " takes no page from " + page_state_name(from) + " to " +
                                                    page_state_name(state));
  const auto count = [this](PageState s) -> std::int64_t& {
    switch (s) {
      case PageState::kFree:
        return counts_.free;
      case PageState::kReserved:
      case PageState::kWriting:
      case PageState::kLive:
      case PageState::kShared:
      case PageState::kInTransfer:
        return counts_.leased;
      case PageState::kCached:
        return counts_.cached;
      case PageState::kQuarantined:
        return counts_.quarantined;
    }
    return counts_.free;
  };
  --count(from);
  ++count(state);
  pages_[page].state = state;
}

void PagePool::make_free(ops::Stream& stream, PageId page, PageEvent event) {
  enter(page, event, PageState::kFree);
  pages_[page] = Page{};
  write_record(stream, page);
  free_.push_back(page);
}

// Ends the page's life, and all leases that are left.
void PagePool::put_in_quarantine(ops::Stream& stream, PageId page, PageEvent event, QuarantineCause cause) {
  Page& p = pages_[page];
  const bool was_held = p.held_by_cache;
  const bool in_transfer = p.state == PageState::kInTransfer;
  if (p.state == PageState::kFree) free_.erase(std::find(free_.begin(), free_.end(), page));
  if (const std::int32_t holds = p.leases + (was_held ? 1 : 0); holds > 0) ended_[p.tag] = holds;
  enter(page, event, PageState::kQuarantined);
  p = Page{};
  p.state = PageState::kQuarantined;
  p.check_failed = cause == QuarantineCause::kFailedCheck;
  p.write_in_flight = in_transfer || cause == QuarantineCause::kWriteInFlight;
  if (p.awaits_fence()) ++awaiting_fence_;
  write_record(stream, page);
  if (was_held && observer_ != nullptr) observer_->quarantined(page);
}

// One of the leases, or the cache's hold, that a quarantine ended is given back.
bool PagePool::end_silently(PageTag tag) {
  const auto it = ended_.find(tag);
  if (it == ended_.end()) return false;
  if (--it->second == 0) ended_.erase(it);
  return true;
}

base::Result<Lease> PagePool::allocate(ops::Stream& stream, PageOwner owner, std::int32_t position) {
  TESSERA_CHECK(position >= 0);
  const bool injected = allocations_until_failure_ > 0 && --allocations_until_failure_ == 0;
  if (free_.empty() || injected) {
    return base::failure(base::resource_exhausted("no free KV page among " + std::to_string(counts_.total)));
  }
  const PageId page = free_.back();
  free_.pop_back();
  if (++next_tag_ == 0) ++next_tag_;  // 0 means "not allocated".
  enter(page, PageEvent::kAllocate, PageState::kReserved);
  Page& p = pages_[page];
  p.tag = next_tag_;
  p.owner = owner;
  p.position = position;
  p.leases = 1;
  write_record(stream, page);
  return Lease{page, p.tag, p.owner};
}

bool PagePool::is_current(const Lease& lease) const {
  if (lease.page < 1 || lease.page > total() || lease.tag == 0) return false;
  return pages_[lease.page].tag == lease.tag;
}

void PagePool::begin_write(const Lease& lease) {
  if (!is_current(lease)) return;
  TESSERA_CHECK(!pages_[lease.page].held_by_cache, describe(lease) + " is the prefix cache's");
  enter(lease.page, PageEvent::kBeginWrite, PageState::kWriting);
}

void PagePool::end_write(const Lease& lease, std::int32_t filled) {
  if (!is_current(lease)) return;
  enter(lease.page, PageEvent::kEndWrite, PageState::kLive);
  set_filled(lease.page, filled);
}

void PagePool::begin_receive(const Lease& lease) {
  TESSERA_CHECK(is_current(lease), describe(lease));
  enter(lease.page, PageEvent::kBeginReceive, PageState::kInTransfer);
}

void PagePool::end_receive(const Lease& lease, std::int32_t filled) {
  if (!is_current(lease)) return;
  enter(lease.page, PageEvent::kEndReceive, PageState::kLive);
  set_filled(lease.page, filled);
}

void PagePool::set_filled(PageId page, std::int32_t filled) {
  Page& p = pages_[page];
  TESSERA_CHECK(filled >= 1 && filled >= p.filled && filled <= layout().page_size,
                "page " + std::to_string(page) + ": " + std::to_string(filled) + " slots filled, after " +
                    std::to_string(p.filled));
  p.filled = filled;
}

Lease PagePool::share(ops::Stream& stream, const Lease& lease) {
  TESSERA_CHECK(is_current(lease), describe(lease));
  Page& p = pages_[lease.page];
  enter(lease.page, PageEvent::kShare, p.state == PageState::kCached ? PageState::kLive : PageState::kShared);
  ++p.leases;
  write_lease_count(stream, lease.page);
  if (p.held_by_cache && p.leases == 1 && observer_ != nullptr) observer_->lease_began(lease.page);
  return Lease{lease.page, p.tag, p.owner};
}

base::Status PagePool::release(ops::Stream& stream, const Lease& lease) {
  if (!is_current(lease) || pages_[lease.page].leases == 0) {
    if (end_silently(lease.tag)) return base::ok_status();
    ++double_frees_;
    base::log().error("page pool: {} was released and is not leased under that tag", describe(lease));
    return base::corruption("double free of " + describe(lease));
  }
  Page& p = pages_[lease.page];
  --p.leases;
  if (p.leases > 0) {
    enter(lease.page, PageEvent::kRelease, p.leases == 1 ? PageState::kLive : PageState::kShared);
    write_lease_count(stream, lease.page);
  } else if (p.held_by_cache) {
    enter(lease.page, PageEvent::kRelease, PageState::kCached);
    write_lease_count(stream, lease.page);
    if (observer_ != nullptr) observer_->leases_ended(lease.page);
  } else if (p.state == PageState::kInTransfer) {
    base::log().warn("page pool: {} to quarantine: it was given back while a peer may write to it", describe(lease));
    put_in_quarantine(stream, lease.page, PageEvent::kRelease, QuarantineCause::kWriteInFlight);
  } else {
    make_free(stream, lease.page, PageEvent::kRelease);
  }
  return base::ok_status();
}

Lease PagePool::set_cached(ops::Stream& stream, const Lease& lease, PageOwner chain_owner) {
  TESSERA_CHECK(is_current(lease), describe(lease));
  Page& p = pages_[lease.page];
  TESSERA_CHECK(!p.held_by_cache);
  TESSERA_CHECK(p.leases == 1 || p.owner == chain_owner, "other holders would keep the old owner");
  enter(lease.page, PageEvent::kSetCached, p.state);
  p.held_by_cache = true;
  p.owner = chain_owner;
  backend_.copy_to_device(stream, owners_ + lease.page, &p.owner, sizeof(p.owner));
  return Lease{lease.page, p.tag, p.owner};
}

base::Status PagePool::drop_cached(ops::Stream& stream, const Lease& lease) {
  if (!is_current(lease) || !pages_[lease.page].held_by_cache) {
    if (end_silently(lease.tag)) return base::ok_status();
    return base::corruption("the prefix cache does not hold " + describe(lease));
  }
  Page& p = pages_[lease.page];
  p.held_by_cache = false;
  if (p.leases == 0) {
    make_free(stream, lease.page, PageEvent::kDropCached);
  } else {
    enter(lease.page, PageEvent::kDropCached, p.state);
  }
  return base::ok_status();
}

void PagePool::quarantine(ops::Stream& stream, PageId page, std::string_view reason, QuarantineCause cause) {
  TESSERA_CHECK(page >= 1 && page <= total(), "page " + std::to_string(page));
  Page& p = pages_[page];
  base::log().warn("page pool: page {} ({}, tag {}, owner {:x}, position {}, {} leases) to quarantine: {}", page,
                   page_state_name(p.state), p.tag, p.owner, p.position, p.leases, reason);
  if (p.state == PageState::kQuarantined) {
    enter(page, PageEvent::kQuarantine, PageState::kQuarantined);
    if (p.awaits_fence()) --awaiting_fence_;
    (cause == QuarantineCause::kFailedCheck ? p.check_failed : p.write_in_flight) = true;
    if (p.awaits_fence()) ++awaiting_fence_;
  } else {
    put_in_quarantine(stream, page, PageEvent::kQuarantine, cause);
  }
}

void PagePool::fence(ops::Stream& stream, PageId page) {
  TESSERA_CHECK(page >= 1 && page <= total(), "page " + std::to_string(page));
  Page& p = pages_[page];
  if (p.state == PageState::kInTransfer) {
    enter(page, PageEvent::kFence, PageState::kReserved);
    // Nothing of what the peer brought counts.
    backend_.fill_zero(stream, digests_ + page, sizeof(*digests_));
  } else if (p.state == PageState::kQuarantined && p.write_in_flight) {
    if (p.check_failed) {
      enter(page, PageEvent::kFence, PageState::kQuarantined);
      p.write_in_flight = false;
    } else {
      --awaiting_fence_;
      make_free(stream, page, PageEvent::kFence);
    }
  }
}

const PagePool::Page& PagePool::at(PageId page) const {
  TESSERA_CHECK(page >= 1 && page <= total(), "page " + std::to_string(page));
  return pages_[page];
}

base::Status PagePool::check_conservation(ops::Stream& stream) {
  // What the states say, against the counts and the free list.
  PageCounts found;
  found.total = total();
  std::int64_t found_awaiting_fence = 0;
  std::vector<bool> listed_free(pages_.size(), false);
  for (const PageId page : free_) {
    if (page < 1 || page > total() || listed_free[page]) {
      return base::corruption("page " + std::to_string(page) + " is on the free list twice, or is no page");
    }
    listed_free[page] = true;
  }
  for (PageId page = 1; page <= total(); ++page) {
    const Page& p = pages_[page];
    bool sound = false;
    switch (p.state) {
      case PageState::kFree:
        ++found.free;
        sound = p.tag == 0 && p.leases == 0 && !p.held_by_cache;
        break;
      case PageState::kReserved:
      case PageState::kWriting:
      case PageState::kInTransfer:
        ++found.leased;
        sound = p.tag != 0 && p.leases == 1 && !p.held_by_cache;
        break;
      case PageState::kLive:
        ++found.leased;
        sound = p.tag != 0 && p.leases == 1;
        break;
      case PageState::kShared:
        ++found.leased;
        sound = p.tag != 0 && p.leases > 1;
        break;
      case PageState::kCached:
        ++found.cached;
        sound = p.tag != 0 && p.leases == 0 && p.held_by_cache;
        break;
      case PageState::kQuarantined:
        ++found.quarantined;
        if (p.awaits_fence()) ++found_awaiting_fence;
        sound = p.tag == 0 && p.leases == 0 && !p.held_by_cache && (p.check_failed || p.write_in_flight);
        break;
    }
    if (!sound || listed_free[page] != (p.state == PageState::kFree)) {
      return base::corruption("page " + std::to_string(page) + ": its leases, tag or list do not fit its state");
    }
  }
  if (found != counts_ || found_awaiting_fence != awaiting_fence_ ||
      found.free + found.leased + found.cached + found.quarantined != found.total) {
    return base::corruption("page counts do not add up: free " + std::to_string(found.free) + ", leased " +
                            std::to_string(found.leased) + ", cached " + std::to_string(found.cached) +
                            ", quarantined " + std::to_string(found.quarantined) + " of " +
                            std::to_string(found.total));
  }

  // The device's records against the host's.
  const std::size_t n = pages_.size();
  std::vector<std::uint64_t> tags(n);
  std::vector<std::uint64_t> owners(n);
  std::vector<std::int32_t> positions(n);
  std::vector<std::int32_t> lease_counts(n);
  std::vector<std::uint64_t> digests(n);
  const auto read = [&]<typename T>(std::vector<T>& host, const T* device) {
    backend_.copy_to_host(stream, host.data(), device, static_cast<std::int64_t>(n * sizeof(T)));
  };
  read(tags, tags_);
  read(owners, owners_);
  read(positions, positions_);
  read(lease_counts, lease_counts_);
  read(digests, digests_);
  stream.synchronize();
  for (PageId page = 0; page <= total(); ++page) {
    const Page& p = pages_[page];
    if (p.state == PageState::kQuarantined) continue;
    const auto differs = [&](std::string_view what, std::uint64_t device, std::uint64_t host) {
      return base::corruption("page " + std::to_string(page) + ": " + std::string(what) + " is " +
                              std::to_string(device) + " on the device, " + std::to_string(host) + " on the host");
    };
    if (tags[page] != p.tag) return differs("tag", tags[page], p.tag);
    if (owners[page] != p.owner) return differs("owner", owners[page], p.owner);
    if (positions[page] != p.position) {
      return differs("position", static_cast<std::uint64_t>(positions[page]), static_cast<std::uint64_t>(p.position));
    }
    if (lease_counts[page] != p.leases) {
      return differs("lease count", static_cast<std::uint64_t>(lease_counts[page]),
                     static_cast<std::uint64_t>(p.leases));
    }
    // Of a page in use the host does not know it: the check of digests does.
    if ((p.state == PageState::kFree || p.state == PageState::kReserved) && digests[page] != 0) {
      return differs("digest", digests[page], 0);
    }
  }
  return base::ok_status();
}

base::Status PagePool::audit(ops::Stream& stream, std::span<const Lease> held) {
  TESSERA_RETURN_IF_ERROR(check_conservation(stream));
  std::vector<std::int32_t> counted(pages_.size(), 0);
  for (const Lease& lease : held) {
    if (is_current(lease)) {
      ++counted[lease.page];
    } else if (!ended_.contains(lease.tag)) {
      return base::corruption("a holder has a lease that ended: " + describe(lease));
    }
  }
  for (PageId page = 1; page <= total(); ++page) {
    if (counted[page] != pages_[page].leases) {
      return base::corruption("page " + std::to_string(page) + " has " + std::to_string(pages_[page].leases) +
                              " leases, of which its holders know " + std::to_string(counted[page]));
    }
  }
  return base::ok_status();
}

}  // namespace tessera::kv_cache
