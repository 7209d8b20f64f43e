#include "tessera/quality/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "tessera/quality/comparison.h"

namespace tessera::quality {

namespace {

base::Status interrupted() { return {base::StatusCode::kCancelled, "interrupted"}; }

// Does `work` for 0 to count - 1, each once, by so many threads. The first error ends them all, and sets `stop`.
base::Status for_all(std::size_t count, std::int64_t concurrency, std::atomic<bool>& stop,
                     const std::function<base::Status(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex failing;
  base::Status failure;
  const auto run = [&] {
    while (!stop) {
      const std::size_t index = next++;
      if (index >= count) return;
      base::Status status = work(index);
      if (status.ok()) continue;
      const std::lock_guard lock(failing);
      // What fails once it is stopped, fails because of that.
      if (failure.ok() && !stop) failure = std::move(status);
      stop = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t threads_max = std::min(count, static_cast<std::size_t>(std::max<std::int64_t>(1, concurrency)));
    threads.reserve(threads_max);
    for (std::size_t i = 0; i < threads_max; ++i) threads.emplace_back(run);
  }
  if (!failure.ok()) return failure;
  return stop ? interrupted() : base::ok_status();
}

std::string cell_names(std::span<const std::unique_ptr<Task>> tasks) {
  constexpr std::size_t kShownCells = 40;
  std::set<std::string> cells;
  for (const auto& task : tasks) {
    for (std::size_t i = 0; i < task->size(); ++i) cells.insert(task->cell(i));
  }
  std::string names;
  std::size_t shown = 0;
  for (const std::string& cell : cells) {
    if (++shown > kShownCells) return names + ", ...";
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", cell);
  }
  return names;
}

// select_questions() of what is left of the task when only these cells count.
std::vector<std::size_t> choose(const Task& task, const RunOptions& options) {
  if (options.cells.empty()) return select_questions(task, options.limit);
  const auto counts = [&](std::size_t index) {
    return std::ranges::find(options.cells, task.cell(index)) != options.cells.end();
  };
  std::vector<std::size_t> all = select_questions(task, task.info().limit_by_cell ? options.limit : 0);
  std::erase_if(all, [&](std::size_t index) { return !counts(index); });
  const auto wanted = static_cast<std::size_t>(options.limit);
  if (task.info().limit_by_cell || options.limit == 0 || wanted >= all.size()) return all;
  std::vector<std::size_t> spread;
  spread.reserve(wanted);
  for (std::size_t i = 0; i < wanted; ++i) spread.push_back(all[i * all.size() / wanted]);
  return spread;
}

class Run {
 public:
  Run(std::span<const PlanUnderTest> plans, std::span<const ChosenTask> tasks, const RunOptions& options,
      Journal* journal, RunWatcher& watcher, std::atomic<bool>& stop)
      : plans_(plans), tasks_(tasks), options_(options), journal_(journal), watcher_(watcher), stop_(stop) {}

  base::Result<Evaluation> run() {
    begin();
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      const base::Status status = ask_plan(plan);
      if (!status.ok()) return base::failure(named(plan, status));
    }
    if (options_.distances) TESSERA_RETURN_IF_ERROR(compare_plans());
    return std::move(evaluation_);
  }

 private:
  base::Status named(std::size_t plan, const base::Status& status) const {
    return status.code() == base::StatusCode::kCancelled ? status
                                                         : status.with_context("plan '" + plans_[plan].name + "'");
  }

  void begin() {
    evaluation_.version = options_.version;
    evaluation_.command = options_.command;
    evaluation_.date = options_.date;
    evaluation_.limit = options_.limit;
    evaluation_.seed = options_.seed;
    evaluation_.equivalence_points = options_.equivalence_points;
    evaluation_.plans.reserve(plans_.size());
    for (const PlanUnderTest& plan : plans_) {
      evaluation_.plans.push_back({.name = plan.name, .description = plan.description, .respondent = {}});
    }
    if (journal_ != nullptr) {
      for (const auto& [plan, respondent] : journal_->found().respondents) {
        if (plan < plans_.size()) evaluation_.plans[plan].respondent = respondent;
      }
    }
    evaluation_.tasks.reserve(tasks_.size());
    for (const ChosenTask& chosen : tasks_) {
      TaskOutcomes outcomes;
      outcomes.task = chosen.task->info();
      outcomes.questions = static_cast<std::int64_t>(chosen.task->size());
      outcomes.data_digest = chosen.task->data_digest();
      outcomes.by_plan.assign(plans_.size(), std::vector<Outcome>(chosen.questions.size()));
      evaluation_.tasks.push_back(std::move(outcomes));
    }
  }

  // Takes what the journal has of a plan and a task; the rest, as indices into the chosen questions.
  std::vector<std::size_t> take_found(std::size_t plan, std::size_t task) {
    const ChosenTask& chosen = tasks_[task];
    std::vector<Outcome>& outcomes = evaluation_.tasks[task].by_plan[plan];
    const std::map<std::string, Outcome>* found = nullptr;
    if (journal_ != nullptr) {
      const auto& all = journal_->found().outcomes;
      const auto at = all.find({plan, chosen.task->info().name});
      if (at != all.end()) found = &at->second;
    }
    std::vector<std::size_t> missing;
    missing.reserve(chosen.questions.size());
    for (std::size_t i = 0; i < chosen.questions.size(); ++i) {
      const auto outcome = found == nullptr ? std::map<std::string, Outcome>::const_iterator{}
                                            : found->find(chosen.task->question_id(chosen.questions[i]));
      if (found == nullptr || outcome == found->end()) {
        missing.push_back(i);
      } else {
        outcomes[i] = outcome->second;
      }
    }
    return missing;
  }

  // Nothing of it is kept in the journal: it costs nothing to say again.
  void skip_plan(std::size_t plan) {
    for (std::size_t task = 0; task < tasks_.size(); ++task) {
      const ChosenTask& chosen = tasks_[task];
      for (std::size_t i = 0; i < chosen.questions.size(); ++i) {
        Outcome& outcome = evaluation_.tasks[task].by_plan[plan][i];
        outcome.question = chosen.task->question_id(chosen.questions[i]);
        outcome.cell = chosen.task->cell(chosen.questions[i]);
        outcome.skipped = plans_[plan].answers_nothing;
      }
    }
  }

  base::Status ask_plan(std::size_t plan) {
    if (!plans_[plan].start) {
      if (plan == 0) {
        return base::invalid_argument(plans_[plan].answers_nothing + "; expected the first plan to answer");
      }
      skip_plan(plan);
      return {};
    }
    std::vector<std::vector<std::size_t>> missing(tasks_.size());
    bool any_missing = false;
    bool needs_scores = false;
    for (std::size_t task = 0; task < tasks_.size(); ++task) {
      missing[task] = take_found(plan, task);
      if (missing[task].empty()) continue;
      any_missing = true;
      needs_scores = needs_scores || tasks_[task].task->info().by_likelihood;
    }
    const RespondentInfo& info = evaluation_.plans[plan].respondent;
    const bool needs_passages = options_.distances && plan == 0;
    std::unique_ptr<Respondent> respondent;
    if (any_missing || needs_passages || info.model.empty()) {
      TESSERA_ASSIGN_OR_RETURN(respondent, plans_[plan].start());
      TESSERA_RETURN_IF_ERROR(meet(plan, respondent->info()));
    }
    if (needs_scores) TESSERA_RETURN_IF_ERROR(probe_scores(*respondent));
    for (std::size_t task = 0; task < tasks_.size(); ++task) {
      TESSERA_RETURN_IF_ERROR(ask_task(plan, task, missing[task], respondent.get()));
    }
    return needs_passages ? make_passages(*respondent) : base::ok_status();
  }

  // A checkpoint that was changed meanwhile would mix two models' answers, be it of one plan or of two that are
  // compared.
  base::Status meet(std::size_t plan, const RespondentInfo& now) {
    for (std::size_t other = 0; other < plans_.size(); ++other) {
      const std::string& theirs = evaluation_.plans[other].respondent.digest;
      if (other == plan || plans_[plan].checkpoint.empty() || plans_[other].checkpoint != plans_[plan].checkpoint ||
          theirs.empty() || now.digest.empty() || theirs == now.digest) {
        continue;
      }
      return base::invalid_argument(
          fmt::format("the checkpoint in {} has digest {}, and had {} when plan '{}' was evaluated: expected the same "
                      "for both",
                      plans_[plan].checkpoint, now.digest, theirs, plans_[other].name));
    }
    RespondentInfo& before = evaluation_.plans[plan].respondent;
    if (before.model.empty()) {
      before = now;
      return journal_ == nullptr ? base::ok_status() : journal_->add(plan, now);
    }
    const auto same = [](std::string_view what, const auto& then, const auto& is) {
      if (then == is) return base::ok_status();
      return base::invalid_argument(
          fmt::format("the journal is of {} '{}' and there is '{}' now: expected the same", what, then, is));
    };
    TESSERA_RETURN_IF_ERROR(same("the model", before.model, now.model));
    TESSERA_RETURN_IF_ERROR(same("the precision", before.precision, now.precision));
    TESSERA_RETURN_IF_ERROR(same("the checkpoint digest", before.digest, now.digest));
    // Which questions fit, and how long texts are cut, depend on it.
    return same("the context, in tokens,", before.context_tokens, now.context_tokens);
  }

  // Whether the server gives scores at all, before hundreds of other questions are asked.
  static base::Status probe_scores(Respondent& respondent) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, respondent.encode_prompt("One, two, three, four."));
    if (tokens.size() < 2) return base::internal_error("a text of four words has fewer than two tokens");
    const base::Result<std::vector<TokenScore>> scores = respondent.score(tokens, 1);
    return scores.has_value() ? base::ok_status() : scores.error();
  }

