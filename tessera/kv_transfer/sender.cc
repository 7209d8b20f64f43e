#include "tessera/kv_transfer/sender.h"

#include <algorithm>
#include <deque>
#include <list>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/base/logging.h"
#include "tessera/base/random.h"
#include "tessera/kv_transfer/chunk_gatherer.h"

namespace tessera::kv_transfer {

namespace {

// Messages read in one tick: answers are few and small.
constexpr int kMessagesPerTick = 256;
// How often a receiver is asked whether it still keeps an offer; more often where the timeout is short.
constexpr base::Nanoseconds kSignOfLifeInterval = std::chrono::seconds(1);

}  // namespace

struct Sender::Impl {
  enum class PeerState : std::uint8_t { kGreeting, kReady, kRefused };
  struct Peer {
    PeerState state = PeerState::kGreeting;
    base::Status refusal;
    base::Nanoseconds next_hello{0};
    wire::Hello hello;                   // Theirs, once kReady.
    std::int32_t chunk_pages = 0;        // Of one message to them.
    std::deque<GatheredChunk> gathered;  // Waiting for room on the transport.
  };

  struct Live {
    HandoffId id = 0;
    PeerId peer = 0;
    SendHandoff machine;
    std::vector<kv_cache::Lease> leases;
    std::vector<std::byte> blob;
    base::Nanoseconds started{0};
    base::Nanoseconds next_send{0};  // Of the control message that waits for an answer.
    std::int32_t pages_proved = 0;   // Whose bytes were compared with their digests.
  };

  // A handoff that ended here and of which the peer has not confirmed that it knows.
  struct Ending {
    PeerId peer = 0;
    base::Status reason;
    base::Nanoseconds next_send{0};
    base::Nanoseconds give_up{0};
  };

  const kv_cache::PagePool& pool;
  Endpoint& endpoint;
  const base::Clock& clock;
  const SenderOptions options;
  const base::Nanoseconds sign_of_life_interval = std::min(kSignOfLifeInterval, options.timeout / 4);
  const SessionId session = base::random_number();
  const std::uint64_t digest_key = base::random_number();
  std::unique_ptr<ChunkGatherer> gatherer;
  std::map<PeerId, Peer> peers;
  std::list<Live> live;  // In the order of their offers, which is the order of service.
  std::map<HandoffId, Ending> endings;
  std::vector<SendEvent> events;
  std::int64_t malformed = 0;

  Impl(const kv_cache::PagePool& pool_in, Endpoint& endpoint_in, const base::Clock& clock_in,
       const SenderOptions& options_in)
      : pool(pool_in), endpoint(endpoint_in), clock(clock_in), options(options_in) {}

  wire::Hello hello() const {
    return {.layout = pool.layout(),
            .chunk_pages_max = options.chunk_pages,
            .message_bytes_max = endpoint.message_bytes_max(),
            .model_digest = options.model_digest};
  }

  Live* find(HandoffId id) {
    const auto it = std::ranges::find(live, id, &Live::id);
    return it == live.end() ? nullptr : &*it;
  }

  bool send(PeerId peer, SessionId to_session, HandoffId handoff, const wire::Body& body) {
    return endpoint.try_send(peer, wire::encode(to_session, handoff, body)) == SendResult::kSent;
  }

  HandoffStatistics statistics(const Live& handoff) const {
    HandoffStatistics s;
    s.duration = clock.now() - handoff.started;
    const auto peer = peers.find(handoff.peer);
    if (!handoff.machine.accepted() || peer == peers.end()) return s;
    s.pages_cached = handoff.machine.first_page();
    s.pages = handoff.machine.shape().num_pages - s.pages_cached;
    s.bytes_before = s.pages * pool.layout().page_bytes();
    s.bytes_after = s.pages * peer->second.hello.layout.page_bytes();
    return s;
  }

  // Ends a live handoff, with its one event.
  void end(Live& handoff, SendEvent event) {
    TESSERA_CHECK(handoff.machine.terminal());
    event.id = handoff.id;
    if (const auto peer = peers.find(handoff.peer); peer != peers.end()) {
      std::erase_if(peer->second.gathered, [&](const GatheredChunk& g) { return g.handoff == handoff.id; });
    }
    events.push_back(std::move(event));
    live.remove_if([&](const Live& other) { return &other == &handoff; });
  }

  enum class TellPeer : std::uint8_t { kYes, kNo };

