// The life of a KV page: its states, what happens to it, and which state may follow which. PagePool checks every change
// against this table, and has one place that makes changes. docs/kv_page.md ("States") says who does what, and
// tests/model_checking/ proves what follows from it; a test compares their tables with this one.
//
// Where an event has several rows for a state, the page's leases, the prefix cache's hold or the reasons of its
// quarantine decide, which the pool knows.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::kv_cache {

enum class PageState : std::uint8_t {
  kFree,         // Nobody's, on the free list.
  kReserved,     // One lease; nothing is written yet.
  kWriting,      // One lease; a step of its holder writes to it.
  kLive,         // One lease; nothing writes to it. Its holder reads it, and so does a sender that hands it over.
  kShared,       // Two leases or more; read only.
  kCached,       // No lease; kept by the prefix cache, evictable.
  kInTransfer,   // One lease; the peer of a handoff may write to it.
  kQuarantined,  // Not handed out: a check failed on it, or a write of a peer may still be in flight.
};
inline constexpr int kPageStates = 8;

enum class PageEvent : std::uint8_t {
  kAllocate,
  kBeginWrite,
  kEndWrite,
  kBeginReceive,
  kEndReceive,
  kShare,
  kRelease,
  kSetCached,
  kDropCached,
  kQuarantine,
  kFence,
  kAudit,
};

struct PageTransition {
  PageState from;
  PageEvent event;
  PageState to;
};

inline constexpr auto kPageTransitions = std::to_array<PageTransition>({
    {PageState::kFree, PageEvent::kAllocate, PageState::kReserved},
    {PageState::kReserved, PageEvent::kBeginWrite, PageState::kWriting},
    {PageState::kLive, PageEvent::kBeginWrite, PageState::kWriting},
    {PageState::kWriting, PageEvent::kEndWrite, PageState::kLive},
    {PageState::kReserved, PageEvent::kBeginReceive, PageState::kInTransfer},
    {PageState::kInTransfer, PageEvent::kEndReceive, PageState::kLive},
    {PageState::kLive, PageEvent::kShare, PageState::kShared},
    {PageState::kShared, PageEvent::kShare, PageState::kShared},
    {PageState::kCached, PageEvent::kShare, PageState::kLive},
    {PageState::kReserved, PageEvent::kRelease, PageState::kFree},
    {PageState::kLive, PageEvent::kRelease, PageState::kFree},
    {PageState::kLive, PageEvent::kRelease, PageState::kCached},
    {PageState::kShared, PageEvent::kRelease, PageState::kShared},
    {PageState::kShared, PageEvent::kRelease, PageState::kLive},
    {PageState::kInTransfer, PageEvent::kRelease, PageState::kQuarantined},
    {PageState::kLive, PageEvent::kSetCached, PageState::kLive},
    {PageState::kShared, PageEvent::kSetCached, PageState::kShared},
    {PageState::kLive, PageEvent::kDropCached, PageState::kLive},
    {PageState::kShared, PageEvent::kDropCached, PageState::kShared},
    {PageState::kCached, PageEvent::kDropCached, PageState::kFree},
    {PageState::kFree, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kReserved, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kWriting, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kLive, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kShared, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kCached, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kInTransfer, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kQuarantined, PageEvent::kQuarantine, PageState::kQuarantined},
    {PageState::kInTransfer, PageEvent::kFence, PageState::kReserved},
    {PageState::kQuarantined, PageEvent::kFence, PageState::kQuarantined},
    {PageState::kQuarantined, PageEvent::kFence, PageState::kFree},
    {PageState::kQuarantined, PageEvent::kAudit, PageState::kFree},
});

constexpr bool may_follow(PageState from, PageEvent event, PageState to) {
  for (const PageTransition& row : kPageTransitions) {
    if (row.from == from && row.event == event && row.to == to) return true;
  }
  return false;
}

// "free", "in_transfer", ...: documents, logs and the model call them so.
constexpr const char* page_state_name(PageState state) {
  switch (state) {
    case PageState::kFree:
      return "free";
    case PageState::kReserved:
      return "reserved";
    case PageState::kWriting:
      return "writing";
    case PageState::kLive:
      return "live";
    case PageState::kShared:
      return "shared";
    case PageState::kCached:
      return "cached";
    case PageState::kInTransfer:
      return "in_transfer";
    case PageState::kQuarantined:
      return "quarantined";
  }
  return "?";
}

// "allocate", "begin_write", ...: the pool's function that raises it (audit_quarantined raises "audit").
constexpr const char* page_event_name(PageEvent event) {
  switch (event) {
    case PageEvent::kAllocate:
      return "allocate";
    case PageEvent::kBeginWrite:
      return "begin_write";
    case PageEvent::kEndWrite:
      return "end_write";
    case PageEvent::kBeginReceive:
      return "begin_receive";
    case PageEvent::kEndReceive:
      return "end_receive";
    case PageEvent::kShare:
      return "share";
    case PageEvent::kRelease:
      return "release";
    case PageEvent::kSetCached:
      return "set_cached";
    case PageEvent::kDropCached:
      return "drop_cached";
    case PageEvent::kQuarantine:
      return "quarantine";
    case PageEvent::kFence:
      return "fence";
    case PageEvent::kAudit:
      return "audit";
  }
  return "?";
}

}  // namespace tessera::kv_cache
