// Messages of a handoff from a peer that says anything. The first byte chooses: an even one, the rest is given to the
// parser as it is; an odd one, the rest is a script of messages with right checksums for a receiver with a small pool.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/base/check.h"
#include "tessera/base/clock.h"
#include "tessera/base/logging.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/kv_transfer/receiver.h"
#include "tessera/kv_transfer/wire.h"

namespace {

using namespace tessera;
using kv_transfer::HandoffKey;

constexpr kv_transfer::PeerId kPeer = 1;
constexpr kv_transfer::PeerId kReceiver = 2;
constexpr kv_transfer::SessionId kSession = 77;

// What is accepted is written as it was read, but for reasons, which are made printable: so it is compared by parsing
// once more.
void parse_anything(std::span<const std::byte> bytes) {
  const auto parsed = kv_transfer::wire::parse(bytes);
  if (!parsed.has_value()) {
    TESSERA_CHECK(!parsed.error().status.ok() && !parsed.error().status.message().empty());
    return;
  }
  const auto again = kv_transfer::wire::encode(parsed->header.session, parsed->header.handoff, parsed->body);
  TESSERA_CHECK(again.size() == bytes.size());
  const auto reparsed = kv_transfer::wire::parse(again);
  TESSERA_CHECK(reparsed.has_value() && reparsed->body.index() == parsed->body.index());
}

// An engine's part around a receiver: accepts what it has pages for, and gives every page back in the end.
class DecodeEngine {
 public:
  DecodeEngine() {
    const ops::KvLayout layout = ops::gqa_kv_layout(ops::KvFormat::kF8E4M3, 2, 2, 1, 4);
    pool_ = std::move(*kv_cache::PagePool::create(*backend_, *stream_, layout, 12));
    kv_transfer::ReceiverOptions options;
    options.kv_len_max = 16;
    options.chunk_pages_max = 2;
    options.handoffs_max = 4;
    options.timeout = base::Nanoseconds(1000);
    options.resend_interval = base::Nanoseconds(10);
    receiver_ = std::move(*kv_transfer::Receiver::create(*backend_, *stream_, *pool_, *endpoint_, clock_, options));
  }

  void receive(std::vector<std::byte> message) {
    transport_.deliver(kPeer, kReceiver, std::move(message));
    tick();
  }

  void end() {
    clock_.advance(base::Nanoseconds(2000));
    tick();
    TESSERA_CHECK(receiver_->live() == 0);
    while (!leases_.empty()) release(leases_.begin()->first);
    peer_.reset();
    tick();
    const base::Status audited = pool_->audit(*stream_, {});
    TESSERA_CHECK(audited.ok(), audited.message());
    TESSERA_CHECK(pool_->double_frees() == 0 && pool_->counts().leased == 0);
    TESSERA_CHECK(pool_->counts().quarantined == failed_pages_, "a page was never fenced");
  }

  // What the receiver answers is of no interest, but must not fill the transport.
  void drain() {
    while (peer_->poll().has_value()) {
    }
  }

 private:
  void tick() {
    receiver_->tick();
    for (kv_transfer::ReceiveEvent& event : receiver_->take_events()) {
      std::visit([this](const auto& e) { on(e); }, event);
    }
    if (peer_ != nullptr) drain();
  }

  void on(const kv_transfer::OfferReceived& event) {
    std::vector<kv_cache::Lease> leases;
    for (std::int32_t j = 0; j < (event.kv_len + 1) / 2; ++j) {
      const auto lease = pool_->allocate(*stream_, kv_cache::owner_of_sequence(event.key.id), j);
      if (!lease.has_value()) {
        for (const kv_cache::Lease& given : leases) TESSERA_CHECK(pool_->release(*stream_, given).ok());
        receiver_->reject(event.key, lease.error());
        return;
      }
      leases.push_back(*lease);
    }
    for (const kv_cache::Lease& lease : leases) pool_->begin_receive(lease);
    leases_[event.key] = leases;
    TESSERA_CHECK(receiver_->accept(event.key, leases, 0).ok());
  }
  void on(const kv_transfer::HandoffCommitted& event) {
    for (const kv_cache::Lease& lease : leases_.at(event.key)) pool_->end_receive(lease, 1);
    release(event.key);
  }
  void on(const kv_transfer::HandoffAborted& event) {
    for (const auto& [lease, cause] : event.quarantine) {
      pool_->quarantine(*stream_, lease.page, "fuzz", cause);
      if (cause == kv_cache::QuarantineCause::kFailedCheck) ++failed_pages_;
    }
    // The peer is gone, or says that it writes nothing more.
    const auto given = leases_.find(event.key);
    if (event.quarantine.empty() && given != leases_.end()) {
      for (const kv_cache::Lease& lease : given->second) pool_->fence(*stream_, lease.page);
    }
    release(event.key);
  }
  void on(const kv_transfer::HandoffFenced& event) {
    for (const kv_cache::PageId page : event.pages) pool_->fence(*stream_, page);
  }
  void release(const HandoffKey key) {
    const auto it = leases_.find(key);
    if (it == leases_.end()) return;
    for (const kv_cache::Lease& lease : it->second) TESSERA_CHECK(pool_->release(*stream_, lease).ok());
    leases_.erase(it);
  }

  std::unique_ptr<ops::Backend> backend_ = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream_ = backend_->make_stream();
  base::ManualClock clock_;
  kv_transfer::LoopbackTransport transport_{{}};
  std::unique_ptr<kv_transfer::Endpoint> peer_ = transport_.make_endpoint(kPeer);
  std::unique_ptr<kv_transfer::Endpoint> endpoint_ = transport_.make_endpoint(kReceiver);
  std::unique_ptr<kv_cache::PagePool> pool_;
  std::unique_ptr<kv_transfer::Receiver> receiver_;
  std::map<HandoffKey, std::vector<kv_cache::Lease>> leases_;
  std::int64_t failed_pages_ = 0;
};

// Each step: type (1 byte), handoff (1), size of the body (2), body.
void run_script(std::span<const std::byte> script) {
  DecodeEngine engine;
  kv_transfer::wire::Hello hello;
  hello.layout = ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 2, 1, 4);
  hello.chunk_pages_max = 2;
  hello.message_bytes_max = 1 << 20;
  engine.receive(kv_transfer::wire::encode(kSession, 0, hello));
  while (script.size() >= 4) {
    const auto type = static_cast<std::uint16_t>(1 + std::to_integer<int>(script[0]) % 10);
    const std::uint64_t handoff = std::to_integer<std::uint64_t>(script[1]) % 4;
    std::uint16_t body_bytes = 0;
    std::memcpy(&body_bytes, script.data() + 2, 2);
    script = script.subspan(4);
    body_bytes = static_cast<std::uint16_t>(std::min<std::size_t>(body_bytes, script.size()));
    // A sealed message of another type, made into this one.
    std::vector<std::byte> message = kv_transfer::wire::encode(kSession, handoff, kv_transfer::wire::Done{});
    message.insert(message.end(), script.begin(), script.begin() + body_bytes);
    const std::uint32_t size = body_bytes;
    std::memcpy(message.data() + 6, &type, 2);
    std::memcpy(message.data() + 24, &size, 4);
    kv_transfer::wire::seal(message);
    engine.receive(std::move(message));
    script = script.subspan(body_bytes);
  }
  engine.end();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  TESSERA_CHECK(base::set_log_level("off").ok());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] % 2 == 0) {
    parse_anything(bytes);
  } else {
    run_script(bytes);
  }
  return 0;
}