  base::Status ask_task(std::size_t plan, std::size_t task, std::span<const std::size_t> missing,
                        Respondent* respondent) {
    const Task& asked = *tasks_[task].task;
    std::vector<Outcome>& outcomes = evaluation_.tasks[task].by_plan[plan];
    watcher_.asking(plans_[plan].name, asked.info(), outcomes.size());
    for (const Outcome& outcome : outcomes) {
      if (!outcome.question.empty()) watcher_.answered(outcome, true);
    }
    std::mutex telling;
    base::Status status = for_all(missing.size(), options_.concurrency, stop_, [&](std::size_t i) -> base::Status {
      const std::size_t index = tasks_[task].questions[missing[i]];
      base::Result<Outcome> outcome = asked.ask(index, *respondent);
      if (!outcome.has_value()) {
        return outcome.error().with_context(
            fmt::format("task {}, question {}", asked.info().name, asked.question_id(index)));
      }
      outcome->question = asked.question_id(index);
      outcome->cell = asked.cell(index);
      if (journal_ != nullptr) TESSERA_RETURN_IF_ERROR(journal_->add(plan, asked.info().name, *outcome));
      const std::lock_guard lock(telling);
      watcher_.answered(*outcome, false);
      outcomes[missing[i]] = std::move(*outcome);
      return base::ok_status();
    });
    watcher_.done();
    return status;
  }

