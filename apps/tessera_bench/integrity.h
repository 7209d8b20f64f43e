// `tessera bench integrity`: what the checks of KV pages cost a decode step, at each level. A real engine decodes a
// full batch; in short alternating blocks of steps, all in one process, it runs at each level and without any check.
//
// Clocked are the check inside of the step (the engine's own clocks) and, from outside, the time from one token of a
// sequence to its next, which is one turn of the loop for every sequence of the batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend_choice.h"
#include "decode_engine.h"
#include "statistics.h"
#include "tessera/kv_cache/integrity.h"

namespace tessera::bench {

struct IntegrityOptions {
  std::string command;  // As it was given, for the report.
  std::string model;    // Folder.
  app::BackendOptions backend;
  std::string kv_cache_dtype = "auto";  // fp8_e4m3, as decode pools have it.
  std::int64_t page_size = 64;
  std::int64_t batch = 32;
  std::int64_t context = 2048;  // Tokens of a sequence when it is first measured.
  std::int64_t decode = 64;     // Steps of each level, and without a check, in a repeat.
  std::int64_t block = 4;       // Of them, one after another.
  std::int64_t repeats = 5;     // With sequences, and so pages, of their own.
  std::vector<std::string> levels{"tags"};
  std::int64_t kv_sweep_pages_per_second = 64;  // At levels with digests.
  std::string json;                             // A file; none: only the table.
  std::string log_level = "warning";
};

// What was measured of one level; or, unchecked, of steps without a check.
struct MeasuredArm {
  std::string name;
  Checking checking = Checking::kOn;
  std::size_t engine = 0;                       // Arms of one engine decode the same sequences by turns.
  std::vector<std::vector<StepSample>> cycles;  // A block each.
};

struct IntegrityResult {
  std::string backend;
  std::string kv_format;
  std::string weight_format;
  std::string began;        // UTC.
  std::string load_before;  // Load averages of the machine.
  std::string load_after;
  std::vector<MeasuredArm> arms;       // The first is the one without a check.
  std::vector<ContextRange> contexts;  // Of each engine, where its first repeat began.
  std::int64_t context_end = 0;        // The longest at the end of a repeat.
};

struct ArmEstimates {
  Estimate share;          // Of the step, the check inside of it.
  Estimate p50_ms;         // From token to token.
  Estimate p95_ms;         //
  Estimate p50_more_ms;    // Than without a check; 0 of that itself.
  Estimate p95_more_ms;    //
  double check_us = 0.0;   // A step.
  double step_ms = 0.0;    // A step.
  std::int64_t steps = 0;  // Measured.
};
ArmEstimates estimate(const IntegrityResult& result, const MeasuredArm& arm);

base::Result<IntegrityResult> measure_integrity(const IntegrityOptions& options);
// For people, and for programs (JSON with every sample).
std::string integrity_table(const IntegrityOptions& options, const IntegrityResult& result);
std::string integrity_json(const IntegrityOptions& options, const IntegrityResult& result);

}  // namespace tessera::bench
