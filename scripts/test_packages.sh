#!/usr/bin/env bash
# Makes the Debian packages and uses them in a fresh root of this distribution, which debootstrap
# fetches: installs both, compiles two consumers against them (CMake, pkg-config), runs these with
# the library package alone, and looks for what is left when that is removed, too.
#
#   scripts/test_packages.sh       as root; the packages are left in build/packages
#
# Fails if the stripped library is larger, or its build from nothing slower, than the goals below.
# Environment: ZERONE_MIRROR (a package mirror; default: debootstrap's own), JOBS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly most_bytes=6000000
readonly most_seconds=180  # on two cores, without ccache; from CPU time, so that load does not count
readonly packages=build/packages

fail() {
  printf 'test_packages: %s\n' "$*" >&2
  exit 1
}
((EUID == 0)) || fail "needs root, for chroot"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

quietly() {  # shows the output of a command only if it fails
  "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; return 1; }
}

# --- build ----------------------------------------------------------------------------------------
rm -rf build/package "$packages"
export CCACHE_DISABLE=1
unset CMAKE_CXX_COMPILER_LAUNCHER
quietly cmake --preset package
TIMEFORMAT='%R %U %S'
{ time quietly cmake --build --preset package -j "${JOBS:-2}"; } 2>"$work/time" || { cat "$work/time" >&2; exit 1; }
read -r wall user system <"$work/time"
seconds=$(awk -v user="$user" -v kernel="$system" 'BEGIN { printf "%d", (user + kernel) / 2 + 0.5 }')
echo "clean build: $wall s, CPU $user s + $system s: $seconds s on two idle cores (at most $most_seconds)"
quietly cpack --preset package

# --- the packages ---------------------------------------------------------------------------------
shopt -s nullglob
runtime=("$packages"/libzerone[0-9]*.deb) dev=("$packages"/libzerone-dev_*.deb)
((${#runtime[@]} == 1 && ${#dev[@]} == 1)) || fail "not one package each in $packages: ${runtime[*]} ${dev[*]}"
package=$(dpkg-deb -f "${runtime[0]}" Package)
dpkg-deb -x "${runtime[0]}" "$work/runtime"
library=$(find "$work/runtime" -type f -name 'libzerone.so.*')
bytes=$(stat -c %s "$library")
printf '%s: %s needs %s\n' "${runtime[0]##*/}" "$package" "$(dpkg-deb -f "${runtime[0]}" Depends)"
echo "stripped library: $bytes bytes (at most $most_bytes)"
if nm --dynamic --defined-only "$library" | grep -v 6zerone; then
  fail "the library exports the symbols above, which are none of zerone"
fi
((bytes <= most_bytes)) || fail "the library is too large"
((seconds <= most_seconds)) || fail "the build is too slow"

# --- a clean root ---------------------------------------------------------------------------------
root=$work/root
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
echo "a fresh root of $suite"
quietly debootstrap --variant=minbase "$suite" "$root" ${ZERONE_MIRROR:+"$ZERONE_MIRROR"}
mkdir "$root/test"
cp "${runtime[0]}" "${dev[0]}" "$root/test"
cp -r examples/consumer/installed examples/consumer/pkg_config "$root/test"

inside() {
  quietly chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "$@"
}
install() {
  inside apt-get install -y --no-install-recommends "$@"
}
files() {  # all but what the package manager keeps for itself
  (cd "$root" && find . -xdev \( -path ./var -o -path ./test -o -path ./tmp \) -prune -o -print | LC_ALL=C sort)
}
run_consumers() {
  local program
  for program in installed/build/consumer pkg_config/consumer; do
    inside "/test/$program" || fail "$program failed $1"
    cat "$work/log"
  done
}
inside apt-get update
files >"$work/before"
install "/test/${runtime[0]##*/}" || fail "the library package cannot be installed alone"
install "/test/${dev[0]##*/}" g++ cmake ninja-build make pkg-config
inside cmake -G Ninja -S /test/installed -B /test/installed/build -DCMAKE_BUILD_TYPE=Release
inside cmake --build /test/installed/build
inside make -C /test/pkg_config
run_consumers "with both packages"

# Headers of another version are told apart.
header=$root/usr/include/zerone/version.h
sed -i 's/\(#define ZERONE_VERSION_MINOR\) .*/\1 99/' "$header"
inside make -B -C /test/pkg_config
if inside /test/pkg_config/consumer 2>/dev/null; then
  fail "a program with the headers of another version runs"
fi
grep -q 'compiled with the headers of zerone' "$work/log" || fail "it says: $(cat "$work/log")"
install --reinstall "/test/${dev[0]##*/}"
inside make -B -C /test/pkg_config

inside apt-get purge -y libzerone-dev g++ cmake ninja-build make pkg-config
inside apt-get autoremove --purge -y
[[ ! -e $root/usr/include/zerone && ! -e $root/usr/bin/g++ ]] || fail "removing the -dev package left its files"
run_consumers "with the library package alone"
inside apt-get purge -y "$package"
inside apt-get autoremove --purge -y
files >"$work/after"
if ! diff "$work/before" "$work/after"; then
  fail "installing and removing the packages changed the files above"
fi
if inside /test/pkg_config/consumer 2>/dev/null; then
  fail "a consumer runs without the library"
fi
echo "packages: passed"
