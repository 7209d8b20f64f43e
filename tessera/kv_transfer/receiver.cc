#include "tessera/kv_transfer/receiver.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/kv_transfer/chunk_storer.h"

namespace tessera::kv_transfer {

struct Receiver::Impl {
  struct Session {
    SessionId id = 0;
    ops::KvLayout source;
  };

  struct Live {
    ReceiveHandoff machine;
    SessionId session = 0;
    std::vector<kv_cache::Lease> leases;  // Once accepted.
    bool accept_unsent = false;           // The transport was full.
    base::Nanoseconds patience{0};
    base::Nanoseconds started{0};
    std::int64_t source_page_bytes = 0;
    bool said_queued = false;  // Unasked: the sender then offers no more, and only asks now and then.
  };

  // A handoff that was aborted here, until the peer has said that it sends no more of it.
  struct Ending {
    SessionId session = 0;
    base::Status reason;
    std::vector<kv_cache::PageId> unfenced;
    base::Nanoseconds next_send{0};
  };

  // How a handoff ended, to answer its sender's repeated messages.
  struct Ended {
    HandoffKey key;
    SessionId session = 0;
    wire::Body answer;
  };

  const kv_cache::PagePool& pool;
  Endpoint& endpoint;
  const base::Clock& clock;
  const ReceiverOptions options;
  std::unique_ptr<ChunkStorer> storer;
  std::map<PeerId, Session> sessions;
  std::map<HandoffKey, Live> live;
  std::map<HandoffKey, Ending> endings;
  std::deque<Ended> ended;  // The last few, oldest first.
  std::vector<ReceiveEvent> events;
  std::int64_t malformed = 0;

  Impl(const kv_cache::PagePool& pool_in, Endpoint& endpoint_in, const base::Clock& clock_in,
       const ReceiverOptions& options_in)
      : pool(pool_in), endpoint(endpoint_in), clock(clock_in), options(options_in) {}

  wire::Hello hello() const {
    wire::Hello mine;
    mine.layout = pool.layout();
    mine.chunk_pages_max = options.chunk_pages_max;
    mine.message_bytes_max = endpoint.message_bytes_max();
    mine.model_digest = options.model_digest;
    return mine;
  }

  bool send(PeerId peer, SessionId session, HandoffId handoff, const wire::Body& body) {
    return endpoint.try_send(peer, wire::encode(session, handoff, body)) == SendResult::kSent;
  }

  Live* find(const HandoffKey& key) {
    const auto it = live.find(key);
    return it == live.end() ? nullptr : &it->second;
  }

  void remember(const HandoffKey& key, SessionId session, wire::Body answer) {
    ended.push_back(Ended{key, session, std::move(answer)});
    if (std::ssize(ended) > 4 * std::int64_t{options.handoffs_max}) ended.pop_front();
  }

  const Ended* find_ended(const HandoffKey& key, SessionId session) const {
    const auto it = std::find_if(ended.rbegin(), ended.rend(),
                                 [&](const Ended& e) { return e.key == key && e.session == session; });
    return it == ended.rend() ? nullptr : &*it;
  }

  enum class PeerMayWrite : std::uint8_t { kYes, kNo };

  // Ends a live handoff. `failed` are the logical pages that failed a check. A page whose lease has ended is in
  // quarantine, or somebody else's by now: it is not this handoff's to list.
  void abort(const HandoffKey& key, base::Status reason, PeerMayWrite may_write,
             const std::vector<std::int64_t>& failed = {}, std::optional<ops::RowVerdict> verdict = {}) {
    const auto it = live.find(key);
    Live& handoff = it->second;
    HandoffAborted event{key, reason, {}, verdict, may_write == PeerMayWrite::kYes ? FoundBy::kHere : FoundBy::kPeer};
    for (const std::int64_t page : failed) {
      const kv_cache::Lease& lease = handoff.leases[static_cast<std::size_t>(page)];
      if (pool.is_current(lease)) event.quarantine.push_back({lease, kv_cache::QuarantineCause::kFailedCheck});
    }
    const base::Nanoseconds now = clock.now();
    if (may_write == PeerMayWrite::kYes) {
      Ending& ending = endings[key];
      ending = Ending{handoff.session, reason, {}, now};
      for (std::int64_t j = handoff.machine.first_page(); j < std::ssize(handoff.leases); ++j) {
        const kv_cache::Lease& lease = handoff.leases[static_cast<std::size_t>(j)];
        ending.unfenced.push_back(lease.page);  // What failed a check, too: it is not rewritten before the fence.
        if (std::ranges::find(failed, j) != failed.end() || !pool.is_current(lease)) continue;
        event.quarantine.push_back({lease, kv_cache::QuarantineCause::kWriteInFlight});
      }
      resend_abort(key, ending, now);
    }
    const bool was_live = handoff.machine.abort(reason);
    TESSERA_CHECK(was_live);
    remember(key, handoff.session, wire::Abort{std::move(reason)});
    live.erase(it);
    events.emplace_back(std::in_place_type<HandoffAborted>, std::move(event));
  }

