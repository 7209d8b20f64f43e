#!/usr/bin/env bash
# test.sh [--all] [--label L]: build and test; the last line is "N passed, N failed" (", N skipped"), the exit status
# nonzero when anything failed, a build included.
#
#   (nothing)   preset cpu: every test but the linters and the mutants of the page checks
#   --label L   preset cpu (preset cpu-asan for `fuzz`): the tests with that label only
#   --all       all of it: preset cpu, linters, mutants, cpu-asan without the slow tests, cpu-tsan for what has threads, fuzzing
#
# Results of each stage are left in build/results/, as JUnit files and logs. No test needs a GPU.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# The programs whose code meets other threads: what cpu-tsan builds and runs.
threaded=(base_test corruption_test cpu_simd_test kv_transfer_test server_test serving_test router_test)

usage() { sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
all=no
label=
while [ $# -gt 0 ]; do
  case "$1" in
    --all) all=yes; shift ;;
    --label) label=${2:-}; [ -n "$label" ] || usage; shift 2 ;;
    --label=*) label=${1#*=}; [ -n "$label" ] || usage; shift ;;
    *) usage ;;
  esac
done
[ "$all" = no ] || [ -z "$label" ] || usage

passed=0
failed=0
skipped=0
timings=()

# summarize RESULTS STATUS: add the counts of a JUnit file of ctest's to the totals. A missing or empty one is a failure,
# and so is a nonzero exit status of ctest's without one (it calls a test whose program is missing "not run").
summarize() {
  local suite tests failures skips
  suite=$(sed -n '/<testsuite/,/>/p' "$1" 2>/dev/null | tr '\n\t' '  ' | head -c 1000)
  count() { sed -nE "s/.*<testsuite[^>]* $1=\"([0-9]+)\".*/\1/p" <<<"$suite"; }
  tests=$(count tests)
  failures=$(count failures)
  skips=$(($(count skipped) + $(count disabled)))
  if [ -z "$tests" ] || [ "$tests" -eq 0 ]; then
    echo "test: $1 holds no test" >&2
    failed=$((failed + 1))
    return
  fi
  passed=$((passed + tests - failures - skips))
  if [ "$2" -ne 0 ] && [ "$failures" -eq 0 ]; then
    echo "test: ctest ended with status $2 for $1" >&2
    failures=1
  fi
  failed=$((failed + failures))
  skipped=$((skipped + skips))
}

# stage NAME PRESET "TARGETS" CTEST-ARGUMENTS...: build, run, count, time. Goes on after a failure, so that one run tells all.
stage() {
  local name=$1 preset=$2 targets=$3 begin=$SECONDS built
  shift 3
  local results=$PWD/build/results/$name.xml log=$PWD/build/results/$name.log
  mkdir -p build/results
  rm -f "$results"
  echo "test: $name: building" >&2
  # shellcheck disable=SC2086  # targets are words
  if ! scripts/build.sh "$preset" $targets; then
    echo "test: $name: the build failed" >&2
    failed=$((failed + 1))
    timings+=("$name: build failed after $((SECONDS - begin)) s")
    return
  fi
  built=$SECONDS
  echo "test: $name: running"
  # Passing tests are only counted; everything about a failing one is shown.
  ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --output-junit "$results" "$@" </dev/null 2>&1 |
    tee "$log" | grep -vE '^ *(Start +[0-9]+: |[0-9]+/[0-9]+ Test +#[0-9]+: .* Passed +[0-9.]+ sec)'
  summarize "$results" "${PIPESTATUS[0]}"
  timings+=("$name: built in $((built - begin)) s, ran in $((SECONDS - built)) s")
}

begin=$SECONDS
if [ "$all" = yes ] || [ "$label" = tidy ] || [ "$label" = fuzz ]; then
  scripts/install_deps.sh --tests || exit 1
else
  scripts/install_deps.sh || exit 1
fi
if [ "$label" = fuzz ]; then
  stage fuzz cpu-asan fuzz_targets -L '^fuzz$'
elif [ "$label" = tidy ]; then
  stage tidy cpu all -L '^tidy$'
elif [ "$label" = mutation ]; then
  stage mutation cpu mutation_targets -L '^mutation$'
else
  # Tests of the imported model, the real vocabularies and the openai client; making them is quick the second time.
  if ! scripts/model.sh smollm2 >/dev/null || ! scripts/vocabularies.sh >/dev/null || ! scripts/venv.sh --tests; then
    echo "test: the model, the vocabularies or the Python environment of the tests could not be made" >&2
    failed=$((failed + 1))
  fi
  timings+=("preparation: $((SECONDS - begin)) s")
  if [ -n "$label" ]; then
    stage "$label" cpu all -L "^$label\$"
  else
    stage cpu cpu all -LE '^(tidy|fuzz|mutation)$'
  fi
fi
if [ "$all" = yes ]; then
  stage tidy cpu all -L '^tidy$'
  stage mutation cpu mutation_targets -L '^mutation$'
  stage asan cpu-asan all -LE '^(slow|tidy|fuzz)$'
  programs=$(IFS='|'; echo "${threaded[*]}")
  stage tsan cpu-tsan "${threaded[*]} tessera make_tiny_model" -R "^(($programs)\\.|tiny_server\$)" -LE '^slow$'
  stage fuzz cpu-asan fuzz_targets -L '^fuzz$'
fi

printf 'test: %s\n' "${timings[@]}"
line="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || line+=", $skipped skipped"
echo "$line"
[ "$failed" -eq 0 ]
