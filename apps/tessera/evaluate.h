// `tessera evaluate`: the quality of one precision plan, or of several against each other, by tasks with published
// rules and by distances between token distributions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend_choice.h"
#include "tessera/base/status.h"

namespace tessera::app {

struct EvaluateOptions {
  std::string model;               // Folder; of plans that name none.
  std::vector<std::string> plans;  // evaluate_plans.h has their form.
  std::vector<std::string> urls;
  std::vector<std::string> tasks;
  std::vector<std::string> cells;
  std::int64_t limit = 0;
  std::string data;  // Folders; empty: those that come with the program.
  std::string pocket_tasks;

  std::optional<bool> distances;  // Empty: where the plans have them.
  std::uint64_t seed = 1;
  double equivalence_points = 2.0;

  std::string json;  // Files; empty: none.
  std::string html;
  std::string journal;  // Empty: beside the JSON.
  bool resume = false;
  bool fresh = false;

  std::int64_t concurrency = 8;
  BackendOptions backend;
  bool list_tasks = false;
  bool quiet = false;

  std::string version;
  std::string command;  // As it was typed.
};

// The program's name and arguments as one can type them again.
std::string typed_command(int argc, const char* const* argv);

// The report goes to standard output, all else to standard error. Ok whatever the report says; cancelled by a signal:
// everything that was answered is in the journal.
base::Status run_evaluate(const EvaluateOptions& options);

}  // namespace tessera::app
