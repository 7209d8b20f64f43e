// The engine's part in handoffs: which sequence is offered when, which offer is taken, and what their ends mean. The
// protocol itself is kv_transfer's.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/engine/engine_loop.h"
#include "tessera/request/handoff_ticket.h"

namespace tessera::engine {

namespace {

// Bytes that are not those that were written, in a pool or on the way.
bool is_damage(const base::Status& status) {
  return status.code() == base::StatusCode::kCorruption || status.code() == base::StatusCode::kDataLoss;
}

// What a client may know of a handoff's failure: a fixed text for each kind.
base::Status public_status(const base::Status& status) {
  switch (status.code()) {
    case base::StatusCode::kCorruption:
    case base::StatusCode::kDataLoss:
      return base::corruption("an integrity check failed while the request moved between engines; it was ended");
    case base::StatusCode::kDeadlineExceeded:
      return {status.code(), "moving the request between engines took too long"};
    case base::StatusCode::kResourceExhausted:
      return base::resource_exhausted("the decode engine has no room for the request");
    case base::StatusCode::kUnavailable:
      return base::unavailable("the other engine is not available");
    case base::StatusCode::kCancelled:
      return {status.code(), "the request was cancelled"};
    default:
      return base::internal_error("moving the request between engines failed");
  }
}

}  // namespace

// ---- Either side ----

template <typename Event>
void EngineLoop::end_failed_handoff(Sequence& sequence, const Event& event, const std::string& with) {
  const base::Status& status = event.status;
  // Damage is told even when nobody waits for the sequence any more.
  if (!sequence.aborted || is_damage(status)) {
    base::log().error("engine {}: handoff of request {} sequence {} {} failed: {}", info_.id, sequence.spec.request_id,
                      sequence.spec.id, with, status.to_string());
  }
  if (!sequence.aborted) ++counters_.handoffs_failed;
  if (event.verdict.has_value()) {
    fail_corrupt(sequence, *event.verdict, "handoff");
  } else if (sequence.read_damage.has_value()) {
    end_reader(sequence);  // Whatever else the handoff ended by.
  } else if (is_damage(status)) {
    if (event.found_by == kv_transfer::FoundBy::kHere) ++counters_.check_failures;
    if (recomputes()) check_what_was_read(sequence);
    recompute_or_fail(sequence, public_status(status));
  } else {
    fail(sequence, no_room(sequence.integrity_recomputes, public_status(status)));
  }
}

bool EngineLoop::move_handoffs() {
  bool moved = false;
  if (sender_ != nullptr) {
    // Offers wait until the driver has everything emitted so far: the decode engine's tokens must come after.
    if (outbox_.empty()) moved |= offer_pending();
    moved |= sender_->tick();
  }
  if (receiver_ != nullptr) moved |= receiver_->tick();
  // Their checks read verdicts too.
  if (!device_works()) return true;
  if (sender_ != nullptr) {
    for (const kv_transfer::SendEvent& event : sender_->take_events()) {
      take_send_event(event);
      moved = true;
    }
  }
  if (receiver_ != nullptr) {
    for (kv_transfer::ReceiveEvent& event : receiver_->take_events()) {
      take_receive_event(std::move(event));
      moved = true;
    }
  }
  return moved;
}

// ---- Sending ----

bool EngineLoop::offer_pending() {
  bool moved = false;
  for (auto pending = pending_handoffs_.begin(); pending != pending_handoffs_.end();) {
    Sequence& sequence = *table_.find(*pending);
    if (sequence.read_damage.has_value()) {
      pending = pending_handoffs_.erase(pending);
      end_reader(sequence);
      moved = true;
      continue;
    }
    if (sender_->is_ending(sequence.send_id)) {
      // It was computed again faster than the decode engine heard that it has to let go of it.
      ++pending;
      continue;
    }
    kv_transfer::HandoffRequest request;
    request.id = last_handoff_ + 1;
    request.peer = static_cast<kv_transfer::PeerId>(sequence.decode_engine);
    request.blob = request::encode_ticket({sequence.spec, sequence.generated, sequence.integrity_recomputes});
    request.kv_len = static_cast<std::int32_t>(sequence.prompt_tokens());
    request.leases =
        std::span(sequence.leases).first(static_cast<std::size_t>(base::ceil_div(request.kv_len, config_.page_size)));
    const base::Status status = sender_->offer(request);
    if (status.code() == base::StatusCode::kResourceExhausted) break;  // Until one of those under way is over.
    ++last_handoff_;
    moved = true;
    pending = pending_handoffs_.erase(pending);
    if (!status.ok()) {
      ++counters_.handoffs_failed;
      base::log().error("engine {}: handoff of request {} sequence {} to engine {}: {}", info_.id,
                        sequence.spec.request_id, sequence.spec.id, sequence.decode_engine, status.to_string());
      fail(sequence, public_status(status));
      continue;
    }
    sequence.state = SequenceState::kSending;
    sequence.send_id = last_handoff_;
    sending_.emplace(last_handoff_, sequence.spec.id);
  }
  return moved;
}

void EngineLoop::take_send_event(const kv_transfer::SendEvent& event) {
  const auto entry = sending_.extract(event.id);
  TESSERA_CHECK(!entry.empty(), "a handoff ended twice");
  Sequence& sequence = *table_.find(entry.mapped());
  if (event.outcome == kv_transfer::SendOutcome::kDone) {
    ++counters_.handoffs_done;
    counters_.handoff_wire_bytes += event.statistics.bytes_after;
    sequence.report.handoff_pages += static_cast<std::int32_t>(event.statistics.pages);
    sequence.report.handoff_source_bytes += event.statistics.bytes_before;
    sequence.report.handoff_wire_bytes += event.statistics.bytes_after;
    sequence.report.handoff_ns += event.statistics.duration.count();
    if (!sequence.aborted) outbox_.add(request::SequenceHandedOver{sequence.spec.id, sequence.report});
    drop(sequence);
    return;
  }
  if (event.verdict.has_value() && names_damaged_page(sequence, *event.verdict)) {
    // Its steps did not look at bytes: what they emitted may be wrong already, and so may what other readers did.
    condemn(static_cast<kv_cache::PageId>(event.verdict->page_id), *event.verdict, "handoff");
  }
  end_failed_handoff(sequence, event, fmt::format("to engine {}", sequence.decode_engine));
}

// ---- Receiving ----

void EngineLoop::take_receive_event(kv_transfer::ReceiveEvent event) {
  if (auto* offer = std::get_if<kv_transfer::OfferReceived>(&event)) {
    take_offer(std::move(*offer));
  } else if (const auto* committed = std::get_if<kv_transfer::HandoffCommitted>(&event)) {
    take_committed(*committed);
  } else if (const auto* aborted = std::get_if<kv_transfer::HandoffAborted>(&event)) {
    take_aborted(*aborted);
  } else {
    for (const kv_cache::PageId page : std::get<kv_transfer::HandoffFenced>(event).pages) pool_->fence(*stream_, page);
  }
}

void EngineLoop::take_offer(kv_transfer::OfferReceived offer) {
  base::Result<request::HandoffTicket> ticket = request::decode_ticket(offer.blob);
  base::Status status;
  if (!ticket.has_value()) {
    status = ticket.error();
  } else if (std::ssize(ticket->spec.prompt) != offer.kv_len) {
    status = base::invalid_argument("the ticket's prompt is not as long as the KV that is offered");
  } else if (table_.is_buried(ticket->spec.id)) {
    status = {base::StatusCode::kCancelled, "the sequence was aborted"};
  } else if (table_.find(ticket->spec.id) != nullptr) {
    status = base::invalid_argument("the sequence is here already");
  } else {
    status = check_start(ticket->spec, ticket->generated);
  }
  if (!status.ok()) {
    if (status.code() != base::StatusCode::kCancelled) {
      base::log().warn("engine {}: an offer of engine {} is refused: {}", info_.id, offer.key.peer, status.to_string());
    }
    receiver_->reject(offer.key, std::move(status));
    return;
  }
  Sequence sequence;
  sequence.spec = std::move(ticket->spec);
  sequence.generated = std::move(ticket->generated);
  sequence.integrity_recomputes = ticket->integrity_recomputes;
  sequence.receive_key = offer.key;
  receiving_.emplace(offer.key, sequence.spec.id);
  table_.insert(std::move(sequence));
}

base::Status EngineLoop::accept(Sequence& sequence, std::int64_t cached_pages) {
  const std::int64_t prompt_pages = base::ceil_div(sequence.prompt_tokens(), config_.page_size);
  pages_->begin_receive(sequence, cached_pages, prompt_pages);
  return receiver_->accept(*sequence.receive_key,
                           std::span(sequence.leases).first(static_cast<std::size_t>(prompt_pages)),
                           static_cast<std::int32_t>(cached_pages));
}

void EngineLoop::take_committed(const kv_transfer::HandoffCommitted& event) {
  const auto entry = receiving_.extract(event.key);
  TESSERA_CHECK(!entry.empty(), "a handoff was committed that is not under way");
  ++counters_.handoffs_done;
  counters_.handoff_wire_bytes += event.statistics.bytes_after;
  Sequence& sequence = *table_.find(entry.mapped());
  sequence.receive_key.reset();
  pages_->end_receive(sequence);
  if (sequence.aborted) {
    drop(sequence);
    return;
  }
  sequence.state = SequenceState::kComputing;
  sequence.computed = sequence.prompt_tokens();
  sequence.started = parts_.clock.now();
  pages_->cache_prompt(sequence);
}

void EngineLoop::take_aborted(const kv_transfer::HandoffAborted& event) {
  const auto entry = receiving_.extract(event.key);
  if (entry.empty()) return;  // The sequence was dropped while it waited: no page was given to it.
  Sequence& sequence = *table_.find(entry.mapped());
  // Before the leases end: the writes that may still come must find nobody else's page.
  for (const kv_transfer::PageToQuarantine& page : event.quarantine) pages_->quarantine_page(page.lease, page.cause);
  sequence.receive_key.reset();
  pages_->fence_received(sequence);
  end_failed_handoff(sequence, event, fmt::format("from engine {}", event.key.peer));
}

}  // namespace tessera::engine