  void abort(Live& handoff, base::Status reason, TellPeer tell, std::optional<ops::RowVerdict> verdict = {}) {
    SendEvent event{.outcome = SendOutcome::kAborted, .status = reason, .verdict = verdict};
    event.found_by = tell == TellPeer::kYes ? FoundBy::kHere : FoundBy::kPeer;
    event.statistics = statistics(handoff);
    // Until the first Offer went out, the peer knows nothing.
    const bool known = handoff.machine.state() != SendState::kOffered || handoff.next_send > base::Nanoseconds{0};
    const bool ended = handoff.machine.abort(reason);
    TESSERA_CHECK(ended);
    if (tell == TellPeer::kYes && known) {
      const base::Nanoseconds now = clock.now();
      const HandoffId id = handoff.id;
      endings[id] = Ending{handoff.peer, std::move(reason), now, now + options.timeout};
      resend_abort(id, endings[id], now);
    }
    end(handoff, std::move(event));
  }

  // A message that cannot be right. Once Commit went out, the receiver may run the sequence: then only its own word, or
  // the deadline, ends the handoff. It is asked by the next Commit.
  void disturbed(Live& handoff, const base::Status& reason) {
    if (handoff.machine.state() != SendState::kAwaitingCommit) abort(handoff, reason, TellPeer::kYes);
  }

  void abort_peer(PeerId peer, const base::Status& reason, bool offered_too) {
    for (auto it = live.begin(); it != live.end();) {
      Live& handoff = *it++;
      if (handoff.peer != peer) continue;
      if (!offered_too && !handoff.machine.accepted()) {
        if (handoff.machine.state() == SendState::kQueued) handoff.machine.offer_again(clock.now() + options.timeout);
        handoff.next_send = base::Nanoseconds{0};
      } else {
        abort(handoff, reason, TellPeer::kNo);
      }
    }
    std::erase_if(endings, [&](const auto& ending) { return ending.second.peer == peer; });
  }

  void resend_abort(HandoffId id, Ending& ending, base::Nanoseconds now) {
    if (now < ending.next_send) return;
    if (send(ending.peer, session, id, wire::Abort{ending.reason})) ending.next_send = now + options.resend_interval;
  }

  // What peers say.
  void handle(const Envelope& envelope) {
    const auto parsed = wire::parse(envelope.bytes);
    if (!parsed.has_value()) {
      ++malformed;
      const wire::ParseError& error = parsed.error();
      base::log().warn("handoff sender: from peer {}: {}", envelope.from, error.status.message());
      if (!error.has_header || error.header.session != session) return;
      Live* handoff = find(error.header.handoff);
      if (handoff != nullptr && handoff->peer == envelope.from) disturbed(*handoff, error.status);
      return;
    }
    const wire::Header& header = parsed->header;
    if (const auto* said = std::get_if<wire::Abort>(&parsed->body)) {
      // Whatever became of the handoff, and even of an earlier life of ours: nothing more of it will be sent.
      Live* handoff = header.session == session ? find(header.handoff) : nullptr;
      if (handoff != nullptr && handoff->peer == envelope.from) abort(*handoff, said->reason, TellPeer::kNo);
      send(envelope.from, header.session, header.handoff, wire::AbortAck{});
      return;
    }
    if (header.session != session) return;
    if (header.handoff == 0) {
      handle_session(envelope.from, parsed->body);
      return;
    }
    if (std::holds_alternative<wire::AbortAck>(parsed->body)) {
      const auto it = endings.find(header.handoff);
      if (it != endings.end() && it->second.peer == envelope.from) endings.erase(it);
      return;
    }
    Live* handoff = find(header.handoff);
    if (handoff != nullptr && handoff->peer == envelope.from) handle_handoff(*handoff, parsed->body);
  }

  void handle_session(PeerId from, const wire::Body& body) {
    const auto it = peers.find(from);
    if (it == peers.end()) return;
    Peer& peer = it->second;
    if (const auto* theirs = std::get_if<wire::Hello>(&body)) {
      if (peer.state != PeerState::kGreeting) return;  // A second answer to a hello that was sent again.
      if (const base::Status compatible = wire::check_compatible(hello(), *theirs); !compatible.ok()) {
        refuse(from, peer, compatible);
        return;
      }
      peer.state = PeerState::kReady;
      peer.hello = *theirs;
      const std::int64_t message_bytes = std::min(endpoint.message_bytes_max(), theirs->message_bytes_max);
      peer.chunk_pages = static_cast<std::int32_t>(
          std::min<std::int64_t>({options.chunk_pages, theirs->chunk_pages_max,
                                  wire::page_data_pages_max(message_bytes, theirs->layout.page_layer_bytes_max())}));
    } else if (const auto* reject = std::get_if<wire::Reject>(&body)) {
      if (reject->reason.code() == base::StatusCode::kDataLoss) return;  // Damaged on its way: hello is sent again.
      if (reject->reason.code() != base::StatusCode::kUnavailable) {
        refuse(from, peer, reject->reason);
      } else if (peer.state == PeerState::kReady) {
        // It was started again: what it had of our handoffs is lost; those that it has not answered can still go.
        peer.state = PeerState::kGreeting;
        peer.next_hello = base::Nanoseconds{0};
        abort_peer(from, base::unavailable("the decode engine was started again"), false);
      }
    }
  }