  void resend_abort(const HandoffKey& key, Ending& ending, base::Nanoseconds now) {
    if (now < ending.next_send) return;
    if (send(key.peer, ending.session, key.id, wire::Abort{ending.reason})) {
      ending.next_send = now + options.resend_interval;
    }
  }

  void fence(std::map<HandoffKey, Ending>::iterator it) {
    if (!it->second.unfenced.empty()) {
      events.emplace_back(std::in_place_type<HandoffFenced>, it->first, std::move(it->second.unfenced));
    }
    endings.erase(it);
  }

  // The peer, or its last life, is gone: it writes nothing any more.
  void end_peer(PeerId peer, const base::Status& reason) {
    for (auto it = live.begin(); it != live.end();) {
      const HandoffKey key = (it++)->first;
      if (key.peer == peer) abort(key, reason, PeerMayWrite::kNo);
    }
    for (auto it = endings.begin(); it != endings.end();) {
      const auto here = it++;
      if (here->first.peer == peer) fence(here);
    }
    sessions.erase(peer);
  }

  void handle(const Envelope& envelope) {
    const PeerId from = envelope.from;
    const auto parsed = wire::parse(envelope.bytes);
    if (!parsed.has_value()) {
      ++malformed;
      const wire::ParseError& error = parsed.error();
      base::log().warn("handoff receiver: from peer {}: {}", from, error.status.message());
      if (!error.has_header) return;
      const HandoffKey key{from, error.header.handoff};
      const Live* handoff = find(key);
      if (handoff != nullptr && handoff->session == error.header.session) {
        abort(key, error.status, PeerMayWrite::kYes);
      } else if (error.header.type == wire::MessageType::kHello) {
        send(from, error.header.session, 0, wire::Reject{error.status});
      }
      return;
    }
    const wire::Header& header = parsed->header;
    const HandoffKey key{from, header.handoff};
    if (const auto* theirs = std::get_if<wire::Hello>(&parsed->body)) {
      handle_hello(from, header.session, *theirs);
    } else if (std::holds_alternative<wire::AbortAck>(parsed->body)) {
      const auto it = endings.find(key);
      if (it != endings.end() && it->second.session == header.session) fence(it);
    } else if (const auto session = sessions.find(from);
               session == sessions.end() || session->second.id != header.session) {
      send(from, header.session, 0, wire::Reject{base::unavailable("say hello first")});
    } else if (const auto* offer = std::get_if<wire::Offer>(&parsed->body)) {
      handle_offer(key, session->second, *offer);
    } else if (const auto* said = std::get_if<wire::Abort>(&parsed->body)) {
      // Who says Abort sends nothing afterwards: its word is the fence.
      if (find(key) != nullptr) abort(key, said->reason, PeerMayWrite::kNo);
      if (const auto it = endings.find(key); it != endings.end()) fence(it);
      send(from, header.session, key.id, wire::AbortAck{});
    } else if (const auto* data = std::get_if<wire::PageData>(&parsed->body)) {
      if (Live* handoff = find(key); handoff != nullptr) handle_data(key, *handoff, *data);
    } else if (const auto* commit = std::get_if<wire::Commit>(&parsed->body)) {
      handle_commit(key, header.session, *commit);
    } else if (std::holds_alternative<wire::Queued>(parsed->body)) {
      handle_question(key, header.session);
    } else if (find(key) != nullptr) {
      abort(key, base::internal_error("a message that only receivers send"), PeerMayWrite::kYes);
    }
  }

  void handle_hello(PeerId from, SessionId session, const wire::Hello& theirs) {
    const auto known = sessions.find(from);
    if (known != sessions.end() && known->second.id != session) {
      end_peer(from, base::unavailable("the prefill engine was started again"));
    }
    const base::Status compatible = wire::check_compatible(theirs, hello());
    if (!compatible.ok()) {
      base::log().error("handoff receiver: refused peer {}: {}", from, compatible.message());
      send(from, session, 0, wire::Reject{compatible});
      return;
    }
    sessions[from] = Session{session, theirs.layout};
    send(from, session, 0, hello());
  }

