// A prefill side and a decode side joined by a loopback transport, with only as much of an engine around Sender and
// Receiver as their contracts ask for. For tests of the handoff.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/base/clock.h"
#include "tessera/kv_cache/digest_checker.h"
#include "tessera/kv_cache/page_pool.h"
#include "tessera/kv_transfer/loopback_transport.h"
#include "tessera/kv_transfer/receiver.h"
#include "tessera/kv_transfer/sender.h"

namespace tessera::tests {

using kv_cache::Lease;
using kv_transfer::HandoffKey;

inline constexpr std::int32_t kHandoffPageSize = 64;
inline constexpr std::int32_t kHandoffLayers = 3;
inline constexpr std::int32_t kHandoffKvHeads = 2;
inline constexpr std::int32_t kHandoffHeadDim = 16;
inline constexpr kv_transfer::PeerId kPrefillPeer = 1;
inline constexpr kv_transfer::PeerId kDecodePeer = 2;

inline ops::KvLayout handoff_layout(ops::KvFormat format) {
  return ops::gqa_kv_layout(format, kHandoffLayers, kHandoffPageSize, kHandoffKvHeads, kHandoffHeadDim);
}

// Latents of 20 and rope of 6; index keys of 12 in all layers but the first.
inline ops::KvLayout handoff_latent_layout(ops::KvFormat format) {
  ops::LayerSet index_layers;
  for (std::int32_t layer = 1; layer < kHandoffLayers; ++layer) index_layers.insert(layer);
  return ops::mla_kv_layout(format, kHandoffLayers, kHandoffPageSize, 20, 6, 12, index_layers);
}

struct HandoffPairOptions {
  std::int64_t prefill_pages = 16;
  std::int64_t decode_pages = 16;
  ops::KvLayout prefill_layout = handoff_layout(ops::KvFormat::kBF16);
  ops::KvLayout decode_layout = handoff_layout(ops::KvFormat::kF8E4M3);
  std::int64_t bytes_in_flight_max = 1 << 20;
  kv_transfer::SenderOptions sender;
  kv_transfer::ReceiverOptions receiver;
  // Several pairs on one transport: each has numbers of its own.
  std::shared_ptr<kv_transfer::LoopbackTransport> transport;
  kv_transfer::PeerId prefill_peer = kPrefillPeer;
  kv_transfer::PeerId decode_peer = kDecodePeer;

  HandoffPairOptions() {
    sender.model_digest = receiver.model_digest = "model";
    sender.kv_len_max = receiver.kv_len_max = 512;
    sender.chunk_pages = receiver.chunk_pages_max = 2;
    sender.timeout = receiver.timeout = base::Nanoseconds(1'000'000'000);
    sender.resend_interval = receiver.resend_interval = base::Nanoseconds(10'000'000);
  }
};

// What the decode side does with offers.
enum class OnOffer : std::uint8_t { kAccept, kReject, kWait };

class HandoffPair {
 public:
  explicit HandoffPair(const HandoffPairOptions& options = {}) : transport(options.transport), options_(options) {
    prefill_pool =
        std::move(*kv_cache::PagePool::create(*backend, *stream, options.prefill_layout, options.prefill_pages));
    decode_pool =
        std::move(*kv_cache::PagePool::create(*backend, *stream, options.decode_layout, options.decode_pages));
    if (transport == nullptr) {
      transport = std::make_shared<kv_transfer::LoopbackTransport>(
          kv_transfer::LoopbackOptions{.bytes_in_flight_max = options.bytes_in_flight_max});
    }
    if (options.receiver.integrity >= kv_cache::IntegrityLevel::kDigest) {
      digests = std::move(*kv_cache::DigestChecker::create(*backend));
      options_.sender.digests = digests.get();
    }
    start_prefill();
    start_decode();
  }

  // (Again.) What was running is lost, and so are its leases' holders: use it with nothing going on, or on purpose.
  void start_prefill() {
    sender.reset();
    prefill_endpoint.reset();
    prefill_endpoint = transport->make_endpoint(options_.prefill_peer);
    sender = std::move(
        *kv_transfer::Sender::create(*backend, *stream, *prefill_pool, *prefill_endpoint, clock, options_.sender));
  }
  void stop_prefill() {
    sender.reset();
    prefill_endpoint.reset();
  }
  void start_decode() {
    receiver.reset();
    decode_endpoint.reset();
    decode_endpoint = transport->make_endpoint(options_.decode_peer);
    receiver = std::move(
        *kv_transfer::Receiver::create(*backend, *stream, *decode_pool, *decode_endpoint, clock, options_.receiver));
  }
  void stop_decode() {
    receiver.reset();
    decode_endpoint.reset();
  }

