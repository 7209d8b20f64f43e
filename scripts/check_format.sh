#!/usr/bin/env bash
# check_format.sh [FILE...]: fail, naming lines, where C++ is not as clang-format-19 would write it; all files when none
# is named. To mend: clang-format-19 -i FILE.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -eq 0 ]; then
  mapfile -d '' files < <(find tessera apps tests bench -path tests/style/canary -prune -o \
    -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' \) -print0)
  set -- "${files[@]}"
fi
exec clang-format-19 --dry-run -Werror "$@"