  void handle_offer(const HandoffKey& key, const Session& session, const wire::Offer& offer) {
    if (key.id == 0) return;
    if (find(key) != nullptr) {  // Sent again: our answer may be lost.
      handle_question(key, session.id);
      return;
    }
    if (const Ended* end = find_ended(key, session.id); end != nullptr) {
      send(key.peer, session.id, key.id, end->answer);
      return;
    }
    base::Status refusal;
    if (offer.kv_len > options.kv_len_max) {
      refusal = base::out_of_range("handoff: " + std::to_string(offer.kv_len) + " tokens; the decode engine takes " +
                                   std::to_string(options.kv_len_max));
    } else if (offer.num_pages != base::ceil_div(offer.kv_len, pool.layout().page_size)) {
      refusal = base::invalid_argument("handoff: " + std::to_string(offer.num_pages) + " pages for " +
                                       std::to_string(offer.kv_len) + " tokens");
    } else if (std::ssize(live) >= options.handoffs_max) {
      refusal = base::resource_exhausted("handoff: " + std::to_string(live.size()) + " are going on");
    }
    if (!refusal.ok()) {
      send(key.peer, session.id, key.id, wire::Reject{refusal});
      remember(key, session.id, wire::Reject{std::move(refusal)});
      return;
    }
    const base::Nanoseconds now = clock.now();
    const base::Nanoseconds patience = std::min(options.timeout, base::Nanoseconds(offer.timeout_ns));
    const HandoffShape shape{offer.kv_len, offer.num_pages, pool.layout().num_layers};
    Live handoff{ReceiveHandoff(shape, offer.digest_key, now + patience),
                 session.id,
                 {},
                 false,
                 patience,
                 now,
                 session.source.page_bytes()};
    live.emplace(key, std::move(handoff));
    OfferReceived event;
    event.key = key;
    event.kv_len = offer.kv_len;
    event.blob.assign(offer.blob.begin(), offer.blob.end());
    events.emplace_back(std::in_place_type<OfferReceived>, std::move(event));
  }

  // What became of an offer?
  void handle_question(const HandoffKey& key, SessionId session) {
    if (Live* handoff = find(key); handoff == nullptr) {
      answer_ended(key, session);
    } else if (handoff->machine.state() != ReceiveState::kOffered) {
      send_accept(key);
    } else {
      handoff->machine.set_deadline(clock.now() + handoff->patience);
      handoff->said_queued |= send(key.peer, session, key.id, wire::Queued{});
    }
  }

  // Tells the senders of offers that the engine did not answer in its turn that they wait.
  void say_queued() {
    for (auto& [key, handoff] : live) {
      if (handoff.said_queued || handoff.machine.state() != ReceiveState::kOffered) continue;
      handoff.said_queued = send(key.peer, handoff.session, key.id, wire::Queued{});
    }
  }

  void answer_ended(const HandoffKey& key, SessionId session) {
    if (const Ended* end = find_ended(key, session); end != nullptr) {
      send(key.peer, session, key.id, end->answer);
    } else {
      send(key.peer, session, key.id, wire::Abort{base::not_found("handoff: unknown to the decode engine")});
    }
  }

  void send_accept(const HandoffKey& key) {
    Live& handoff = live.at(key);
    handoff.accept_unsent = !send(key.peer, handoff.session, key.id, wire::Accept{handoff.machine.first_page()});
  }

  static ChunkStorer::Target target(const Live& handoff) {
    return {handoff.leases, handoff.machine.shape().kv_len, handoff.machine.first_page(), handoff.machine.digest_key()};
  }

  // Ends a handoff whose pages failed their tag check.
  void abort_unverified(const HandoffKey& key, const Live& handoff, const ops::RowVerdict& verdict) {
    std::vector<std::int64_t> failed;
    if (verdict.logical_page >= 0 && verdict.logical_page < std::ssize(handoff.leases)) {
      failed.push_back(verdict.logical_page);
    }
    abort(key, failed_page_check(verdict, "receiving"), PeerMayWrite::kYes, failed, verdict);
  }

