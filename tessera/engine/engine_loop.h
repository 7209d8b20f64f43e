// The loop of an engine, one turn at a time: receive commands, move handoffs, admit, run a step, emit, publish stats.
// It has no thread of its own (engine.h gives it one; tests and simulations turn it by hand) and never waits: what
// cannot be done now is tried again in the next turn. All of it is used from one thread.
//
// Every turn keeps these:
//   - a token is emitted only after both checks of its step were clean;
//   - a sequence's pages are given back exactly once, when it leaves the table (or waits again);
//   - no verdict is believed once the device has failed: every sequence then ends with that, and the loop does no more
//     than to refuse what is started and to say in its stats why;
//   - nothing is computed, and no handoff begins, while the driver has not taken all events: so tokens leave in order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/status.h"
#include "tessera/engine/command_inbox.h"
#include "tessera/engine/engine_config.h"
#include "tessera/engine/event_outbox.h"
#include "tessera/engine/memory_plan.h"
#include "tessera/engine/sequence.h"
#include "tessera/engine/sequence_pages.h"
#include "tessera/engine/step_runner.h"
#include "tessera/kv_cache/digest_checker.h"
#include "tessera/kv_cache/page_sweep.h"
#include "tessera/kv_transfer/receiver.h"
#include "tessera/kv_transfer/sender.h"
#include "tessera/models/model.h"
#include "tessera/request/messages.h"
#include "tessera/scheduler/scheduler.h"

namespace tessera::fault_injection {
struct LoopAccess;
}

namespace tessera::engine {

// What an engine works with. Model, backend, events and clock outlive it.
struct EngineParts {
  const models::Model& model;
  ops::Backend& backend;
  request::EngineEventQueue& events;
  const base::Clock& clock;
  std::unique_ptr<kv_transfer::Endpoint> endpoint;  // Of prefill and decode engines; its id is the engine's.
  kv_cache::VerifierFactory make_verifier = {};     // Of the step's check; tessera_bench alone sets it.
};

enum class Turn : std::uint8_t {
  kMoved,  // Something was done: there may be more.
  kIdle,   // Nothing can be done before idle_time() is over, or a command or a message comes.
};

class EngineLoop {
 public:
  // Plans and allocates all memory. invalid_argument: a config that makes no sense; resource_exhausted: it does not
  // fit the budget (the message shows the plan) or cannot be had.
  static base::Result<std::unique_ptr<EngineLoop>> create(const EngineConfig& config, EngineParts parts,
                                                          std::shared_ptr<CommandInbox> inbox);
  ~EngineLoop();

  Turn turn();
  // How long the loop may sleep after an idle turn.
  base::Nanoseconds idle_time() const;

  const request::EngineInfo& info() const { return info_; }
  const MemoryPlan& memory_plan() const { return plan_; }
  request::EngineStats stats() const;
  std::int64_t live() { return table_.size(); }

  // The page accounts: every page in one place, every lease held by a sequence (PagePool::audit).
  base::Status audit();
  kv_cache::PagePool& pool() { return *pool_; }

 private:
  friend struct fault_injection::LoopAccess;  // Tests that look at sequences' states and leases.
  EngineLoop(const EngineConfig& config, EngineParts parts, std::shared_ptr<CommandInbox> inbox);
  base::Status allocate();
  base::Status allocate_handoff();

  // engine_loop.cc: the turn.
  bool receive_commands();
  void start(request::StartSequence command);
  base::Status check_start(const request::SequenceSpec& spec, const std::vector<std::int32_t>& generated) const;
  void abort(SequenceId id);
  bool admit();
  bool begin(Sequence& sequence, std::vector<kv_cache::Lease> prefix);
  bool run_step();
  void take_outcome(const StepRow& row, const RowOutcome& outcome);
  void take_prompt_logprobs(Sequence& sequence, const StepRow& row, const RowOutcome& outcome);
  void take_token(Sequence& sequence, const RowOutcome& outcome);
  std::vector<scheduler::SequenceView> views();
  std::int64_t wanted_tokens(const Sequence& sequence) const;
  scheduler::Limits scheduler_limits() const;

