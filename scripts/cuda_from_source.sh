#!/usr/bin/env bash
# cuda_from_source.sh OUT [PREFIX [ARCHITECTURE]]: build the CUDA backend's conformance tests and benchmarks into the
# folder OUT with g++ and nvcc alone, for GPU machines that lack what the whole build needs (docs/cuda.md). They need the
# headers of fmt, spdlog and xxhash, and the libraries of GoogleTest and xxhash: from PREFIX/include and PREFIX/lib, or
# the system's.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1/objects"
out=$(cd "$1" && pwd)
prefix=${2:+$(cd "$2" && pwd)}
architecture=${3:-90a}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda_include=$(cd "$(dirname "$nvcc")/../include" && pwd)

includes=(-I. ${prefix:+-isystem "$prefix/include"} -isystem "$cuda_include")
host=(g++ -std=c++23 -O2 -DFMT_HEADER_ONLY -DSPDLOG_HEADER_ONLY -DSPDLOG_FMT_EXTERNAL "${includes[@]}" -c)
device=("$nvcc" -std=c++20 -O3 "-gencode=arch=compute_$architecture,code=sm_$architecture" --expt-relaxed-constexpr -I.
        -lineinfo -Xptxas -v -c)
library=(tessera/base/{check,dtype,logging,status}.cc tessera/ops/param_checks.cc tessera/kv_cache/verifier.cc
         tessera/backends/cuda/*.cc)
reference=(tessera/backends/cpu/reference/*.cc)
kernels=(tessera/backends/cuda/kernels/*.cu)
benchmarks=(bench/cuda/*.cc)
cases=()
for file in tests/conformance/*.cc; do
  case "$file" in */cpu_backends.cc | */threads_test.cc | */mla_long_test.cc) ;; *) cases+=("$file") ;; esac
done

object() { local name=${1//\//.}; echo "$out/objects/$name.o"; }
compile() {
  local object
  object=$(object "$1")
  [ ! "$object" -nt "$1" ] || return 0
  case "$1" in *.cu) "${device[@]}" "$1" -o "$object" ;; *) "${host[@]}" "$1" -o "$object" ;; esac >"$object.log" 2>&1 ||
    { echo "cuda_from_source: $1 does not compile:"; cat "$object.log"; return 1; }
}
# Kernels take longest, so they come first.
rm -f "$out/failed"
for file in "${kernels[@]}" "${cases[@]}" "${library[@]}" "${reference[@]}" "${benchmarks[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.05; done
  { compile "$file" || touch "$out/failed"; } &
done
wait
[ ! -e "$out/failed" ] || exit 1

link() {
  local program=$1 objects=()
  shift
  for file in "$@"; do case "$file" in -*) objects+=("$file") ;; *) objects+=("$(object "$file")") ;; esac; done
  "$nvcc" -std=c++20 "-gencode=arch=compute_$architecture,code=sm_$architecture" -cudart static \
    -o "$out/$program" "${objects[@]}"
}
link tessera_bench_cuda "${benchmarks[@]}" "${library[@]}" "${kernels[@]}"
link cuda_conformance_test "${cases[@]}" "${library[@]}" "${reference[@]}" "${kernels[@]}" ${prefix:+"-L$prefix/lib"} \
  -lgtest -lxxhash
# Registers and spills of every kernel.
grep -hE "Compiling entry|spill|Used" "$out"/objects/*.cu.o.log | c++filt >"$out/kernels.txt"
