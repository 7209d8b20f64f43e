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
# The folder appears complete or not at all; one older than its script is made again.
if [ ! -d "$out" ] || [ tools/dump_vocabularies.py -nt "$out" ]; then
  scripts/venv.sh --tests
  rm -rf "$out.new"
  .venv/bin/python tools/dump_vocabularies.py --out "$out.new" >&2
  rm -rf "$out"
  mv "$out.new" "$out"
  touch "$out"
fi
realpath -- "$out"
