#!/usr/bin/env bash
# run.sh [--model NAME|DIR] [--once PROMPT] [flags of `tessera serve`]: install what is missing, build, then serve the
# bundled model, or the one that is named, with a chat in this terminal, or print one answer (--once). Only the answer
# goes to standard output.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

model=tessera-pocket
mode=(--chat)
flags=()
while [ $# -gt 0 ]; do
  case "$1" in
    --model) model=${2:?"--model needs a name or a folder"}; shift 2 ;;
    --model=*) model=${1#*=}; shift ;;
    --once) mode=(--once "${2?"--once needs a prompt"}"); shift 2 ;;
    --once=*) mode=(--once "${1#*=}"); shift ;;
    *) flags+=("$1"); shift ;;
  esac
done

"$scripts/install_deps.sh"
"$scripts/build.sh" cpu tessera
folder=$("$scripts/model.sh" "$model")
exec "$scripts/../build/cpu/bin/tessera" serve --model "$folder" "${mode[@]}" "${flags[@]}"