  void handle_data(const HandoffKey& key, Live& handoff, const wire::PageData& data) {
    const ops::KvLayout& layout = pool.layout();
    const Chunk chunk{data.layer, data.first_page, data.num_pages};
    // A layer that does not exist is refused below, with all that lies outside of what was wanted.
    const bool other_size = data.layer < layout.num_layers && data.page_bytes != layout.page_layer_bytes(data.layer);
    if (other_size || data.num_pages > options.chunk_pages_max) {
      abort(key, base::internal_error("page data of another shape than was agreed"), PeerMayWrite::kYes);
      return;
    }
    std::vector<std::uint64_t> sent;
    sent.reserve(static_cast<std::size_t>(chunk.num_pages));
    for (std::int32_t i = 0; i < chunk.num_pages; ++i) sent.push_back(data.digest(i));
    const auto kind = handoff.machine.classify(chunk, sent);
    if (!kind.has_value()) {
      abort(key, kind.error(), PeerMayWrite::kYes);
      return;
    }
    if (*kind == ReceiveHandoff::ChunkKind::kDuplicate) return;

    const auto found = storer->store(target(handoff), chunk, data.images);
    if (!found.has_value()) {
      abort_unverified(key, handoff, found.error());
      return;
    }
    const base::Status stored = handoff.machine.stored(chunk, sent, *found);
    if (stored.ok()) return;
    std::vector<std::int64_t> failed;
    for (std::int32_t i = 0; i < chunk.num_pages; ++i) {
      const auto k = static_cast<std::size_t>(i);
      if (sent[k] != (*found)[k]) failed.push_back(chunk.first_page + i);
    }
    abort(key, stored, PeerMayWrite::kYes, failed);
  }

  void handle_commit(const HandoffKey& key, SessionId session, const wire::Commit& commit) {
    if (Live* handoff = find(key); handoff != nullptr) {
      const base::Status noted = handoff->machine.commit(commit.combined_digest);
      if (!noted.ok()) return abort(key, noted, PeerMayWrite::kYes);
      // What the sender has sent and what is not here is late, or lost. Half the patience is enough for late: so the
      // sender, which waits as long from about the same time on, hears of it while it still does.
      auto& machine = handoff->machine;
      if (machine.misses_chunks()) {
        machine.set_deadline(std::min(machine.deadline(), clock.now() + handoff->patience / 2));
      }
      return;
    }
    answer_ended(key, session);
  }

  // The last check, over all pages: what came in the meantime (an eviction of the cached prefix that should not have
  // been possible, say) is found here.
  void finish(const HandoffKey& key, Live& handoff) {
    const ops::RowVerdict verdict = storer->check(target(handoff));
    if (verdict.failed_checks != 0) {
      abort_unverified(key, handoff, verdict);
      return;
    }
    if (const base::Status verified = handoff.machine.verify(); !verified.ok()) {
      abort(key, verified, PeerMayWrite::kYes);
      return;
    }
    handoff.machine.committed();
    HandoffCommitted event{key, {}};
    event.statistics.pages_cached = handoff.machine.first_page();
    event.statistics.pages = handoff.machine.shape().num_pages - handoff.machine.first_page();
    event.statistics.bytes_before = event.statistics.pages * handoff.source_page_bytes;
    event.statistics.bytes_after = event.statistics.pages * pool.layout().page_bytes();
    event.statistics.duration = clock.now() - handoff.started;
    // When the transport is full, the sender says Commit again and gets the remembered answer.
    send(key.peer, handoff.session, key.id, wire::Done{});
    remember(key, handoff.session, wire::Done{});
    live.erase(key);
    events.emplace_back(std::in_place_type<HandoffCommitted>, event);
  }

  bool tick() {
    say_queued();
    bool worked = false;
    std::int32_t messages = 0;
    for (; messages < options.messages_per_tick; ++messages) {
      const std::optional<Envelope> envelope = endpoint.poll();
      if (!envelope.has_value()) break;
      handle(*envelope);
      worked = true;
    }
    if (messages < options.messages_per_tick) end_gone_peers();
    const base::Nanoseconds now = clock.now();
    for (auto it = live.begin(); it != live.end();) {
      const HandoffKey key = it->first;
      Live& handoff = (it++)->second;
      if (handoff.machine.ready_to_verify()) {
        finish(key, handoff);
        worked = true;
      } else if (handoff.machine.expired(now)) {
        base::Status late(base::StatusCode::kDeadlineExceeded,
                          std::string("handoff took too long; it was ") + receive_state_name(handoff.machine.state()));
        if (handoff.machine.misses_chunks()) late = base::data_loss("chunks that were sent never came");
        abort(key, late, PeerMayWrite::kYes);
        worked = true;
      } else if (handoff.accept_unsent) {
        send_accept(key);
      }
    }
    for (auto& [key, ending] : endings) resend_abort(key, ending, now);
    return worked;
  }

