// One evaluation: tasks, plans, what was asked of each. The runner (runner.h) fills it, the report (report.h) is made
// of it and of nothing else, and the journal (journal.h) keeps it while it grows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/quality/outcome.h"
#include "tessera/quality/respondent.h"
#include "tessera/quality/task.h"

namespace tessera::quality {

// One plan that was evaluated; the first of an evaluation is the reference that the others are compared with.
struct PlanInfo {
  std::string name;         // As the user named it.
  std::string description;  // What the user asked for: "role=split decode-kv=fp8_e4m3 model=..."
  RespondentInfo respondent;
};

struct TaskOutcomes {
  TaskInfo task;
  std::int64_t questions = 0;  // In the data; those that were chosen are the outcomes.
  std::string data_digest;
  std::vector<std::vector<Outcome>> by_plan;  // [plan][question], in the same order for every plan.
};

// Of one task and one plan against the reference.
struct TaskDistances {
  std::string task;
  std::size_t plan = 0;  // Index into Evaluation::plans, at least 1.
  std::vector<PassageDistances> passages;
};

struct Evaluation {
  std::string version;  // Of tessera.
  std::string command;  // As it was typed, for the record.
  std::string date;     // "2026-11-30", UTC.
  std::int64_t limit = 0;
  std::uint64_t seed = 0;           // Of resampling.
  double equivalence_points = 2.0;  // The margin of "equivalent within X points".
  std::vector<PlanInfo> plans;
  std::vector<TaskOutcomes> tasks;
  std::vector<TaskDistances> distances;
};

}  // namespace tessera::quality
