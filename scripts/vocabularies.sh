#!/usr/bin/env bash
# vocabularies.sh: print the folder of the real vocabularies that tests compare with, making it first where it is not
# there: Kimi K2's, GLM-4.5's and Qwen3's, out of the Python package splintr-rs, into build/vocabularies.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -eq 0 ] || { echo "usage: scripts/vocabularies.sh" >&2; exit 2; }
out=build/vocabularies
mkdir -p build
exec 9>build/.vocabularies.lock  # two at a time would write twice
flock 9
# The folder appears complete or not at all; one of another version of the package, or of another script, is made again.
made_of=$(grep '^splintr-rs==' tools/requirements-tests.txt; sha256sum tools/dump_vocabularies.py)
if [ "$(cat "$out/made_of" 2>/dev/null)" != "$made_of" ]; then
  scripts/venv.sh --tests
  rm -rf "$out.new"
  .venv/bin/python tools/dump_vocabularies.py --out "$out.new" >&2
  printf '%s\n' "$made_of" > "$out.new/made_of"
  rm -rf "$out"
  mv "$out.new" "$out"
fi
realpath -- "$out"
