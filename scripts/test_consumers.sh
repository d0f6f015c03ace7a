#!/usr/bin/env bash
# Installs a build and uses it as four separate projects would: find_package, pkg-config,
# add_subdirectory, and find_package without a CUDA toolkit.
#
#   scripts/test_consumers.sh [BUILD_DIR] [NAME...]
#     BUILD_DIR   a finished build (default build/cpu)
#     NAME        installed, pkg_config, cpu_only, subdirectory (default: all)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
build=$(cd "${1:-build/cpu}" && pwd)
names=" ${*:2} "
wants() { [[ $names == "  " || $names == *" $1 "* ]]; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
jobs=${JOBS:-$(nproc)}
cuda=$(sed -n 's/^ZERONE_CUDA:BOOL=//p' "$build/CMakeCache.txt")
prefixes=$(sed -n 's/^CMAKE_PREFIX_PATH:[A-Z]*=//p' "$build/CMakeCache.txt")

quietly() {  # shows the output of a command only if it fails
  "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; return 1; }
}

consume() {  # NAME CONFIGURE_ARGUMENT...
  local name=$1
  shift
  wants "$name" || return 0
  echo "consumer $name"
  quietly cmake -G Ninja -S "$root/examples/consumer/$name" -B "$work/$name" \
    -DCMAKE_BUILD_TYPE=Release "$@"
  quietly cmake --build "$work/$name" -j "$jobs"
  "$work/$name/consumer"
}

# Installed somewhere else than where it is used from: the package has to be relocatable.
quietly cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/prefix"
if grep -rlF -e "$root" -e "$work/first" "$work/prefix" --include='*.cmake' --include='*.h' --include='*.pc'; then
  echo "test_consumers: the files above name a folder of the build machine" >&2
  exit 1
fi

consume installed -DCMAKE_PREFIX_PATH="$work/prefix;$prefixes"

if wants pkg_config; then
  echo "consumer pkg_config"
  cp -r examples/consumer/pkg_config "$work"
  libraries=$(dirname "$(find "$work/prefix" -name 'libzerone.*' | head -n 1)")
  export PKG_CONFIG_PATH=$libraries/pkgconfig
  static=--static
  if [[ -e $libraries/libzerone.so ]]; then
    static=''
  fi
  quietly make -C "$work/pkg_config" STATIC=$static
  LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/pkg_config/consumer"
fi

if [[ $cuda == ON ]]; then
  echo "consumer cpu_only: left out, $build was built with CUDA"
else
  # No nvcc to be found: a PATH of links to all commands but the toolkit's.
  mkdir "$work/bin"
  IFS=: read -ra folders <<<"$PATH"
  for folder in "${folders[@]}"; do
    if [[ -d $folder && ! -e $folder/nvcc ]]; then
      find -L "$folder" -maxdepth 1 -type f -executable -exec ln -s -t "$work/bin" {} + 2>/dev/null || true
    fi
  done
  (
    unset CUDACXX CUDA_PATH CUDA_HOME CUDAToolkit_ROOT LD_LIBRARY_PATH
    PATH=$work/bin
    consume cpu_only -DCMAKE_PREFIX_PATH="$work/prefix;$prefixes"
  )
fi

# Unoptimized: it is the build that is tested here.
consume subdirectory -DCMAKE_BUILD_TYPE=Debug -DZERONE_SOURCE="$root" -DCMAKE_PREFIX_PATH="$prefixes"
echo "consumers: passed"
