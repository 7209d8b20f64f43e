#include "evaluate.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "distance_plans.h"
#include "evaluate_plans.h"
#include "evaluate_progress.h"
#include "forced_scorer.h"
#include "model_shelf.h"
#include "output_file.h"
#include "own_engines.h"
#include "signals.h"
#include "tessera/base/logging.h"
#include "tessera/quality/analysis.h"
#include "tessera/quality/report.h"
#include "tessera/quality/runner.h"

namespace tessera::app {

namespace {

// While it exists, the first SIGINT or SIGTERM asks for an end, and a second one ends the program at once. Every thread
// that is made meanwhile leaves them to it.
class StopOnSignal {
 public:
  explicit StopOnSignal(std::atomic<bool>& stop) {
    const sigset_t signals = TakesSignals::ending_signals();
    pthread_sigmask(SIG_BLOCK, &signals, &previous_);
    thread_ = std::jthread([signals, &stop](const std::stop_token& end) {
      constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 50'000'000};
      bool asked = false;
      while (!end.stop_requested()) {
        const int number = sigtimedwait(&signals, nullptr, &kLook);
        if (number <= 0) continue;
        if (asked) {
          pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
          raise(number);
        }
        asked = true;
        stop = true;
      }
    });
  }
  ~StopOnSignal() {
    thread_ = {};
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  sigset_t previous_{};
  std::jthread thread_;
};

void list_tasks() {
  for (const quality::TaskEntry& entry : quality::task_list()) {
    std::string facts;
    for (const quality::Metric& metric : entry.info.metrics) {
      facts += fmt::format("{}{}", facts.empty() ? "" : ", ", metric.name);
    }
    if (entry.info.chance.has_value()) facts += fmt::format("; guessing {:.3g}%", 100.0 * *entry.info.chance);
    if (entry.info.by_likelihood) facts += "; by log-probabilities";
    if (entry.info.runs_code) facts += "; runs code in a sandbox";
    fmt::print("{}\n    {}\n    {}\n", entry.info.name, entry.info.about, facts);
  }
}

base::Result<std::vector<std::unique_ptr<quality::Task>>> read_tasks(const EvaluateOptions& options) {
  if (options.tasks.empty()) {
    return base::failure(
        base::invalid_argument("no task: expected --task NAME; --list-tasks says which names there are"));
  }
  const quality::DataFolders folders{
      .data = options.data.empty() ? shipped_folder("data/evaluation") : std::filesystem::path(options.data),
      .pocket_tasks = options.pocket_tasks.empty() ? shipped_folder("models/tessera-pocket/tasks")
                                                   : std::filesystem::path(options.pocket_tasks)};
  std::vector<std::unique_ptr<quality::Task>> tasks;
  tasks.reserve(options.tasks.size());
  std::set<std::string> names;
  for (const std::string& name : options.tasks) {
    if (!names.insert(name).second) {
      return base::failure(base::invalid_argument(fmt::format("--task {}: it is named twice", name)));
    }
    TESSERA_ASSIGN_OR_RETURN(const quality::TaskEntry entry, quality::find_task(name));
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<quality::Task> task, entry.make(folders));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

// Empty: there is none.
std::filesystem::path journal_path(const EvaluateOptions& options) {
  if (!options.journal.empty()) return options.journal;
  return options.json.empty() ? std::string() : options.json + ".journal";
}

base::Result<std::unique_ptr<quality::Journal>> open_journal(const EvaluateOptions& options,
                                                             const quality::EvaluationIdentity& identity) {
  const std::filesystem::path path = journal_path(options);
  if (path.empty()) {
    if (!options.resume) return std::unique_ptr<quality::Journal>();
    return base::failure(base::invalid_argument("--resume: there is no journal without --journal or --json"));
  }
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (there && options.resume) return quality::Journal::resume(path, identity);
  if (there && !options.fresh) {
    return base::failure(base::invalid_argument(
        fmt::format("journal {}: it is there already: expected --resume, to go on with it, or --fresh, to begin anew",
                    path.string())));
  }
  return quality::Journal::create(path, identity);
}

struct Outputs {
  std::optional<OutputFile> json;
  std::optional<OutputFile> html;
};

// Two outputs in one file would replace each other.
base::Status check_outputs_differ(const EvaluateOptions& options) {
  const std::pair<std::string_view, std::filesystem::path> files[] = {
      {"--json", options.json}, {"--html", options.html}, {"the journal", journal_path(options)}};
  for (const auto& [first, path] : files) {
    for (const auto& [second, other] : files) {
      if (first == second || path.empty() || other.empty() || resolved(path) != resolved(other)) continue;
      return base::invalid_argument(
          fmt::format("{} and {} are one file, {}: expected one for each", first, second, path.string()));
    }
  }
  return base::ok_status();
}

base::Status open_outputs(const EvaluateOptions& options, Outputs& outputs) {
  TESSERA_RETURN_IF_ERROR(check_outputs_differ(options));
  if (!options.json.empty()) {
    TESSERA_ASSIGN_OR_RETURN(OutputFile file, OutputFile::open(options.json));
    outputs.json.emplace(std::move(file));
  }
  if (!options.html.empty()) {
    TESSERA_ASSIGN_OR_RETURN(OutputFile file, OutputFile::open(options.html));
    outputs.html.emplace(std::move(file));
  }
  return base::ok_status();
}

// Each, whatever becomes of the others: hours of answers are in them.
base::Status write_reports(const quality::Evaluation& evaluation, const Outputs& outputs) {
  const quality::Analysis analysis = quality::analyse(evaluation);
  std::string failures;
  const auto note = [&](const base::Status& status) {
    if (!status.ok()) failures += fmt::format("{}{}", failures.empty() ? "" : "\n", status.message());
  };
  const std::string text = quality::report_text(evaluation, analysis);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    note(base::unavailable("standard output cannot be written"));
  }
  if (outputs.json.has_value()) note(outputs.json->write(quality::report_json(evaluation, analysis, true)));
  if (outputs.html.has_value()) note(outputs.html->write(quality::report_html(evaluation, analysis)));
  return failures.empty() ? base::ok_status() : base::unavailable(std::move(failures));
}

}  // namespace

std::string typed_command(int argc, const char* const* argv) {
  constexpr std::string_view kPlain = "-_./:=,+@%^";
  std::string command = "tessera";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool plain = !word.empty() && std::ranges::all_of(word, [&](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || kPlain.contains(c);
    });
    command += ' ';
    if (plain) {
      command += word;
      continue;
    }
    command += '\'';
    for (const char c : word) {
      if (c == '\'') {
        command += "'\\''";
      } else {
        command += c;
      }
    }
    command += '\'';
  }
  return command;
}

