// Runs an evaluation: asks every plan every chosen question, leads the plans through the right answers where that is
// wanted, and keeps a journal, so that an evaluation that was cut off goes on where it was.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/distribution_source.h"
#include "tessera/quality/evaluation.h"
#include "tessera/quality/journal.h"
#include "tessera/quality/respondent.h"
#include "tessera/quality/task.h"

namespace tessera::quality {

// One plan as the runner reaches it. What either function gives exists only while the runner needs it: a respondent
// while its plan is asked, the sources of distributions all together, after that.
struct PlanUnderTest {
  std::string name;
  std::string description;
  // Empty: the plan answers nothing, so that its questions are all skipped; never of the first plan.
  std::function<base::Result<std::unique_ptr<Respondent>>()> start;
  // Empty for a plan that has none: a server elsewhere does not give whole distributions.
  std::function<base::Result<std::unique_ptr<DistributionSource>>()> open_distributions = {};
  std::string answers_nothing = {};  // Why `start` is empty.
  // Where its weights come from; plans with the same must have the same digest. Empty: not known.
  std::string checkpoint = {};
};

struct RunOptions {
  std::string version;  // These three are for the record.
  std::string command;
  std::string date;
  std::int64_t limit = 0;               // As select_questions() takes it.
  std::vector<std::string> cells = {};  // Only questions of these; empty: of all.
  std::uint64_t seed = 0;
  double equivalence_points = 2.0;
  std::int64_t concurrency = 8;  // Questions asked at once.
  bool distances = false;        // Needs open_distributions of the first plan and of another.
};

// A task with the questions that were chosen of it.
struct ChosenTask {
  std::unique_ptr<Task> task;
  std::vector<std::size_t> questions;  // Ascending.
};

// not_found: a cell that no task has, or a task of which nothing is chosen.
base::Result<std::vector<ChosenTask>> choose_questions(std::vector<std::unique_ptr<Task>> tasks,
                                                       const RunOptions& options);

// What a journal of this evaluation begins with.
EvaluationIdentity evaluation_identity(std::span<const PlanUnderTest> plans, std::span<const ChosenTask> tasks,
                                       const RunOptions& options);

// Who looks on. Called by one thread at a time, though not always the same.
class RunWatcher {
 public:
  virtual ~RunWatcher() = default;
  // From here on `total` questions of a task are asked of a plan. Outcomes that the journal had (`found`) come first.
  virtual void asking(std::string_view plan, const TaskInfo& task, std::size_t total) = 0;
  virtual void answered(const Outcome& outcome, bool found) = 0;
  // From here on `total` passages are led through, of all tasks together; `found` of them lie in the journal.
  virtual void comparing(std::size_t total, std::size_t found) = 0;
  virtual void compared() = 0;  // One more.
  virtual void done() = 0;      // With what began last.
};

// Asks what the journal does not have. `journal` may be null: then nothing is kept. Where `stop` is set, by the caller
// (who also ends what respondents wait for), it ends as soon as the running questions do, with kCancelled and
// everything in the journal that was answered; the runner sets it itself when something fails, so that nobody waits for
// answers that nobody wants. The same evaluation gives the same result whatever the concurrency, and however often it
// was cut off, as far as respondents are deterministic.
base::Result<Evaluation> run_evaluation(std::span<const PlanUnderTest> plans, std::span<const ChosenTask> tasks,
                                        const RunOptions& options, Journal* journal, RunWatcher& watcher,
                                        std::atomic<bool>& stop);

}  // namespace tessera::quality
