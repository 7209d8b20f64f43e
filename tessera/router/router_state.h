// What the router knows, and what it does with an event: everything behind its lock. Private to the room.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/request/messages.h"
#include "tessera/router/live_sequence.h"
#include "tessera/router/prefix_estimate.h"
#include "tessera/router/router.h"

namespace tessera::router {

using request::EngineRole;
using request::SequenceId;

// Pages whose prefixes are remembered for each engine.
inline constexpr std::size_t kEstimatedPagesMax = 1 << 17;
// The number of no engine: an event that only wakes the router's thread.
inline constexpr request::EngineId kWakeup = -1;

// Functions named *_locked want the lock held.
struct Router::State {
  struct EngineState {
    request::EngineEndpoint* endpoint = nullptr;
    request::EngineStats stats;
    base::Nanoseconds seen{0};  // Its latest event.
    PrefixEstimate prefixes{kEstimatedPagesMax};
    std::int64_t resident_tokens = 0;  // Of live sequences that will decode there.
    // Commands its queue had no room for; only of live sequences and aborts, so bounded by them.
    std::deque<request::EngineCommand> unsent;
  };
  struct Delivery {
    std::shared_ptr<const Subscriber> subscriber;
    SequenceEvent event;
  };
  enum class Mode : std::uint8_t { kServing, kDraining, kStopped };

  State(const RouterOptions& options_in, request::EngineEventQueue& events_in, const base::Clock& clock_in)
      : options(options_in), events(events_in), clock(clock_in), last_progress(clock_in.now()) {}

  const RouterOptions options;
  request::EngineEventQueue& events;
  const base::Clock& clock;
  std::int64_t context_tokens_max = 0;
  std::atomic<SequenceId> last_id{0};

  mutable std::mutex mutex;
  Mode mode = Mode::kServing;
  std::vector<EngineState> engines;
  std::unordered_map<SequenceId, LiveSequence> live;
  std::vector<SequenceId> ending;  // Live ones with a terminal event.
  RouterSnapshot counts;
  base::Nanoseconds last_progress;

  std::optional<std::size_t> engine_index(request::EngineId id) const {
    for (std::size_t i = 0; i < engines.size(); ++i) {
      if (engines[i].endpoint->info().id == id) return i;
    }
    return std::nullopt;
  }

  std::vector<std::size_t> first_engines_locked(const request::SequenceSpec& spec) const;
  std::optional<std::size_t> decode_engine_locked(const request::SequenceSpec& spec) const;
  static std::int64_t footprint(const LiveSequence& sequence) {
    return std::ssize(sequence.spec.prompt) + sequence.next_index + 1;
  }
  void send_locked(std::size_t engine, request::EngineCommand command);
  void send_unsent_locked();
  void abort_everywhere_locked(const LiveSequence& sequence, SequenceId id);
  void assign_locked(LiveSequence& sequence, std::size_t first, std::optional<std::size_t> decode);
  void unassign_locked(LiveSequence& sequence);

  void handle_locked(request::EngineEvent event, std::vector<Delivery>& deliveries);
  void handle_failed_locked(std::size_t engine, LiveSequence& sequence, request::SequenceFailed failed);
  void restart_if_released_locked(LiveSequence& sequence);
  void end_locked(LiveSequence& sequence, SequenceEvent terminal);
  void end_all_locked(const base::Status& status);
  void deliver_endings_locked(std::vector<Delivery>& deliveries);
  void count_terminal_locked(const SequenceEvent& terminal);
  void wake() { (void)events.try_push({kWakeup, request::EngineStats{}}); }
};

}  // namespace tessera::router