  // A prefilled sequence: random BF16 values (and index keys, where layers have them) in its slots, NaN in the slots
  // that it does not use.
  std::vector<Lease> prefill(std::int32_t kv_len) {
    std::vector<Lease> leases;
    const std::int32_t pages = (kv_len + kHandoffPageSize - 1) / kHandoffPageSize;
    for (std::int32_t j = 0; j < pages; ++j) {
      leases.push_back(*prefill_pool->allocate(*stream, kv_cache::owner_of_sequence(next_sequence_), j));
    }
    ++next_sequence_;
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (std::int32_t layer = 0; layer < kHandoffLayers; ++layer) {
      for (int part = 0; part < prefill_pool->layout().layer_parts(layer); ++part) {
        const std::int32_t elements = prefill_pool->layout().parts[static_cast<std::size_t>(part)].elements;
        for (std::int32_t p = 0; p < pages * kHandoffPageSize; ++p) {
          if (prefill_pool->layout().part_has_scales(part)) {
            write_index_keys(leases, layer, part, p, p < kv_len ? normal(rng_) : std::nanf(""));
            continue;
          }
          for (std::int32_t e = 0; e < elements; ++e) {
            const float scale = std::exp2(static_cast<float>(p % 9) - 4.0f);
            base::BF16 value = base::to_bf16(p % 17 == 3 ? 0.0f : normal(rng_) * scale);  // Some rows are all zero.
            if (p >= kv_len) value = base::BF16{0x7fc0};
            std::memcpy(source_row(leases, layer, part, p) + 2 * e, &value, 2);
          }
        }
      }
    }
    written(*prefill_pool, leases, kv_len);
    return leases;
  }
  // As after a step that wrote kv_len tokens to them; at levels with digests, with what it would have recorded.
  void written(kv_cache::PagePool& pool, const std::vector<Lease>& leases, std::int32_t kv_len) {
    for (std::int32_t j = 0; j < std::ssize(leases); ++j) {
      const Lease& lease = leases[static_cast<std::size_t>(j)];
      pool.begin_write(lease);
      pool.end_write(lease, filled(kv_len, j));
    }
    if (digests == nullptr) return;
    for (const ops::RowVerdict& verdict : digests->check_pages(*stream, pool, leases)) {
      pool.digests()[verdict.page_id] = verdict.found;
    }
  }
  static std::int32_t filled(std::int32_t kv_len, std::int32_t position) {
    return std::min(kv_len - position * kHandoffPageSize, kHandoffPageSize);
  }

  kv_transfer::HandoffId offer(const std::vector<Lease>& leases, std::int32_t kv_len,
                               kv_transfer::LayerReadiness readiness = kv_transfer::LayerReadiness::kAll,
                               kv_transfer::PeerId peer = kDecodePeer) {
    kv_transfer::HandoffRequest request;
    request.id = ++next_handoff_;
    request.peer = peer;
    request.blob = {std::byte{1}, std::byte{2}, std::byte{static_cast<unsigned char>(request.id)}};
    request.leases = leases;
    request.kv_len = kv_len;
    request.readiness = readiness;
    const base::Status status = sender->offer(request);
    EXPECT_TRUE(status.ok()) << status.to_string();
    sending[request.id] = leases;
    return request.id;
  }

