// A sequence inside one engine, and the table of all of them. Used from the engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/kv_cache/lease.h"
#include "tessera/kv_transfer/receiver.h"
#include "tessera/request/messages.h"

namespace tessera::engine {

using request::SequenceId;

// Where a sequence is in its life here. A sequence that ended is not in the table.
//   unified:  kWaiting -> kComputing -> (end), and back to kWaiting by preemption
//   prefill:  kWaiting -> kComputing -> kHandoffPending -> kSending -> (end)
// (both back to kWaiting from any state after a failed check, with OnIntegrityError::kRecompute)
//   decode:   kWaiting -> kReceiving -> kComputing -> (end)
// A decode engine without room leaves what it is offered in kWaiting; on the prefill engine it is in kSending all the
// while. Prompts wait in the prefill engine's kWaiting while too many are there (HandoffConfig::prefill_ahead_max).
enum class SequenceState : std::uint8_t {
  kWaiting,         // Holds no pages.
  kComputing,       // Prefill, replay or decode; holds pages.
  kHandoffPending,  // Prefill is over; the handoff has not begun.
  kSending,         // Offered: the sender reads its pages, now or once the decode engine has room.
  kReceiving,       // The receiver writes its pages.
};

struct Sequence {
  request::SequenceSpec spec;
  // All emitted so far, by this engine or before it got here.
  std::vector<std::int32_t> generated;
  SequenceState state = SequenceState::kWaiting;
  // The client left while a handoff holds the pages: it ends without an event as soon as the handoff has.
  bool aborted = false;
  // A page that it holds, the first one that was found damaged after steps had read it: what it emitted may be wrong
  // already, so that it ends, whatever OnIntegrityError says. The lease as it was then, for the log.
  std::optional<kv_cache::Lease> read_damage;
  // How often it was computed again after a failed check, on this engine or before it got here.
  std::int32_t integrity_recomputes = 0;
  request::EngineId decode_engine = -1;
  std::vector<kv_cache::Lease> leases;                 // Logical page j is leases[j].
  std::uint64_t leases_epoch = 0;                      // Changes, to a number never used before, whenever leases does.
  std::int64_t prompt_logprobs_told = 0;               // Of its prompt tokens, those with a PromptLogprobsEvent.
  std::int64_t computed = 0;                           // Tokens whose KV exists in the pages.
  bool prompt_cached = false;                          // Its prompt pages were offered to the prefix cache.
  std::uint64_t send_id = 0;                           // Of its last handoff from here; 0: there was none.
  std::optional<kv_transfer::HandoffKey> receive_key;  // On a decode engine, until the commit.
  request::SequenceReport report;
  base::Nanoseconds started{0};  // Of the current phase of work, for the report.

  std::int64_t prompt_tokens() const { return std::ssize(spec.prompt); }
  // Whoever has generated a token has told the log-probabilities of the whole prompt before.
  bool is_scored() const { return spec.sampling.prompt_logprobs.has_value() && generated.empty(); }
  // The client may have acted on it.
  bool has_emitted() const { return !generated.empty() || prompt_logprobs_told > 0; }
  std::int64_t all_tokens() const { return std::ssize(spec.prompt) + std::ssize(generated); }
  std::int32_t token_at(std::int64_t index) const {
    return index < prompt_tokens() ? spec.prompt[static_cast<std::size_t>(index)]
                                   : generated[static_cast<std::size_t>(index - prompt_tokens())];
  }
};

// In ascending order of id, which is the order of arrival. References stay valid until the sequence is erased.
class SequenceTable {
 public:
  // Remembers so many ids of sequences that were aborted.
  static constexpr std::size_t kTombstonesMax = 16384;

  Sequence* find(SequenceId id) {
    const auto found = sequences_.find(id);
    return found == sequences_.end() ? nullptr : &found->second;
  }
  // The id must be new here.
  Sequence& insert(Sequence sequence) {
    const SequenceId id = sequence.spec.id;
    return sequences_.emplace(id, std::move(sequence)).first->second;
  }
  void erase(SequenceId id) { sequences_.erase(id); }
  std::int64_t size() const { return std::ssize(sequences_); }
  auto begin() { return sequences_.begin(); }
  auto end() { return sequences_.end(); }
  auto begin() const { return sequences_.begin(); }
  auto end() const { return sequences_.end(); }

  // An aborted id: a handoff or a start of it that comes later is refused. The oldest are forgotten first.
  void bury(SequenceId id) {
    if (!buried_.insert(id).second) return;
    burials_.push_back(id);
    if (burials_.size() <= kTombstonesMax) return;
    buried_.erase(burials_.front());
    burials_.pop_front();
  }
  bool is_buried(SequenceId id) const { return buried_.contains(id); }

 private:
  std::map<SequenceId, Sequence> sequences_;
  std::unordered_set<SequenceId> buried_;
  std::deque<SequenceId> burials_;
};

}  // namespace tessera::engine
