#!/usr/bin/env bash
# check_tidy.sh BUILD_DIR [FILE...]: run clang-tidy-19 with .clang-tidy over the files of BUILD_DIR's
# compile_commands.json, or over the named ones; fail on any finding. Tests are not among them: GoogleTest's headers
# would double the time, and the compiler's own warnings are errors there as everywhere.
set -euo pipefail
build=$1
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -gt 0 ]; then
  exec clang-tidy-19 --quiet -p "$build" "$@" -- -std=c++23
fi
exec python3 scripts/check_tidy.py "$build"