  void refuse(PeerId id, Peer& peer, const base::Status& reason) {
    base::log().error("handoff sender: peer {} refused: {}", id, reason.message());
    peer.state = PeerState::kRefused;
    peer.refusal = reason;
    abort_peer(id, reason, true);
  }

  void handle_handoff(Live& handoff, const wire::Body& body) {
    if (const auto* accept = std::get_if<wire::Accept>(&body)) {
      // Repeated, because we asked again.
      if (handoff.machine.accepted() && handoff.machine.first_page() == accept->first_page) return;
      const base::Status accepted = handoff.machine.accept(accept->first_page);
      if (!accepted.ok()) return disturbed(handoff, accepted);
      handoff.machine.set_deadline(clock.now() + options.timeout);
    } else if (std::holds_alternative<wire::Queued>(body)) {
      if (handoff.machine.queued()) handoff.next_send = clock.now() + sign_of_life_interval;
    } else if (const auto* reject = std::get_if<wire::Reject>(&body)) {
      abort(handoff, reject->reason, TellPeer::kNo);
    } else if (std::holds_alternative<wire::Done>(body)) {
      const base::Status done = handoff.machine.done();
      if (!done.ok()) return abort(handoff, done, TellPeer::kYes);
      end(handoff, {.outcome = SendOutcome::kDone, .statistics = statistics(handoff)});
    } else {
      disturbed(handoff, base::internal_error("a message that only senders send"));
    }
  }

  // What is due.
  bool advance(Live& handoff, base::Nanoseconds now, std::int32_t& chunk_budget) {
    Peer& peer = peers.at(handoff.peer);
    switch (handoff.machine.state()) {
      case SendState::kOffered: {
        if (peer.state != PeerState::kReady || now < handoff.next_send) return false;
        wire::Offer offer;
        offer.kv_len = handoff.machine.shape().kv_len;
        offer.num_pages = handoff.machine.shape().num_pages;
        offer.digest_key = digest_key;
        offer.timeout_ns = options.timeout.count();
        offer.blob = handoff.blob;
        if (!send(handoff.peer, session, handoff.id, offer)) return false;
        handoff.next_send = now + options.resend_interval;
        return true;
      }
      case SendState::kQueued:
        return ask(handoff, now);
      case SendState::kSending:
        return send_chunks(handoff, peer, chunk_budget);
      case SendState::kAwaitingCommit:
        if (now < handoff.next_send || !send_commit(handoff)) return false;
        handoff.next_send = now + options.resend_interval;
        return true;
      case SendState::kDone:
      case SendState::kAborted:
        break;
    }
    TESSERA_CHECK(false, "a handoff that ended is not live");
  }

  // Shows life, and wants a sign of the peer's. Only from here on is the peer silent: what keeps this engine itself
  // from asking does not count.
  bool ask(Live& handoff, base::Nanoseconds now) {
    if (now < handoff.next_send) return false;
    if (handoff.machine.deadline() == kNoDeadline) handoff.machine.set_deadline(now + options.timeout);
    if (!send(handoff.peer, session, handoff.id, wire::Queued{})) return false;
    handoff.next_send = now + sign_of_life_interval;
    return true;
  }

  bool send_commit(const Live& handoff) {
    return send(handoff.peer, session, handoff.id, wire::Commit{handoff.machine.combined_digest()});
  }

  // Sends what was gathered, oldest first, and notes it in the handoffs. False when the transport is full.
  bool drain(PeerId id, Peer& peer) {
    while (!peer.gathered.empty()) {
      GatheredChunk& next = peer.gathered.front();
      if (endpoint.try_send(id, std::move(next.message)) != SendResult::kSent) return false;
      find(next.handoff)->machine.chunk_sent(next.chunk, next.digests);  // end() took out what is not live.
      peer.gathered.pop_front();
    }
    return true;
  }

