#!/usr/bin/env bash
# Installs what zerone is built from, on Debian 12 or Ubuntu 24.04: only what is missing, and
# nothing at all (no network, no root) where all is there.
#
#   scripts/install_dependencies.sh [--cuda] [--data] [--report] [--dev] [--list]
#     --cuda   also cudnn-frontend's headers, from PyPI, into .deps/cudnn-frontend
#     --data   also the images that fashion_mnist is trained on
#     --report also what draws the report of the experiments
#     --dev    also that, the tools of `make check`, and safetensors and numpy from PyPI, into
#              .deps/python, for the test that exchanges files with Python
#     --list   prints the list and stops
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly cudnn_frontend=1.32.0  # the graph API changes between minor versions
readonly safetensors=0.8.0      # whose bytes ours must equal

# group, package, the command that makes it unnecessary (or -), reason. Versions are those of the
# distribution, except where the name pins one.
readonly packages='
build  g++                 g++              C++20 compiler, with OpenMP: g++ 12 or newer
build  cmake               cmake            3.25 or newer, for presets of version 6
build  ninja-build         ninja            the generator of the presets
build  python3             python3          include-arrow test, benchmark comparison; 3.10 or newer
build  libeigen3-dev       -                matrix products of the dense CPU rows; build time only
build  libhwy-dev          -                portable SIMD of the pointwise and zero-skip CPU rows
build  libfmt-dev          -                texts of errors and of explain
build  nlohmann-json3-dev  -                saved plans, JSON of the experiments; build time only
build  libdnnl-dev         -                oneDNN rows: the fastest dense CPU rows and the peer
build  ocl-icd-opencl-dev  -                asked for by the CMake package of oneDNN; not called
build  libcli11-dev        -                command lines of the experiments
build  zlib1g-dev          -                images of fashion_mnist, which are gzip files
build  libgtest-dev        -                tests
build  libbenchmark-dev    -                benchmarks
data   dataset-fashion-mnist -              images to train fashion_mnist on, 30 MB
report python3-matplotlib  -                plots of the report of the experiments
report python3-jinja2      -                its page
dev    clang-format-14     clang-format-14  the version that the format check is pinned to
dev    shellcheck          shellcheck       checks of the scripts
dev    doxygen             doxygen          reference of the public headers
dev    pkg-config          pkg-config       the consumer without CMake
dev    dpkg-dev            dpkg-shlibdeps   Debian packages: what the library needs
dev    file                file             Debian packages: the same, for cpack
dev    debootstrap         debootstrap      a fresh root, to try the packages in
pypi   python3-pip         pip              fetches wheels: cudnn-frontend, safetensors, numpy
'

want=(build)
for argument in "$@"; do
  case $argument in
    --cuda) want+=(cuda) ;;
    --data) want+=(data) ;;
    --report) want+=(report) ;;
    --dev) want+=(dev report) ;;
    --list)
      printf '%s' "${packages#$'\n'}"
      printf 'cuda   cudnn-frontend %s (PyPI)\n' "$cudnn_frontend"
      printf 'dev    safetensors %s, numpy (PyPI)\n' "$safetensors"
      exit ;;
    *)
      sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
      printf 'install_dependencies: unknown option %s\n' "$argument" >&2
      exit 2 ;;
  esac
done

fail() {
  printf 'install_dependencies: %s\n' "$*" >&2
  exit 1
}

wanted() {
  [[ " ${want[*]} " == *" $1 "* ]]
}

have_package() {
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Whether a command is there and new enough: not every tool comes from the distribution.
have_command() {
  case $1 in
    -) false ;;
    pip) python3 -m pip --version >/dev/null 2>&1 ;;
    cmake) [[ $(cmake --version 2>/dev/null | head -n 1) =~ ([0-9]+)\.([0-9]+) ]] &&
      ((BASH_REMATCH[1] * 1000 + BASH_REMATCH[2] >= 3025)) ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

readonly headers=.deps/cudnn-frontend/include
have_cudnn_frontend() {
  local version
  version=$(sed -n 's/^#define CUDNN_FRONTEND_\(MAJOR\|MINOR\|PATCH\)_VERSION //p' \
    "$headers/cudnn_frontend_version.h" 2>/dev/null | paste -sd.)
  [[ $version == "$cudnn_frontend" ]]
}

have_safetensors() {
  python3 tests/python/safetensors_roundtrip.py --available 2>/dev/null
}

wheels=()
if wanted cuda && ! have_cudnn_frontend; then
  wheels+=(cudnn-frontend)
fi
if wanted dev && ! have_safetensors; then
  wheels+=(safetensors)
fi
if ((${#wheels[@]} > 0)); then
  want+=(pypi)
fi

missing=()
while read -r group package command _; do
  if [[ -z $group ]] || ! wanted "$group"; then
    continue
  fi
  if ! have_command "$command" && ! have_package "$package"; then
    missing+=("$package")
  fi
done <<<"$packages"

if ((${#missing[@]} > 0)); then
  command -v apt-get >/dev/null ||
    fail "no apt-get here; please install by other means: ${missing[*]}"
  root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "neither root nor sudo; please have installed: ${missing[*]}"
    root=(sudo)
  fi
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  echo "apt-get update"
  "${root[@]}" apt-get -qq update >"$log" 2>&1 </dev/null || { cat "$log" >&2; fail "apt-get update failed"; }
  echo "apt-get install ${missing[*]}"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null ||
    { tail -n 20 "$log" >&2; fail "apt-get install failed"; }
fi

if [[ " ${wheels[*]} " == *" cudnn-frontend "* ]]; then
  echo "cudnn-frontend $cudnn_frontend from PyPI"
  folder=$(mktemp -d)
  trap 'rm -rf "$folder" ${log:+"$log"}' EXIT
  python3 -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: \
    --dest "$folder" "nvidia-cudnn-frontend==$cudnn_frontend" ||
    fail "the wheel nvidia-cudnn-frontend==$cudnn_frontend could not be fetched"
  python3 -m zipfile -e "$folder"/*.whl "$folder/wheel"
  mkdir -p .deps/cudnn-frontend
  rm -rf "$headers"
  mv "$folder/wheel/include" "$headers"
  have_cudnn_frontend || fail "the wheel holds another version than its name says"
fi
if [[ " ${wheels[*]} " == *" safetensors "* ]]; then
  echo "safetensors $safetensors and numpy from PyPI"
  python3 -m pip --quiet --disable-pip-version-check install --root-user-action=ignore \
    --no-deps --only-binary :all: --upgrade --target .deps/python \
    "safetensors==$safetensors" numpy || fail "safetensors and numpy could not be fetched"
  have_safetensors || fail "safetensors and numpy were installed, but Python cannot import them"
fi
echo "dependencies: all there"