  // engine_loop_ends.cc: the ways a sequence leaves.
  void finish(Sequence& sequence, request::FinishReason reason);
  void fail(Sequence& sequence, base::Status status);
  void fail_corrupt(Sequence& sequence, const ops::RowVerdict& verdict, const char* where);
  void recompute_or_fail(Sequence& sequence, base::Status status);
  void condemn(kv_cache::PageId page, const ops::RowVerdict& verdict, const char* where);
  base::Status no_room(std::int32_t integrity_recomputes, base::Status status) const;
  bool recomputes() const { return config_.integrity.on_error == kv_cache::OnIntegrityError::kRecompute; }
  void mark_readers(const kv_cache::Lease& page);
  void end_reader(Sequence& sequence);
  void preempt(Sequence& sequence);
  void start_again(Sequence& sequence);
  void count_time(Sequence& sequence);
  bool device_works();
  void drop(Sequence& sequence);  // Without an event: the client left, or the sequence lives on elsewhere.
  void publish_stats(Turn turn);
  void audit_when_idle();
  void report_audit();
  bool audit_quarantined();

  // engine_loop_integrity.cc: bytes of pages, outside of steps.
  bool names_damaged_page(const Sequence& sequence, const ops::RowVerdict& verdict) const;
  std::span<const ops::RowVerdict> check_bytes(std::span<const kv_cache::Lease> pages);
  std::size_t prove(std::span<const kv_cache::Lease> pages, const char* where);
  bool may_cache_prompt(const Sequence& sequence);
  void check_prefix(std::vector<kv_cache::Lease>& prefix);
  void check_what_was_read(const Sequence& sequence);
  void sweep();

  // engine_loop_handoff.cc.
  bool move_handoffs();
  bool offer_pending();
  void take_send_event(const kv_transfer::SendEvent& event);
  void take_receive_event(kv_transfer::ReceiveEvent event);
  void take_offer(kv_transfer::OfferReceived offer);
  void take_committed(const kv_transfer::HandoffCommitted& event);
  void take_aborted(const kv_transfer::HandoffAborted& event);
  // Of a SendEvent or a HandoffAborted.
  template <typename Event>
  void end_failed_handoff(Sequence& sequence, const Event& event, const std::string& with);
  base::Status accept(Sequence& sequence, std::int64_t cached_pages);

  const EngineConfig config_;
  EngineParts parts_;
  const std::shared_ptr<CommandInbox> inbox_;
  request::EngineInfo info_;
  MemoryPlan plan_;
  std::unique_ptr<ops::Stream> stream_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<kv_cache::PagePool> pool_;
  std::unique_ptr<kv_cache::PrefixCache> cache_;
  std::unique_ptr<SequencePages> pages_;
  std::unique_ptr<kv_cache::DigestChecker> digests_;  // At levels with digests.
  std::optional<kv_cache::PageSweep> sweep_;          // The same.
  std::unordered_set<kv_cache::PageTag> proved_;      // Of prefix hits, for the admissions of one turn.
  std::unique_ptr<kv_transfer::Sender> sender_;       // Prefill.
  std::unique_ptr<kv_transfer::Receiver> receiver_;   // Decode.

  base::Status failure_;  // Of the device; ok while it works.
  SequenceTable table_;
  EventOutbox outbox_;
  std::set<SequenceId> pending_handoffs_;
  std::map<kv_transfer::HandoffId, SequenceId> sending_;
  std::map<kv_transfer::HandoffKey, SequenceId> receiving_;  // Offered ones too.
  kv_transfer::HandoffId last_handoff_ = 0;

  // What admission saw when the head of its queue did not fit: until one of it changes, asking again is idle.
  struct Blocked {
    SequenceId head = 0;
    std::int64_t available = 0;
    std::int64_t holding = 0;
    std::int64_t holding_max = 0;
    friend bool operator==(const Blocked&, const Blocked&) = default;
  };
  std::optional<Blocked> blocked_;
  std::optional<kv_cache::QuarantineAudit> quarantine_audit_;  // Under way.
  bool retry_soon_ = false;                                    // An allocation failed although the plan had room.

  request::EngineStats counters_;  // Only what counts up; stats() adds the rest.
  bool stats_changed_ = true;
  base::Nanoseconds stats_sent_{0};
  base::Nanoseconds audited_{0};
};

}  // namespace tessera::engine