  bool send_chunks(Live& handoff, Peer& peer, std::int32_t& budget) {
    if (!drain(handoff.peer, peer)) return false;
    const Gathering gathered = gather(handoff, peer, budget);
    if (gathered == Gathering::kEnded) return true;
    if (!drain(handoff.peer, peer) || !handoff.machine.all_sent()) return gathered == Gathering::kSome;
    if (!prove(handoff, budget)) return true;
    if (!send_commit(handoff)) return gathered == Gathering::kSome;
    handoff.machine.commit_sent();
    handoff.next_send = clock.now() + options.resend_interval;
    return true;
  }

  // Compares all pages of the sequence with what was once written: also those that the receiver had, as prefill read
  // them and what is sent was computed from them. False while some is left, or when damage ended the handoff.
  bool prove(Live& handoff, std::int32_t& budget) {
    const auto proved = gatherer->prove({handoff.leases, handoff.machine.shape().kv_len}, handoff.pages_proved, budget);
    if (!proved.has_value()) {
      abort(handoff, failed_page_check(proved.error(), "handing over"), TellPeer::kYes, proved.error());
      return false;
    }
    handoff.pages_proved += *proved;
    return handoff.pages_proved == handoff.machine.shape().num_pages;
  }

  // Checks the pages, then gathers up to `budget` chunks into messages for `peer`. A failed check ends the handoff.
  enum class Gathering : std::uint8_t { kNothing, kSome, kEnded };
  Gathering gather(Live& handoff, Peer& peer, std::int32_t& budget) {
    const std::vector<Chunk> chunks = handoff.machine.next_chunks(peer.chunk_pages, budget);
    if (chunks.empty()) return Gathering::kNothing;
    budget -= static_cast<std::int32_t>(chunks.size());

    ChunkGatherer::Source source;
    source.session = session;
    source.handoff = handoff.id;
    source.leases = handoff.leases;
    source.kv_len = handoff.machine.shape().kv_len;
    source.digest_key = digest_key;
    auto gathered = gatherer->gather(source, peer.hello.layout, chunks);
    if (!gathered.has_value()) {
      abort(handoff, failed_page_check(gathered.error(), "handing over"), TellPeer::kYes, gathered.error());
      return Gathering::kEnded;
    }
    for (GatheredChunk& chunk : *gathered) peer.gathered.push_back(std::move(chunk));
    return Gathering::kSome;
  }

  bool tick() {
    bool worked = false;
    int messages = 0;
    for (; messages < kMessagesPerTick; ++messages) {
      const std::optional<Envelope> envelope = endpoint.poll();
      if (!envelope.has_value()) break;
      handle(*envelope);
      worked = true;
    }
    const base::Nanoseconds now = clock.now();
    if (messages < kMessagesPerTick) forget_gone_peers();
    for (auto& [id, peer] : peers) {
      const bool wanted = std::ranges::any_of(live, [&](const Live& handoff) { return handoff.peer == id; });
      if (peer.state != PeerState::kGreeting || !wanted || now < peer.next_hello) continue;
      if (send(id, session, 0, hello())) {
        peer.next_hello = now + options.resend_interval;
        worked = true;
      }
    }
    // First what ended: an offer of the same sequence must not overtake the word that its last handoff is over.
    for (auto it = endings.begin(); it != endings.end();) {
      resend_abort(it->first, it->second, now);
      it = now >= it->second.give_up ? endings.erase(it) : std::next(it);
    }
    std::int32_t chunk_budget = options.chunks_per_tick;
    for (auto it = live.begin(); it != live.end();) {
      Live& handoff = *it++;
      const bool expired = handoff.machine.expired(now);
      if (expired) {
        const std::string was = send_state_name(handoff.machine.state());
        abort(handoff, {base::StatusCode::kDeadlineExceeded, "handoff took too long; it was " + was}, TellPeer::kYes);
      }
      worked = expired || advance(handoff, now, chunk_budget) || worked;
    }
    return worked;
  }

