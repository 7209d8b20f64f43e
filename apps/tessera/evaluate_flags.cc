#include "evaluate_flags.h"

#include <CLI/CLI.hpp>
#include <string>

namespace tessera::app {

void add_evaluate(CLI::App& app, EvaluateOptions& options) {
  CLI::App& evaluate = *app.add_subcommand(
      "evaluate", "Say how good a model's answers are, and whether two precisions differ, with statistics.");

  const std::string plans = "Plans: what is evaluated. The first is the reference of the others";
  evaluate.add_option("--model-path,--model", options.model, "Folder of a Hugging Face checkpoint.")->group(plans);
  evaluate
      .add_option("--plan", options.plans,
                  "NAME[:key=value,...], several times. Engines of the command's own: model=DIR, role=split|unified, "
                  "kv, prefill-kv, decode-kv=bf16|fp8_e4m3|f32, batch, chunk, device=cpu|cuda, backend=simd|reference. "
                  "Or a server: url=http://HOST:PORT, model=NAME, api-key-file=FILE. By default one plan as `tessera "
                  "serve` has it.")
      ->group(plans);
  evaluate.add_option("--url", options.urls, "A server that runs elsewhere, in short; several times.")->group(plans);

  const std::string questions = "Questions";
  evaluate.add_option("--task", options.tasks, "Names of tasks.")->delimiter(',')->group(questions);
  evaluate.add_flag("--list-tasks", options.list_tasks, "Say which tasks there are, and end.")->group(questions);
  evaluate
      .add_option("--limit", options.limit, "Questions of a task, or of each of its cells where it has levels; 0: all.")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(questions);
  evaluate.add_option("--cell", options.cells, "Only questions of these cells: levels, subjects, depths.")
      ->group(questions);
  evaluate.add_option("--data", options.data, "Folder of the public tasks' files; data/evaluation by default.")
      ->check(CLI::ExistingDirectory)
      ->group(questions);
  evaluate
      .add_option("--pocket-tasks", options.pocket_tasks,
                  "Folder of the bundled model's tasks; models/tessera-pocket/tasks by default.")
      ->check(CLI::ExistingDirectory)
      ->group(questions);

  const std::string comparison = "Comparison";
  // Neither of the two is a third answer, which a flag's variable would not keep.
  CLI::Option* distances =
      evaluate
          .add_flag_callback(
              "--distances", [&options] { options.distances = true; },
              "Lead the plans through the right answers and compare whole token distributions; by default where the "
              "first plan and another are engines of the command's own, of one vocabulary.")
          ->group(comparison);
  evaluate.add_flag_callback(
              "--no-distances", [&options] { options.distances = false; }, "Do not.")
      ->excludes(distances)
      ->group(comparison);
  evaluate
      .add_option("--equivalence", options.equivalence_points,
                  "X of \"equivalent within X points\": the whole interval of the difference lies inside.")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str()
      ->group(comparison);
  evaluate.add_option("--seed", options.seed, "Of resampling.")->capture_default_str()->group(comparison);

  const std::string files = "Files";
  evaluate.add_option("--json", options.json, "Write the report for programs.")->group(files);
  evaluate.add_option("--html", options.html, "Write the report as one page for people.")->group(files);
  evaluate
      .add_option("--journal", options.journal,
                  "Where every answer is kept as it comes, so that nothing is asked twice; by default the file of "
                  "--json with .journal at its end.")
      ->group(files);
  CLI::Option* resume =
      evaluate.add_flag("--resume", options.resume, "Go on with the journal that is there.")->group(files);
  evaluate.add_flag("--fresh", options.fresh, "Begin anew, and replace the journal that is there.")
      ->excludes(resume)
      ->group(files);

  const std::string running = "Running";
  evaluate.add_option("--concurrency", options.concurrency, "Questions asked at once.")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->group(running);
  evaluate.add_flag("--quiet", options.quiet, "Show no progress.")->group(running);
  add_backend_options(evaluate, options.backend);
}

}  // namespace tessera::app
