#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: configure and build a preset of CMakePresets.json, on standard error; all targets when
# none is named. Safe to run again: it does only what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
# A tree that was configured elsewhere (a copied folder) would build the other place's sources: start afresh.
if ! grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "build/$preset/CMakeCache.txt"; then
  rm -rf "build/$preset"
fi
# Likewise when presets have changed since: CMake itself reads them only when it configures.
if [ ! -f "build/$preset/build.ninja" ] || [ CMakePresets.json -nt "build/$preset/CMakeCache.txt" ]; then
  cmake --fresh --preset "$preset" >&2
fi
# ccache passes over files that read precompiled headers unless it is told that macros of time do not matter: there are none.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
exec ninja -C "build/$preset" "$@" >&2
