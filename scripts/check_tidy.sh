#!/usr/bin/env bash
# check_tidy.sh BUILD_DIR [FILE...]: run clang-tidy-19 with .clang-tidy over the files of BUILD_DIR's
# compile_commands.json, or over the named ones in the same way; fail on any finding. Tests are not among them:
# GoogleTest's headers would double the time, and the compiler's own warnings are errors there as everywhere.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/check_tidy.py" "$@"
