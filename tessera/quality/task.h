// A task: questions, how each is put, and the published rule by which an answer is right. Tasks are read from data
// files (data/evaluation, models/tessera-pocket/tasks, or a folder of the caller's) and make nothing up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/distribution_source.h"
#include "tessera/quality/outcome.h"
#include "tessera/quality/respondent.h"

namespace tessera::quality {

struct TaskInfo {
  std::string name;              // "gsm8k"
  std::string about;             // One line for --list-tasks: what is asked and by which rule it is judged.
  std::vector<Metric> metrics;   // The first is the task's own.
  std::optional<double> chance;  // Accuracy of guessing, of the first metric.
  bool by_likelihood = false;    // Needs scores of given tokens; else text alone.
  bool limit_by_cell = false;    // A limit counts questions of each cell: its levels are what one looks at.
  bool runs_code = false;        // Runs what the model wrote, in a sandbox.
};

// Where the files are.
struct DataFolders {
  std::filesystem::path data;          // Of public tasks.
  std::filesystem::path pocket_tasks;  // Of the bundled model's held-out tasks.
};

class Task {
 public:
  virtual ~Task() = default;
  virtual const TaskInfo& info() const = 0;
  // In the file's order. The cells of the data follow one another or not: a limit goes by cell (select_questions).
  virtual std::size_t size() const = 0;
  virtual std::string question_id(std::size_t index) const = 0;
  virtual std::string cell(std::size_t index) const = 0;
  // data_digest() (data_file.h) of the texts of its files, joined in the order in which they were read: an evaluation
  // that is resumed, or compared with another, must have read the same. Empty for a task that reads none.
  virtual std::string data_digest() const { return {}; }
  // Asks one question and judges the answer. Thread-safe. A question that does not fit the model's context is an
  // Outcome with `skipped`; any other failure ends the evaluation.
  virtual base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const = 0;
  // The question with its right answer, to lead plans through token by token; what it encodes with is the respondent.
  // Empty where a question has none such (whatever is right is not one text).
  virtual base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const = 0;
};

struct TaskEntry {
  TaskInfo info;
  // Reads the task's files: data_loss and not_found name the file and the line.
  std::function<base::Result<std::unique_ptr<Task>>(const DataFolders&)> make;
};

// The tasks of each source file; task_list() joins them.
std::vector<TaskEntry> choice_tasks();  // mmlu, mmlu-pro, arc-easy, arc-challenge
std::vector<TaskEntry> text_tasks();    // gsm8k, needle, wikitext-2
std::vector<TaskEntry> code_tasks();    // humaneval
std::vector<TaskEntry> tool_tasks();    // bfcl
std::vector<TaskEntry> pocket_tasks();  // pocket-arithmetic, pocket-choice, pocket-retrieval, pocket-tools,
                                        // pocket-episodes, pocket-trace, pocket-functions
std::vector<TaskEntry> task_list();
// not_found, with all names, for one that does not exist.
base::Result<TaskEntry> find_task(std::string_view name);

// Which questions a limit takes, ascending: the first `limit` of each cell (limit_by_cell), else `limit` spread evenly
// over the file, so that every subject has its share; all of them for 0.
std::vector<std::size_t> select_questions(const Task& task, std::int64_t limit);

}  // namespace tessera::quality
