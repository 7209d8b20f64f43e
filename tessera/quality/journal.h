// What an evaluation has found out so far, in a file that survives the program: JSON, one object a line, each line
// written at once and whole. The first line says of which evaluation; a journal of another one is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/outcome.h"
#include "tessera/quality/respondent.h"

namespace tessera::quality {

// What must be the same for outcomes to belong to one evaluation, as names and values in a fixed order ("limit": "20",
// "plan bf16": "role=unified ..."): the names are what an error is about.
using EvaluationIdentity = std::vector<std::pair<std::string, std::string>>;

// Outcomes and distances belong to a plan (index into the evaluation's) and a task (its name); then by question.
using PlanTask = std::pair<std::size_t, std::string>;

struct JournalContents {
  std::map<std::size_t, RespondentInfo> respondents;  // By plan.
  std::map<PlanTask, std::map<std::string, Outcome>> outcomes;
  std::map<PlanTask, std::map<std::string, PassageDistances>> distances;
};

class Journal {
 public:
  // A new file; one that is there is replaced. unavailable: it cannot be written, or another process writes it.
  static base::Result<std::unique_ptr<Journal>> create(const std::filesystem::path& path,
                                                       const EvaluationIdentity& identity);
  // One that is there, to go on with: a line at its end that is not whole is dropped. not_found: there is none;
  // unavailable: it cannot be read to its end; invalid_argument: it belongs to another evaluation, and what differs;
  // data_loss: a line that this program did not write, by its number. A file that is refused is left as it was.
  static base::Result<std::unique_ptr<Journal>> resume(const std::filesystem::path& path,
                                                       const EvaluationIdentity& identity);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // What it held when it was opened.
  const JournalContents& found() const { return found_; }
  const std::filesystem::path& path() const { return path_; }

  // Each is in the file when it returns. Thread-safe. unavailable: the disk is full, ...; the file then holds what it
  // held before, and nothing is written from then on: all that follows fails alike.
  base::Status add(std::size_t plan, const RespondentInfo& respondent);
  base::Status add(std::size_t plan, std::string_view task, const Outcome& outcome);
  base::Status add(std::size_t plan, std::string_view task, const PassageDistances& distances);

 private:
  explicit Journal(std::filesystem::path path) : path_(std::move(path)) {}
  base::Status open(int flags);
  base::Result<std::string> text() const;  // Of the whole file.
  base::Status read(const EvaluationIdentity& identity);
  base::Status cut(std::int64_t bytes);
  base::Status unavailable() const;  // As errno says.
  base::Status write_line(std::string line);

  const std::filesystem::path path_;
  int file_ = -1;
  std::mutex writing_;
  std::int64_t bytes_ = 0;  // Of whole lines.
  base::Status failure_;    // Of the first line that could not be written.
  JournalContents found_;
};

}  // namespace tessera::quality
