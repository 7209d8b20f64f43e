#include "tessera/kv_transfer/loopback_transport.h"

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::kv_transfer {

namespace {

// What waits for one endpoint, and how to wake it.
struct Mailbox {
  std::deque<Envelope> messages;
  std::map<PeerId, std::int64_t> bytes_from;  // In flight, by sender.
  std::set<PeerId> refused;                   // Senders that were told kFull and not yet woken.

  // Apart from the transport's mutex, so that no lock of ours is held around a foreign function except this one, which
  // keeps the function alive while it runs.
  std::mutex wakeup_mutex;
  std::function<void()> wakeup;

  void wake() {
    std::lock_guard lock(wakeup_mutex);
    if (wakeup) wakeup();
  }
};

}  // namespace

struct LoopbackTransport::State {
  explicit State(const LoopbackOptions& options_in) : options(options_in) {}

  const LoopbackOptions options;
  std::mutex mutex;
  std::map<PeerId, std::shared_ptr<Mailbox>> mailboxes;
  Filter filter;

  std::shared_ptr<Mailbox> find(PeerId id) {
    std::lock_guard lock(mutex);
    const auto it = mailboxes.find(id);
    return it == mailboxes.end() ? nullptr : it->second;
  }

  void push(PeerId from, PeerId to, std::vector<std::byte> message) {
    std::shared_ptr<Mailbox> mailbox;
    {
      std::lock_guard lock(mutex);
      const auto it = mailboxes.find(to);
      if (it == mailboxes.end()) return;
      mailbox = it->second;
      mailbox->bytes_from[from] += std::ssize(message);
      mailbox->messages.push_back(Envelope{from, std::move(message)});
    }
    mailbox->wake();
  }
};

class LoopbackTransport::LoopbackEndpoint final : public Endpoint {
 public:
  LoopbackEndpoint(std::shared_ptr<State> state, std::shared_ptr<Mailbox> mailbox, PeerId id)
      : state_(std::move(state)), mailbox_(std::move(mailbox)), id_(id) {}

  ~LoopbackEndpoint() override {
    set_wakeup({});
    std::vector<std::shared_ptr<Mailbox>> others;
    {
      std::lock_guard lock(state_->mutex);
      state_->mailboxes.erase(id_);
      for (const auto& [id, mailbox] : state_->mailboxes) others.push_back(mailbox);
    }
    for (const auto& mailbox : others) mailbox->wake();
  }

  PeerId id() const override { return id_; }
  std::int64_t message_bytes_max() const override { return state_->options.bytes_in_flight_max; }

  SendResult try_send(PeerId to, std::vector<std::byte>&& message) override {
    TESSERA_CHECK(std::ssize(message) <= message_bytes_max(), std::to_string(message.size()) + " bytes");
    Filter filter;
    {
      std::lock_guard lock(state_->mutex);
      const auto it = state_->mailboxes.find(to);
      if (it == state_->mailboxes.end()) return SendResult::kGone;
      Mailbox& mailbox = *it->second;
      if (mailbox.bytes_from[id_] + std::ssize(message) > state_->options.bytes_in_flight_max) {
        mailbox.refused.insert(id_);
        return SendResult::kFull;
      }
      filter = state_->filter;
    }
    std::vector<std::byte> taken = std::move(message);
    if (filter) {
      filter(id_, to, std::move(taken));
    } else {
      state_->push(id_, to, std::move(taken));
    }
    return SendResult::kSent;
  }

  std::optional<Envelope> poll() override {
    std::optional<Envelope> envelope;
    std::shared_ptr<Mailbox> refused;
    {
      std::lock_guard lock(state_->mutex);
      if (mailbox_->messages.empty()) return std::nullopt;
      envelope = std::move(mailbox_->messages.front());
      mailbox_->messages.pop_front();
      mailbox_->bytes_from[envelope->from] -= std::ssize(envelope->bytes);
      if (mailbox_->refused.erase(envelope->from) > 0) {
        const auto it = state_->mailboxes.find(envelope->from);
        if (it != state_->mailboxes.end()) refused = it->second;
      }
    }
    if (refused != nullptr) refused->wake();
    return envelope;
  }

  bool reachable(PeerId peer) const override { return state_->find(peer) != nullptr; }

  void set_wakeup(std::function<void()> wakeup) override {
    std::lock_guard lock(mailbox_->wakeup_mutex);
    mailbox_->wakeup = std::move(wakeup);
  }

 private:
  const std::shared_ptr<State> state_;
  const std::shared_ptr<Mailbox> mailbox_;
  const PeerId id_;
};

LoopbackTransport::LoopbackTransport(const LoopbackOptions& options) : state_(std::make_shared<State>(options)) {
  TESSERA_CHECK(options.bytes_in_flight_max > 0);
}

LoopbackTransport::~LoopbackTransport() = default;

std::unique_ptr<Endpoint> LoopbackTransport::make_endpoint(PeerId id) {
  auto mailbox = std::make_shared<Mailbox>();
  std::lock_guard lock(state_->mutex);
  const bool added = state_->mailboxes.emplace(id, mailbox).second;
  TESSERA_CHECK(added, "two endpoints with number " + std::to_string(id));
  return std::make_unique<LoopbackEndpoint>(state_, std::move(mailbox), id);
}

void LoopbackTransport::set_filter(Filter filter) {
  std::lock_guard lock(state_->mutex);
  state_->filter = std::move(filter);
}

void LoopbackTransport::deliver(PeerId from, PeerId to, std::vector<std::byte> message) {
  state_->push(from, to, std::move(message));
}

}  // namespace tessera::kv_transfer
