// Drives the engines of one server: decides which engine runs a sequence, follows it through prefill, handoff and
// decode, starts it again where it lost its pages, and tells its subscriber what happened.
//
// Its promises to a subscriber, whatever engines do:
//   - tokens come in the order of their index, each index exactly once; so do the log-probabilities of a prompt, if
//   they
//     were asked for, all of them before the first token;
//   - exactly one terminal event (finished or failed) comes, as the last one, for every sequence that submit accepted;
//   - all calls for one sequence are made on one thread at a time, and none after the terminal event.
//
// Threads: submit, abort and the queries may be called from any thread. Subscribers are called on the router's thread
// (the one that start() made, or the caller of pump()), with no lock held; they may call submit and abort, and must not
// block: everything waits behind them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/status.h"
#include "tessera/request/messages.h"

namespace tessera::router {

// What a subscriber is told. An aborted sequence ends with SequenceFailed and StatusCode::kCancelled. The reports are
// summed over all engines that the sequence passed through.
using SequenceEvent =
    std::variant<request::TokenEvent, request::PromptLogprobsEvent, request::SequenceFinished, request::SequenceFailed>;
using Subscriber = std::function<void(SequenceEvent)>;

struct RouterOptions {
  std::int64_t live_sequences_max = 1024;  // More are refused with resource_exhausted.
  // readiness() fails when there is work and no engine has advanced a token for so long.
  base::Nanoseconds stall_after = std::chrono::seconds(30);
  // readiness() fails when an engine has sent no stats for so long.
  base::Nanoseconds silent_after = std::chrono::seconds(10);
};

// What metrics are made of. Counters count from the start of the router.
struct RouterSnapshot {
  struct EngineState {
    request::EngineInfo info;
    request::EngineStats stats;  // The latest that the engine sent.
  };
  std::vector<EngineState> engines;
  std::int64_t live = 0;
  std::int64_t submitted = 0;
  std::int64_t refused = 0;  // By submit.
  std::int64_t finished_stop = 0;
  std::int64_t finished_length = 0;
  std::int64_t failed = 0;     // Cancelled ones not counted.
  std::int64_t corrupted = 0;  // Of the failed: by a page check.
  std::int64_t cancelled = 0;
  std::int64_t restarts = 0;          // After preemptions, and after checks that failed on a decode engine.
  std::int64_t prompt_tokens = 0;     // Of accepted sequences.
  std::int64_t generated_tokens = 0;  // Emitted to subscribers.
};

class Router {
 public:
  // The endpoints and the queue outlive the router. Every engine sends its events to `events`. There must be either
  // unified engines only, or at least one prefill and one decode engine, all with the same page size, and each
  // prefill engine's KV format converts to each decode engine's; invalid_argument otherwise.
  static base::Result<std::unique_ptr<Router>> create(const RouterOptions& options,
                                                      std::vector<request::EngineEndpoint*> engines,
                                                      request::EngineEventQueue& events, const base::Clock& clock);
  ~Router();  // stop()
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Starts the router's thread, which pumps until stop(). Without it, somebody else calls pump.
  void start();
  // Waits for one event at most `timeout`, handles all that are there, and returns how many they were.
  std::int64_t pump(base::Nanoseconds timeout);
  // Ends the thread, and every live sequence with unavailable. Idempotent. Call it before the engines are destroyed.
  void stop();

  // Ids come in order of arrival: engines serve the smaller first and preempt the larger. Take one for each sequence
  // when its request arrives.
  request::SequenceId next_id();

  // Takes a sequence in, or refuses it at once, and then its subscriber is never called:
  //   out_of_range        the prompt and one token (max_tokens 0: the prompt) do not fit the context, or the pool of
  //   one
  //                       of the engines
  //   resource_exhausted  too many live sequences, or every engine's queue is full
  //   unavailable         draining or stopped
  //   invalid_argument    an empty prompt, max_tokens < 0, or an id that is 0 or live
  base::Status submit(request::SequenceSpec spec, Subscriber subscriber);
  // Ends a live sequence at every engine that may know it; its terminal event (kCancelled) still comes, on the router's
  // thread. An unknown or ended id is ignored.
  void abort(request::SequenceId id);
  // Ends every live sequence as abort() does, but with `status`: for what their clients should be told is an error.
  void end_all(const base::Status& status);
  void flush_prefix_cache();
  // Tells every engine to rewrite its quarantined pages and to use those again that read back right. What came of it is
  // in the engines' stats and in the log.
  void audit_quarantined_pages();

  // From now on submit refuses; live sequences go on.
  void begin_drain();
  std::int64_t live() const;

  // ok, or why this server should get no traffic now: draining, an engine that has ended or is silent, or work that
  // does not advance.
  base::Status readiness() const;
  RouterSnapshot snapshot() const;
  // The engines, constant over the router's life.
  std::vector<request::EngineInfo> engines() const;
  // Prompt and generated tokens of one sequence at most: what every pair of engines allows.
  std::int64_t context_tokens_max() const;

 private:
  struct State;
  explicit Router(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  std::jthread thread_;
};

}  // namespace tessera::router
