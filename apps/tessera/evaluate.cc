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

#include "evaluate_plans.h"
#include "evaluate_progress.h"
#include "forced_scorer.h"
#include "model_shelf.h"
#include "output_file.h"
#include "own_engines.h"
#include "signals.h"
#include "tessera/base/logging.h"
#include "tessera/models/config.h"
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

// Whether distributions are compared: as was asked, or wherever they can be.
base::Result<bool> wants_distances(const EvaluateOptions& options, const std::vector<PlanSpec>& plans) {
  for (const PlanSpec& plan : plans) {
    if (!plan.kv_rounding.has_value() || (&plan != plans.data() && options.distances != false)) continue;
    return base::failure(base::invalid_argument(fmt::format(
        "plan '{}': a simulated KV format has distances and no answers: expected another plan before it, and no "
        "--no-distances",
        plan.name)));
  }
  if (options.distances == false) return false;
  std::string obstacle;
  std::vector<const PlanSpec*> own;
  own.reserve(plans.size());
  for (const PlanSpec& plan : plans) {
    if (plan.is_own()) own.push_back(&plan);
  }
  if (own.size() < 2 || !plans.front().is_own()) {
    obstacle = "the first plan and another must be engines of this command: a server does not give whole distributions";
  }
  std::int64_t vocab_size = 0;
  for (const PlanSpec* plan : own) {
    TESSERA_ASSIGN_OR_RETURN(const models::ModelConfig config, models::read_config(plan->model));
    if (obstacle.empty() && plan != own.front() && config.vocab_size != vocab_size) {
      obstacle = fmt::format("plan '{}' has {} tokens in its vocabulary and plan '{}' has {}", own.front()->name,
                             vocab_size, plan->name, config.vocab_size);
    }
    if (plan == own.front()) vocab_size = config.vocab_size;
  }
  if (obstacle.empty()) return true;
  const bool any_simulated =
      std::ranges::any_of(plans, [](const PlanSpec& plan) { return plan.kv_rounding.has_value(); });
  if (options.distances == true || any_simulated) {
    return base::failure(base::invalid_argument("--distances: " + obstacle));
  }
  if (own.size() >= 2 && !options.quiet) fmt::print(stderr, "no distances: {}\n", obstacle);
  return false;
}

base::Result<std::unique_ptr<quality::Journal>> open_journal(const EvaluateOptions& options,
                                                             const quality::EvaluationIdentity& identity) {
  std::filesystem::path path(options.journal);
  if (path.empty() && !options.json.empty()) path = options.json + ".journal";
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

base::Status open_outputs(const EvaluateOptions& options, Outputs& outputs) {
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

base::Status write_reports(const quality::Evaluation& evaluation, Outputs& outputs) {
  const quality::Analysis analysis = quality::analyse(evaluation);
  const std::string text = quality::report_text(evaluation, analysis);
  if (outputs.json.has_value()) {
    TESSERA_RETURN_IF_ERROR(outputs.json->write(quality::report_json(evaluation, analysis, true)));
  }
  if (outputs.html.has_value()) {
    TESSERA_RETURN_IF_ERROR(outputs.html->write(quality::report_html(evaluation, analysis)));
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return base::unavailable("standard output cannot be written");
  }
  return base::ok_status();
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
  TESSERA_ASSIGN_OR_RETURN(run.distances, wants_distances(options, specs));
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<quality::Task>> tasks, read_tasks(options));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<quality::ChosenTask> chosen,
                           quality::choose_questions(std::move(tasks), run));

  std::atomic<bool> stop = false;
  ModelShelf shelf;
  std::vector<quality::PlanUnderTest> plans;
  plans.reserve(specs.size());
  for (const PlanSpec& spec : specs) {
    quality::PlanUnderTest plan;
    plan.name = spec.name;
    plan.description = describe(spec);
    if (spec.kv_rounding.has_value()) {
      plan.answers_nothing = "a simulated KV format has distances and no answers";
    } else {
      plan.start = [&spec, &stop, quiet = options.quiet] { return start_plan(spec, quiet, stop); };
    }
    if (spec.is_own()) plan.open_distributions = [&spec, &shelf] { return make_forced_scorer(spec, &shelf); };
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
  if (!evaluation.has_value()) {
    if (journal == nullptr) return evaluation.error();
    const std::string kept = fmt::format("what was answered so far is in {}: the same command with --resume goes on",
                                         journal->path().string());
    return {evaluation.error().code(), fmt::format("{}\n{}", evaluation.error().message(), kept)};
  }
  return write_reports(*evaluation, outputs);
}

}  // namespace tessera::app