  void forget_gone_peers() {
    for (auto it = peers.begin(); it != peers.end();) {
      const PeerId id = it->first;
      if (endpoint.reachable(id)) {
        ++it;
        continue;
      }
      abort_peer(id, base::unavailable("the decode engine is gone"), true);
      it = peers.erase(it);
    }
  }
};

base::Result<std::unique_ptr<Sender>> Sender::create(ops::Backend& backend, ops::Stream& stream,
                                                     const kv_cache::PagePool& pool, Endpoint& endpoint,
                                                     const base::Clock& clock, const SenderOptions& options) {
  TESSERA_CHECK(options.kv_len_max >= 1 && options.chunk_pages >= 1 && options.chunks_per_tick >= 1 &&
                options.handoffs_max >= 1 && options.timeout.count() > 0 && options.resend_interval.count() > 0);
  auto impl = std::make_unique<Impl>(pool, endpoint, clock, options);
  TESSERA_ASSIGN_OR_RETURN(impl->gatherer, ChunkGatherer::create(backend, stream, pool,
                                                                 {options.kv_len_max, options.chunk_pages,
                                                                  options.chunks_per_tick, options.digests}));
  return std::unique_ptr<Sender>(new Sender(std::move(impl)));
}

Sender::Sender(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sender::~Sender() = default;

base::Status Sender::offer(const HandoffRequest& request) {
  Impl& s = *impl_;
  TESSERA_CHECK(request.id != 0 && request.kv_len >= 1);
  TESSERA_CHECK(s.find(request.id) == nullptr && !s.endings.contains(request.id), "handoff id used before");
  if (request.kv_len > s.options.kv_len_max) {
    return base::out_of_range("handoff: " + std::to_string(request.kv_len) + " tokens; at most " +
                              std::to_string(s.options.kv_len_max));
  }
  const ops::KvLayout& layout = s.pool.layout();
  const std::int64_t num_pages = base::ceil_div(request.kv_len, layout.page_size);
  TESSERA_CHECK(std::ssize(request.leases) == num_pages, std::to_string(request.leases.size()) + " leases");
  const std::int64_t blob_bytes_max =
      std::min(wire::kBlobBytesMax, s.endpoint.message_bytes_max() - wire::kOfferBytesMin);
  if (std::ssize(request.blob) > blob_bytes_max) {
    return base::out_of_range("handoff: a request of " + std::to_string(request.blob.size()) + " bytes; at most " +
                              std::to_string(blob_bytes_max));
  }
  if (std::ssize(s.live) >= s.options.handoffs_max) {
    return base::resource_exhausted("handoff: " + std::to_string(s.live.size()) + " are going on");
  }
  if (!s.endpoint.reachable(request.peer)) {
    return base::unavailable("handoff: no decode engine " + std::to_string(request.peer));
  }
  const Impl::Peer& peer = s.peers[request.peer];
  if (peer.state == Impl::PeerState::kRefused) return peer.refusal;

  const base::Nanoseconds now = s.clock.now();
  const HandoffShape shape{request.kv_len, static_cast<std::int32_t>(num_pages), layout.num_layers};
  s.live.push_back(Impl::Live{request.id,
                              request.peer,
                              SendHandoff(shape, now + s.options.timeout),
                              {request.leases.begin(), request.leases.end()},
                              request.blob,
                              now});
  if (request.readiness == LayerReadiness::kAll) s.live.back().machine.layer_ready(layout.num_layers - 1);
  return base::ok_status();
}

void Sender::layer_ready(HandoffId id, std::int32_t layer) {
  if (Impl::Live* handoff = impl_->find(id); handoff != nullptr) handoff->machine.layer_ready(layer);
}

void Sender::abort(HandoffId id, base::Status reason) {
  if (Impl::Live* handoff = impl_->find(id); handoff != nullptr) {
    impl_->abort(*handoff, std::move(reason), Impl::TellPeer::kYes);
  }
}

bool Sender::tick() { return impl_->tick(); }

std::vector<SendEvent> Sender::take_events() { return std::exchange(impl_->events, {}); }

std::int64_t Sender::live() const { return std::ssize(impl_->live); }

std::int64_t Sender::accepted() const {
  return std::ranges::count_if(impl_->live, [](const Impl::Live& handoff) { return handoff.machine.accepted(); });
}

std::optional<base::Nanoseconds> Sender::next_deadline() const {
  std::optional<base::Nanoseconds> next;
  const auto consider = [&next](base::Nanoseconds at) { next = next.has_value() ? std::min(*next, at) : at; };
  for (const Impl::Live& handoff : impl_->live) {
    consider(handoff.machine.deadline());
    const Impl::Peer& peer = impl_->peers.at(handoff.peer);
    if (peer.state == Impl::PeerState::kGreeting) {
      consider(peer.next_hello);
    } else if (handoff.machine.state() != SendState::kSending) {
      consider(handoff.next_send);
    }
  }
  for (const auto& [id, ending] : impl_->endings) consider(std::min(ending.next_send, ending.give_up));
  return next;
}

std::optional<SendState> Sender::state(HandoffId id) const {
  const Impl::Live* handoff = impl_->find(id);
  return handoff == nullptr ? std::nullopt : std::optional(handoff->machine.state());
}

bool Sender::is_ending(HandoffId id) const { return impl_->endings.contains(id); }

std::int64_t Sender::malformed_messages() const { return impl_->malformed; }

std::int64_t Sender::device_bytes() const { return impl_->gatherer->device_bytes(); }

}  // namespace tessera::kv_transfer