  // What the reference was asked, with the right answers, as tokens.
  base::Status make_passages(Respondent& respondent) {
    for (std::size_t task = 0; task < tasks_.size(); ++task) {
      const ChosenTask& chosen = tasks_[task];
      const std::vector<Outcome>& outcomes = evaluation_.tasks[task].by_plan[0];
      std::vector<std::optional<Passage>> made(chosen.questions.size());
      const auto make = [&](std::size_t i) -> base::Status {
        // A question that did not fit has no passage that does.
        if (!outcomes[i].skipped.empty()) return base::ok_status();
        const std::size_t index = chosen.questions[i];
        base::Result<std::optional<Passage>> passage = chosen.task->passage(index, respondent);
        if (!passage.has_value() && passage.error().code() == base::StatusCode::kOutOfRange) return base::ok_status();
        if (!passage.has_value()) {
          return passage.error().with_context(fmt::format("task {}, passage of question {}", chosen.task->info().name,
                                                          chosen.task->question_id(index)));
        }
        if (passage->has_value() && !(*passage)->prompt.empty() && !(*passage)->continuation.empty()) {
          made[i] = std::move(*passage);
          made[i]->question = chosen.task->question_id(index);
          made[i]->cell = chosen.task->cell(index);
        }
        return base::ok_status();
      };
      TESSERA_RETURN_IF_ERROR(for_all(made.size(), options_.concurrency, stop_, make));
      for (std::optional<Passage>& passage : made) {
        if (!passage.has_value()) continue;
        passages_.push_back(std::move(*passage));
        passage_tasks_.push_back(task);
      }
    }
    return base::ok_status();
  }

