// One unified engine, or a prefill and a decode engine, of an OracleServer. Turned by hand on one thread with a manual
// clock (deterministic: a failure repeats), or with real threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/base/clock.h"
#include "tests/serving/oracle_server.h"

namespace tessera::test_support {

enum class Pools : std::uint8_t { kUnified, kSplit };
enum class Driving : std::uint8_t { kByHand, kThreads };

struct HarnessOptions {
  Pools pools = Pools::kSplit;
  OracleKv kv = OracleKv::kKeysAndValues;
  Driving driving = Driving::kByHand;
  std::int32_t page_size = 4;
  std::int64_t pages = 64;          // Of the unified or decode pool.
  std::int64_t prefill_pages = 64;  // Of the prefill pool.
  std::int64_t running_max = 16;
  std::int64_t chunk = 16;
  std::int64_t scored_chunk = 16;
  std::int64_t context = 4096;
  ops::KvFormat prefill_kv = ops::KvFormat::kBF16;
  ops::KvFormat decode_kv = ops::KvFormat::kF8E4M3;
  base::Nanoseconds handoff_timeout = std::chrono::seconds(120);
  std::int64_t prefill_ahead_max = 16;
  engine::IntegrityConfig integrity;                // Of all engines.
  engine::StepObserver* first_observer = nullptr;   // Of the unified or prefill engine.
  engine::StepObserver* decode_observer = nullptr;  // Of the decode engine.
  std::function<void()> before_decode_forward;
  std::function<void(const models::ForwardBatch&)> on_first_batch;   // Of the unified or prefill engine.
  std::function<void(const models::ForwardBatch&)> on_decode_batch;  // Of the decode engine.
  std::size_t event_queue = 1 << 16;
  router::RouterOptions router;
  ops::Backend* backend = nullptr;  // Instead of a reference backend; outlives the harness.
};

// What a subscriber heard of one sequence.
struct Heard {
  std::vector<request::TokenEvent> tokens;
  std::vector<request::PromptLogprobsEvent> prompt_logprobs;
  std::optional<request::FinishReason> finished;
  std::optional<base::Status> failed;
  request::SequenceReport report;
  int terminals = 0;
  int after_terminal = 0;  // Events that came too late.

  bool ended() const { return terminals > 0; }
  std::vector<std::int32_t> ids() const;
};

class ServingHarness {
 public:
  explicit ServingHarness(const HarnessOptions& options);
  ~ServingHarness();

  // Submits; the status must be ok.
  request::SequenceId submit(std::vector<std::int32_t> prompt, request::SamplingParams sampling);
  request::SequenceId submit(std::vector<std::int32_t> prompt, std::int32_t max_tokens);
  base::Status try_submit(std::vector<std::int32_t> prompt, request::SamplingParams sampling);
  void abort(request::SequenceId id) { router().abort(id); }

  // By hand: one turn of every engine and of the router. True when something moved.
  bool turn();
  // Until every submitted sequence has ended (and, by hand, nothing moves). Fails the test after too long.
  void run_until_ended();
  // By hand: until `condition`; fails the test when it does not become true.
  template <typename Condition>
  bool run_until(Condition condition) {
    for (int i = 0; i < 200'000; ++i) {
      if (condition()) return true;
      turn();
    }
    return condition();
  }

  Heard heard(request::SequenceId id) const;
  std::int64_t live() const { return server_->router().live(); }
  router::Router& router() { return server_->router(); }
  kv_transfer::LoopbackTransport& transport() { return server_->transport(); }
  base::ManualClock& clock() { return manual_clock_; }
  engine::Engine& first() { return server_->engine(0); }                             // Unified or prefill.
  engine::Engine& decode() { return server_->engine(server_->engine_count() - 1); }  // Unified or decode.
  bool split() const { return options_.pools == Pools::kSplit; }
  Flavors flavors() const { return server_->flavors(); }
  // What an undisturbed run of the prompt generates.
  std::vector<std::int32_t> expected(const std::vector<std::int32_t>& prompt, std::int64_t count) const;
  std::vector<std::int32_t> tokens_so_far(request::SequenceId id) const { return heard(id).ids(); }

  // Ends threads; then nobody holds a page, and both pools' accounts balance. Quarantined pages are allowed only as
  // many as said.
  void expect_pages_balance(std::int64_t quarantined_first = 0, std::int64_t quarantined_decode = 0);
  std::int64_t preemptions();

 private:
  router::Subscriber listen(request::SequenceId id);

  const HarnessOptions options_;
  base::ManualClock manual_clock_;
  base::SystemClock system_clock_;
  const std::unique_ptr<ops::Backend> reference_;
  std::unique_ptr<OracleServer> server_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<request::SequenceId, Heard> heard_;
};

// A prompt of pseudo-random tokens.
std::vector<std::int32_t> make_prompt(std::uint64_t seed, std::int64_t length);
// The same after a beginning that others may have, too.
std::vector<std::int32_t> make_prompt_after(std::vector<std::int32_t> beginning, std::uint64_t seed,
                                            std::int64_t length);
request::SamplingParams greedy(std::int32_t max_tokens);

}  // namespace tessera::test_support
