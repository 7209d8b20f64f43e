#!/usr/bin/env bash
# install_deps.sh [--tests]: install the Debian 12 packages that building and running need; --tests adds what only tests,
# benchmarks and linters need. Asks no registry and takes no time when everything is there. Needs root or sudo otherwise.
set -euo pipefail

build=(
  # Compiler and build.
  g++ cmake ninja-build ccache pkg-config git ca-certificates
  # HTTP server and JSON; both of 1.81, which conflicts with the unversioned packages of Debian 12.
  libboost1.81-dev libboost-json1.81-dev
  # Command line, logging, metrics; prometheus-cpp's CMake file also asks for libcurl and zlib.
  libcli11-dev libspdlog-dev libfmt-dev prometheus-cpp-dev libcurl4-openssl-dev zlib1g-dev
  # Regular expressions, Unicode normalization, SIMD, NUMA, digests, secrets, editing a line in the terminal.
  libpcre2-dev libutf8proc-dev libhwy-dev libhwloc-dev libxxhash-dev libssl-dev libedit-dev
  # Every room's tests are part of the build tree, so configuring needs their libraries too.
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev
  # Searches the models of tests/model_checking.
  spin
  # Python for tools/, in an environment of the project's own (scripts/venv.sh).
  python3 python3-venv python3-pip
)
tests=(
  # Fuzz targets and linters: clang before 19 cannot read libstdc++'s <expected>.
  clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev libclang-cpp19
  # Tests drive the server from outside.
  curl
)

packages=("${build[@]}")
case "${1:-}" in
  "") ;;
  --tests) packages+=("${tests[@]}") ;;
  *) echo "usage: scripts/install_deps.sh [--tests]" >&2; exit 2 ;;
esac

installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p')
missing=()
for package in "${packages[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install_deps: need root or sudo to install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
# A machine that is still setting itself up may hold dpkg's lock for a while: wait for it rather than fail.
apt=(apt-get -y -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 --no-install-recommends)
echo "install_deps: installing ${missing[*]}" >&2
"${as_root[@]}" apt-get -qq update >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${apt[@]}" install "${missing[@]}" </dev/null >&2