  base::Status compare_plans() {
    // The reference and those that can be compared with it, as indices into the plans.
    std::vector<std::size_t> compared;
    compared.reserve(plans_.size());
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      if (plans_[plan].open_distributions) compared.push_back(plan);
    }
    if (compared.size() < 2 || compared.front() != 0) {
      return base::invalid_argument("distances need whole distributions of the first plan and of another one");
    }
    // By task and source, what is known and what comes.
    std::vector<std::vector<std::map<std::string, PassageDistances>>> known(tasks_.size());
    for (std::size_t task = 0; task < tasks_.size(); ++task) {
      known[task].resize(compared.size());
      for (std::size_t source = 1; source < compared.size() && journal_ != nullptr; ++source) {
        const auto& found = journal_->found().distances;
        const auto at = found.find({compared[source], tasks_[task].task->info().name});
        if (at != found.end()) known[task][source] = at->second;
      }
    }
    WantedDistances wanted;
    std::vector<std::size_t> waiting;  // By passage, how many sources' distances are to come.
    wanted.reserve(passages_.size());
    waiting.reserve(passages_.size());
    for (std::size_t i = 0; i < passages_.size(); ++i) {
      std::vector<bool>& of = wanted.emplace_back(compared.size(), false);
      for (std::size_t source = 1; source < compared.size(); ++source) {
        of[source] = !known[passage_tasks_[i]][source].contains(passages_[i].question);
      }
      waiting.push_back(static_cast<std::size_t>(std::ranges::count(of, true)));
    }
    const auto complete = static_cast<std::size_t>(std::ranges::count(waiting, std::size_t{0}));
    watcher_.comparing(passages_.size(), complete);
    if (complete < passages_.size()) {
      std::vector<std::unique_ptr<DistributionSource>> sources;
      std::vector<DistributionSource*> pointers;
      sources.reserve(compared.size());
      pointers.reserve(compared.size());
      for (const std::size_t plan : compared) {
        base::Result<std::unique_ptr<DistributionSource>> source = plans_[plan].open_distributions();
        if (!source.has_value()) return named(plan, source.error());
        TESSERA_RETURN_IF_ERROR(check_digest(plan, (*source)->info()));
        if (!plans_[plan].start) {
          const base::Status met = meet(plan, (*source)->info());
          if (!met.ok()) return named(plan, met);
        }
        pointers.push_back(source->get());
        sources.push_back(std::move(*source));
      }
      const auto take = [&](std::size_t passage, std::size_t source, PassageDistances distances) -> base::Status {
        const std::size_t task = passage_tasks_[passage];
        if (journal_ != nullptr) {
          TESSERA_RETURN_IF_ERROR(journal_->add(compared[source], tasks_[task].task->info().name, distances));
        }
        std::string question = distances.question;
        known[task][source].insert_or_assign(std::move(question), std::move(distances));
        if (--waiting[passage] == 0) watcher_.compared();
        return base::ok_status();
      };
      TESSERA_RETURN_IF_ERROR(
          compare_sources(pointers, passages_, wanted, take, [&](std::size_t) { watcher_.compared(); }, stop_));
    }
    watcher_.done();
    for (std::size_t task = 0; task < tasks_.size(); ++task) {
      for (std::size_t source = 1; source < compared.size(); ++source) {
        TaskDistances distances{.task = tasks_[task].task->info().name, .plan = compared[source], .passages = {}};
        distances.passages.reserve(known[task][source].size());
        for (std::size_t i = 0; i < passages_.size(); ++i) {
          if (passage_tasks_[i] != task) continue;
          const auto at = known[task][source].find(passages_[i].question);
          if (at != known[task][source].end()) distances.passages.push_back(std::move(at->second));
        }
        if (!distances.passages.empty()) evaluation_.distances.push_back(std::move(distances));
      }
    }
    return base::ok_status();
  }