  // One step of an engine's loop; of both. True when there was something to do.
  bool step_sender() {
    const bool worked = sender != nullptr && sender->tick();
    take_send_events();
    return worked;
  }
  bool step_receiver() {
    const bool worked = receiver != nullptr && receiver->tick();
    take_receive_events();
    return worked;
  }
  bool step() {
    const bool sent = step_sender();
    return step_receiver() || sent;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  // Steps, with time passing, until nothing is going on and nobody waits for anything.
  void run_out(int count = 400) {
    for (int i = 0; i < count; ++i) {
      const bool worked = step();
      const bool waiting = (sender != nullptr && sender->next_deadline().has_value()) ||
                           (receiver != nullptr && receiver->next_deadline().has_value());
      if (!worked && !waiting) return;
      clock.advance(base::Nanoseconds(5'000'000));
    }
  }

  void take_send_events() {
    if (sender == nullptr) return;
    for (kv_transfer::SendEvent& event : sender->take_events()) {
      EXPECT_FALSE(send_events.contains(event.id)) << "two terminal events";
      for (const Lease& lease : sending.at(event.id)) EXPECT_TRUE(prefill_pool->release(*stream, lease).ok());
      sending.erase(event.id);
      send_events[event.id] = std::move(event);
    }
  }

  void take_receive_events() {
    if (receiver == nullptr) return;
    for (kv_transfer::ReceiveEvent& event : receiver->take_events()) std::visit([this](auto& e) { on(e); }, event);
  }

  void on(kv_transfer::OfferReceived& event) {
    EXPECT_FALSE(offers.contains(event.key));
    offers[event.key] = event;
    if (on_offer == OnOffer::kAccept) accept(event.key);
    if (on_offer == OnOffer::kReject) receiver->reject(event.key, base::resource_exhausted("the decode pool is full"));
  }
  void on(kv_transfer::HandoffCommitted& event) {
    EXPECT_FALSE(committed.contains(event.key) || aborted.contains(event.key)) << "two terminal events";
    committed[event.key] = event;
    std::int32_t position = 0;
    for (const Lease& lease : receiving.at(event.key)) {
      const std::int32_t slots = filled(offers.at(event.key).kv_len, position++);
      if (decode_pool->state(lease.page) == kv_cache::PageState::kInTransfer) decode_pool->end_receive(lease, slots);
    }
  }
  void on(kv_transfer::HandoffAborted& event) {
    EXPECT_FALSE(committed.contains(event.key) || aborted.contains(event.key)) << "two terminal events";
    for (const auto& [lease, cause] : event.quarantine) {
      EXPECT_TRUE(decode_pool->is_current(lease));
      decode_pool->quarantine(*stream, lease.page, event.status.message(), cause);
    }
    fence_received(event.key);
    release_received(event.key);
    aborted[event.key] = event;
  }
  void on(kv_transfer::HandoffFenced& event) {
    EXPECT_TRUE(aborted.contains(event.key));
    fenced[event.key] = event;
    for (const kv_cache::PageId page : event.pages) decode_pool->fence(*stream, page);
  }

  // Allocates what is not in `cached` and accepts; rejects, and gives all back, when there are not enough pages.
  void accept(const HandoffKey& key, const std::vector<Lease>& cached = {}) {
    const std::int32_t kv_len = offers.at(key).kv_len;
    std::vector<Lease> leases = cached;
    const auto pages = static_cast<std::size_t>((kv_len + kHandoffPageSize - 1) / kHandoffPageSize);
    while (leases.size() < pages) {
      const auto lease = decode_pool->allocate(*stream, kv_cache::owner_of_sequence(1000 + key.id),
                                               static_cast<std::int32_t>(leases.size()));
      if (!lease.has_value()) {
        for (const Lease& given : leases) EXPECT_TRUE(decode_pool->release(*stream, given).ok());
        receiver->reject(key, lease.error());
        return;
      }
      leases.push_back(*lease);
    }
    for (std::size_t j = cached.size(); j < pages; ++j) {
      poison(leases[j].page);
      decode_pool->begin_receive(leases[j]);
    }
    receiving[key] = leases;
    const base::Status accepted = receiver->accept(key, leases, static_cast<std::int32_t>(cached.size()));
    if (!accepted.ok()) {
      fence_received(key);
      release_received(key);
    }
  }

  // The peer writes to none of the pages that are still in transfer.
  void fence_received(const HandoffKey& key) {
    const auto it = receiving.find(key);
    if (it == receiving.end()) return;
    for (const Lease& lease : it->second) {
      const bool current = decode_pool->is_current(lease);
      if (current && decode_pool->state(lease.page) == kv_cache::PageState::kInTransfer) {
        decode_pool->fence(*stream, lease.page);
      }
    }
  }

  void release_received(const HandoffKey& key) {
    const auto it = receiving.find(key);
    if (it == receiving.end()) return;
    for (const Lease& lease : it->second) EXPECT_TRUE(decode_pool->release(*stream, lease).ok());
    receiving.erase(it);
  }

  // Nothing is going on, nothing is leased, nothing is quarantined except `quarantined` pages of the decode pool.
  void expect_balance(std::int64_t quarantined = 0) {
    EXPECT_EQ(sender == nullptr ? 0 : sender->live(), 0);
    EXPECT_EQ(receiver == nullptr ? 0 : receiver->live(), 0);
    while (!receiving.empty()) release_received(receiving.begin()->first);
    for (kv_cache::PagePool* pool : {prefill_pool.get(), decode_pool.get()}) {
      const base::Status sound = pool->audit(*stream, {});
      EXPECT_TRUE(sound.ok()) << sound.to_string();
      EXPECT_EQ(pool->double_frees(), 0);
      EXPECT_EQ(pool->counts().leased, 0);
    }
    EXPECT_EQ(prefill_pool->counts().quarantined, 0);
    EXPECT_EQ(decode_pool->counts().quarantined, quarantined);
  }

  std::byte* source_row(const std::vector<Lease>& leases, int layer, int part, std::int32_t position) {
    return prefill_pool->cache().page_data(layer, part, leases[static_cast<std::size_t>(position / 64)].page) +
           position % 64 * prefill_pool->layout().row_bytes(part);
  }

  std::byte* source_scales(const std::vector<Lease>& leases, int layer, int part, std::int32_t position) {
    return prefill_pool->cache().page_scales(layer, part, leases[static_cast<std::size_t>(position / 64)].page) +
           position % 64 * prefill_pool->layout().row_scale_bytes(part);
  }

  // What tells a used slot from an unused one: bytes that no handoff writes, NaN as data and as scale.
  void poison(kv_cache::PageId page) {
    const ops::KvLayout& layout = decode_pool->layout();
    for (int layer = 0; layer < kHandoffLayers; ++layer) {
      for (int part = 0; part < layout.layer_parts(layer); ++part) {
        std::memset(decode_pool->cache().page_data(layer, part, page), 0x7f,
                    static_cast<std::size_t>(layout.row_bytes(part) * kHandoffPageSize));
        std::memset(decode_pool->cache().page_scales(layer, part, page), 0xff,
                    static_cast<std::size_t>(layout.row_scale_bytes(part) * kHandoffPageSize));
      }
    }
  }

  std::unique_ptr<ops::Backend> backend = backends::cpu::make_reference_backend();
  std::unique_ptr<ops::Stream> stream = backend->make_stream();
  base::ManualClock clock;
  std::unique_ptr<kv_cache::DigestChecker> digests;  // At levels with digests.
  std::unique_ptr<kv_cache::PagePool> prefill_pool;
  std::unique_ptr<kv_cache::PagePool> decode_pool;
  std::shared_ptr<kv_transfer::LoopbackTransport> transport;
  std::unique_ptr<kv_transfer::Endpoint> prefill_endpoint;
  std::unique_ptr<kv_transfer::Endpoint> decode_endpoint;
  std::unique_ptr<kv_transfer::Sender> sender;
  std::unique_ptr<kv_transfer::Receiver> receiver;

  OnOffer on_offer = OnOffer::kAccept;
  std::map<kv_transfer::HandoffId, std::vector<Lease>> sending;
  std::map<HandoffKey, std::vector<Lease>> receiving;  // Committed ones too, until they are released.
  std::map<kv_transfer::HandoffId, kv_transfer::SendEvent> send_events;
  std::map<HandoffKey, kv_transfer::OfferReceived> offers;
  std::map<HandoffKey, kv_transfer::HandoffCommitted> committed;
  std::map<HandoffKey, kv_transfer::HandoffAborted> aborted;
  std::map<HandoffKey, kv_transfer::HandoffFenced> fenced;

 private:
  // Codes that are not NaN under one scale, or NaN where the scale is.
  void write_index_keys(const std::vector<Lease>& leases, int layer, int part, std::int32_t position, float scale) {
    std::byte* row = source_row(leases, layer, part, position);
    for (std::int64_t e = 0; e < prefill_pool->layout().row_bytes(part); ++e) {
      row[e] = std::isnan(scale) ? std::byte{0xff} : static_cast<std::byte>(rng_() % 0x7f);
    }
    std::memcpy(source_scales(leases, layer, part, position), &scale, sizeof scale);
  }

  HandoffPairOptions options_;
  std::uint64_t next_sequence_ = 1;
  kv_transfer::HandoffId next_handoff_ = 0;
  std::mt19937 rng_{20261129};
};

}  // namespace tessera::tests
