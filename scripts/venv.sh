#!/usr/bin/env bash
# venv.sh [--tests]: make or complete the project's own Python environment, .venv, with the pinned packages of
# tools/requirements.txt; --tests adds tools/requirements-tests.txt. Does nothing when they are in already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lists=(tools/requirements.txt)
case "${1:-}" in
  "") ;;
  --tests) lists+=(tools/requirements-tests.txt) ;;
  *) echo "usage: scripts/venv.sh [--tests]" >&2; exit 2 ;;
esac

# One at a time: ./run and ./test may be started together.
mkdir -p build
exec 9>build/.venv.lock
flock 9

# Debian's own Python, whatever else is first in PATH.
[ -x .venv/bin/python ] || { echo "venv: making .venv" >&2; /usr/bin/python3 -m venv .venv; }
for list in "${lists[@]}"; do
  stamp=.venv/$(basename "$list")
  cmp -s "$list" "$stamp" && continue
  echo "venv: installing $list" >&2
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r "$list" >&2
  cp "$list" "$stamp"
done
