#!/usr/bin/env bash
# make_all.sh DIR [MODEL]: every lower precision and every fault of a model in FP8 blocks (models/tessera-pocket if none is
# named), as folders of DIR. Folders that are there already are left as they are: remove them when the model changes.
set -euo pipefail
[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: tools/lower_precision/make_all.sh DIR [MODEL]" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$1
model=${2:-$root/models/tessera-pocket}
"$root/scripts/venv.sh"

# make NAME ACTION...: one folder
make() {
  [ ! -e "$out/$1" ] || return 0
  "$root/.venv/bin/python" "$root/tools/lower_precision/lower_precision.py" --model "$model" --out "$out/$1" "${@:2}"
}
make bf16 --bf16
make int4 --experts int4
make int3 --experts int3
make int2 --experts int2
make fp8-one-scale --fp8-one-scale
make wrong-scale --damage wrong-scale:3:2
make wrong-scale-slight --damage wrong-scale:3:1.1
make permuted-experts --damage permute-experts:3