base::Status run_evaluate(const EvaluateOptions& options) {
  if (options.list_tasks) {
    list_tasks();
    return base::ok_status();
  }
  TESSERA_RETURN_IF_ERROR(base::set_log_level("warning"));
  // All that can be wrong is said before anything is loaded.
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<PlanSpec> specs,
      parse_plans(options.plans, options.urls, {.model = options.model, .backend = options.backend}));
  quality::RunOptions run;
  run.version = options.version;
  run.command = options.command;
  run.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  run.limit = options.limit;
  run.cells = options.cells;
  run.seed = options.seed;
  run.equivalence_points = options.equivalence_points;
  run.concurrency = options.concurrency;
  TESSERA_ASSIGN_OR_RETURN(const DistancePlans distances, choose_distance_plans(specs, options.distances));
  run.distances = distances.any();
  for (const std::string& note : distances.notes) {
    if (!options.quiet) fmt::print(stderr, "{}\n", note);
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<quality::Task>> tasks, read_tasks(options));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<quality::ChosenTask> chosen,
                           quality::choose_questions(std::move(tasks), run));

  std::atomic<bool> stop = false;
  ModelShelf shelf;
  std::vector<quality::PlanUnderTest> plans;
  plans.reserve(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const PlanSpec& spec = specs[i];
    quality::PlanUnderTest plan;
    plan.name = spec.name;
    plan.description = describe(spec);
    if (spec.kv_rounding.has_value()) {
      plan.answers_nothing = "a simulated KV format has distances and no answers";
    } else {
      plan.start = [&spec, &stop, quiet = options.quiet] { return start_plan(spec, quiet, stop); };
    }
    if (spec.is_own()) plan.checkpoint = resolved(spec.model).string();
    if (distances.compared[i]) {
      plan.open_distributions = [&spec, &shelf, &stop] { return make_forced_scorer(spec, &shelf, &stop); };
    }
    plans.push_back(std::move(plan));
  }
  Outputs outputs;
  TESSERA_RETURN_IF_ERROR(open_outputs(options, outputs));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<quality::Journal> journal,
                           open_journal(options, quality::evaluation_identity(plans, chosen, run)));

  EvaluateProgress progress(options.quiet);
  const StopOnSignal stop_on_signal(stop);
  signal(SIGPIPE, SIG_IGN);
  base::Result<quality::Evaluation> evaluation =
      quality::run_evaluation(plans, chosen, run, journal.get(), progress, stop);
  base::Status status = evaluation.has_value() ? write_reports(*evaluation, outputs) : evaluation.error();
  if (status.ok() || journal == nullptr) return status;
  return {status.code(), fmt::format("{}\nwhat was answered so far is in {}: the same command with --resume goes on",
                                     status.message(), journal->path().string())};
}

}  // namespace tessera::app