  base::Status check_digest(std::size_t plan, const RespondentInfo& source) const {
    const std::string& asked = evaluation_.plans[plan].respondent.digest;
    if (asked.empty() || source.digest.empty() || asked == source.digest) return base::ok_status();
    return named(plan, base::invalid_argument(fmt::format(
                           "its answers are of the checkpoint with digest {}, and there is {} now: expected "
                           "the same",
                           asked, source.digest)));
  }

  const std::span<const PlanUnderTest> plans_;
  const std::span<const ChosenTask> tasks_;
  const RunOptions& options_;
  Journal* const journal_;
  RunWatcher& watcher_;
  std::atomic<bool>& stop_;
  Evaluation evaluation_;
  std::vector<Passage> passages_;           // Of all tasks, in their order.
  std::vector<std::size_t> passage_tasks_;  // Of each.
};

}  // namespace

base::Result<std::vector<ChosenTask>> choose_questions(std::vector<std::unique_ptr<Task>> tasks,
                                                       const RunOptions& options) {
  for (const std::string& cell : options.cells) {
    const bool known = std::ranges::any_of(tasks, [&](const std::unique_ptr<Task>& task) {
      for (std::size_t i = 0; i < task->size(); ++i) {
        if (task->cell(i) == cell) return true;
      }
      return false;
    });
    if (!known) {
      return base::failure(
          base::not_found(fmt::format("cell '{}' is in none of the tasks; they have {}", cell, cell_names(tasks))));
    }
  }
  std::vector<ChosenTask> chosen;
  chosen.reserve(tasks.size());
  for (std::unique_ptr<Task>& task : tasks) {
    std::vector<std::size_t> questions = choose(*task, options);
    if (questions.empty()) {
      return base::failure(base::not_found(fmt::format("task {}: it has no question in these cells; it has {}",
                                                       task->info().name, cell_names({&task, 1}))));
    }
    // They pair the plans' answers, and are what a journal knows them by.
    std::set<std::string> ids;
    for (const std::size_t index : questions) {
      if (!ids.insert(task->question_id(index)).second) {
        return base::failure(base::data_loss(
            fmt::format("task {}: two questions have the id '{}'", task->info().name, task->question_id(index))));
      }
    }
    chosen.push_back({std::move(task), std::move(questions)});
  }
  return chosen;
}

EvaluationIdentity evaluation_identity(std::span<const PlanUnderTest> plans, std::span<const ChosenTask> tasks,
                                       const RunOptions& options) {
  EvaluationIdentity identity;
  identity.emplace_back("version of tessera", options.version);
  identity.emplace_back("limit", fmt::format("{}", options.limit));
  identity.emplace_back("seed", fmt::format("{}", options.seed));
  std::string cells;
  for (const std::string& cell : options.cells) cells += fmt::format("{}{}", cells.empty() ? "" : ", ", cell);
  identity.emplace_back("cells", cells.empty() ? "all" : cells);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    identity.emplace_back(fmt::format("plan {}", i + 1), fmt::format("{}: {}", plans[i].name, plans[i].description));
  }
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = *tasks[i].task;
    const std::string digest = task.data_digest();
    identity.emplace_back(fmt::format("task {}", i + 1),
                          fmt::format("{}: {} of {} questions, data {}", task.info().name, tasks[i].questions.size(),
                                      task.size(), digest.empty() ? "not digested" : digest));
  }
  return identity;
}

base::Result<Evaluation> run_evaluation(std::span<const PlanUnderTest> plans, std::span<const ChosenTask> tasks,
                                        const RunOptions& options, Journal* journal, RunWatcher& watcher,
                                        std::atomic<bool>& stop) {
  return Run(plans, tasks, options, journal, watcher, stop).run();
}

}  // namespace tessera::quality
