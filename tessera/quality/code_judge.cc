#include "tessera/quality/code_judge.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>

namespace tessera::quality {

namespace {

namespace json = boost::json;

// A line that a program cannot print by chance.
base::Result<std::string> random_line() {
  std::uint64_t halves[2] = {};
  if (getrandom(halves, sizeof halves, 0) != sizeof halves) {
    return base::failure(base::internal_error("no random numbers for the mark that a program ran to its end"));
  }
  return fmt::format("ended-{:016x}{:016x}", halves[0], halves[1]);
}

// Exit code 0 alone would also be what a program says that leaves before its tests.
base::Result<bool> prints_line(const Sandbox& sandbox, std::string_view program, std::string_view line) {
  TESSERA_ASSIGN_OR_RETURN(const SandboxRun run, sandbox.run(program));
  return !run.timed_out && run.exit_code == 0 && run.output.find(fmt::format("{}\n", line)) != std::string::npos;
}

// The text as a literal of Python, which reads JSON's strings as JSON does, but for characters beyond U+FFFF in
// escapes: those are written as they are.
std::string python_literal(std::string_view text) { return json::serialize(json::string(text)); }

// Tests are run with nothing in reach but what the rule allows. It ends in print(), for which the line is put in.
constexpr std::string_view kFunctionJudge = R"(
import ast, json, re

def is_harmless(tree):
    parts = (ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.If, ast.Expr, ast.BinOp, ast.Compare,
             ast.BoolOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load, ast.Store, ast.Constant, ast.List, ast.Tuple,
             ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.Subscript, ast.Slice, ast.IfExp, ast.operator,
             ast.cmpop, ast.unaryop, ast.boolop)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].decorator_list:
        return False
    for node in ast.walk(tree):
        if not isinstance(node, parts) or isinstance(node, (ast.Pow, ast.LShift)):
            return False
        if isinstance(node, ast.Call) and (not isinstance(node.func, ast.Name) or node.func.id == tree.body[0].name):
            return False
    return True

def is_right(answer, tests):
    block = re.search("```python\n(.*?)```", answer, re.S)
    if block is None or len(block[1]) > 600:
        return False
    tree = ast.parse(block[1])
    scope = {"__builtins__": {f.__name__: f for f in (sum, max, min, len, abs, sorted)}}
    if not is_harmless(tree):
        return False
    exec(compile(tree, "answer", "exec"), scope)
    return all(eval(test, scope) for test in tests)
)";

}  // namespace

base::Result<bool> runs_to_its_end(const Sandbox& sandbox, std::string_view program) {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, random_line());
  // The program may have given print another meaning.
  return prints_line(sandbox,
                     fmt::format("{}\n\nimport builtins\nbuiltins.print('\\n{}', flush=True)\n", program, line), line);
}

std::string human_eval_program(std::string_view prompt, std::string_view completion, std::string_view test,
                               std::string_view entry_point) {
  return fmt::format("{}{}\n{}\ncheck({})", prompt, completion, test, entry_point);
}

base::Result<bool> passes_tests(const Sandbox& sandbox, std::string_view answer, std::span<const std::string> tests) {
  TESSERA_ASSIGN_OR_RETURN(const std::string line, random_line());
  json::array listed;
  for (const std::string& test : tests) listed.emplace_back(test);
  const std::string program = fmt::format("{}\nif is_right({}, json.loads({})):\n    print('{}')\n", kFunctionJudge,
                                          python_literal(answer), python_literal(json::serialize(listed)), line);
  return prints_line(sandbox, program, line);
}

}  // namespace tessera::quality