  // Only when nothing of theirs is left to read: a peer may end right after its last message.
  void end_gone_peers() {
    std::vector<PeerId> gone;
    for (const auto& [peer, session] : sessions) {
      if (!endpoint.reachable(peer)) gone.push_back(peer);
    }
    for (const PeerId peer : gone) {
      for (auto it = live.begin(); it != live.end();) {
        const auto here = it++;
        const HandoffKey key = here->first;
        if (key.peer == peer && here->second.machine.ready_to_verify()) finish(key, here->second);
      }
      end_peer(peer, base::unavailable("the prefill engine is gone"));
    }
  }
};

base::Result<std::unique_ptr<Receiver>> Receiver::create(ops::Backend& backend, ops::Stream& stream,
                                                         const kv_cache::PagePool& pool, Endpoint& endpoint,
                                                         const base::Clock& clock, const ReceiverOptions& options) {
  TESSERA_CHECK(options.kv_len_max >= 1 && options.chunk_pages_max >= 1 && options.messages_per_tick >= 1 &&
                options.handoffs_max >= 1 && options.timeout.count() > 0 && options.resend_interval.count() > 0);
  auto impl = std::make_unique<Impl>(pool, endpoint, clock, options);
  TESSERA_ASSIGN_OR_RETURN(
      impl->storer,
      ChunkStorer::create(backend, stream, pool, {options.kv_len_max, options.chunk_pages_max, options.integrity}));
  return std::unique_ptr<Receiver>(new Receiver(std::move(impl)));
}

Receiver::Receiver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Receiver::~Receiver() = default;

base::Status Receiver::accept(const HandoffKey& key, std::span<const kv_cache::Lease> leases,
                              std::int32_t cached_pages) {
  Impl::Live* handoff = impl_->find(key);
  if (handoff == nullptr) return base::not_found("handoff " + std::to_string(key.id) + " is over");
  const std::int32_t num_pages = handoff->machine.shape().num_pages;
  TESSERA_CHECK(std::ssize(leases) == num_pages, std::to_string(leases.size()) + " leases");
  TESSERA_CHECK(cached_pages >= 0 && cached_pages <= num_pages, std::to_string(cached_pages) + " cached pages");
  for (const kv_cache::Lease& lease : leases.subspan(static_cast<std::size_t>(cached_pages))) {
    TESSERA_CHECK(!impl_->pool.is_current(lease) || impl_->pool.state(lease.page) == kv_cache::PageState::kInTransfer,
                  "page " + std::to_string(lease.page) + " is not in transfer");
  }
  handoff->machine.accept(cached_pages);
  handoff->machine.set_deadline(impl_->clock.now() + handoff->patience);
  handoff->leases.assign(leases.begin(), leases.end());
  impl_->send_accept(key);
  return base::ok_status();
}

void Receiver::reject(const HandoffKey& key, base::Status reason) {
  Impl::Live* handoff = impl_->find(key);
  if (handoff == nullptr) return;
  TESSERA_CHECK(handoff->machine.state() == ReceiveState::kOffered, "an accepted handoff is aborted, not rejected");
  const SessionId session = handoff->session;
  impl_->send(key.peer, session, key.id, wire::Reject{reason});
  impl_->remember(key, session, wire::Reject{std::move(reason)});
  impl_->live.erase(key);
}

void Receiver::abort(const HandoffKey& key, base::Status reason) {
  if (impl_->find(key) != nullptr) impl_->abort(key, std::move(reason), Impl::PeerMayWrite::kYes);
}

bool Receiver::tick() { return impl_->tick(); }

std::vector<ReceiveEvent> Receiver::take_events() { return std::exchange(impl_->events, {}); }

std::int64_t Receiver::live() const { return std::ssize(impl_->live); }

std::optional<base::Nanoseconds> Receiver::next_deadline() const {
  std::optional<base::Nanoseconds> next;
  const auto consider = [&next](base::Nanoseconds at) { next = next.has_value() ? std::min(*next, at) : at; };
  for (const auto& [key, handoff] : impl_->live) consider(handoff.machine.deadline());
  for (const auto& [key, ending] : impl_->endings) consider(ending.next_send);
  return next;
}

std::optional<ReceiveState> Receiver::state(const HandoffKey& key) const {
  const Impl::Live* handoff = impl_->find(key);
  return handoff == nullptr ? std::nullopt : std::optional(handoff->machine.state());
}

std::int64_t Receiver::malformed_messages() const { return impl_->malformed; }

std::int64_t Receiver::device_bytes() const { return impl_->storer->device_bytes(); }

}  // namespace tessera::kv_transfer
