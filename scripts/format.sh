#!/usr/bin/env bash
# Formats own sources in place; with --check changes nothing and fails where something would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool=$(command -v clang-format-14 || command -v clang-format) || {
  echo "format: clang-format-14 is missing; run scripts/install_dependencies.sh --dev" >&2
  exit 1
}
if [[ $("$tool" --version) != *" version 14."* ]]; then
  echo "format: $("$tool" --version) may format in another way than version 14" >&2
fi
mapfile -t files < <(find zerone.h kernels core autograd ops examples tests bench -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \))
if [[ ${1:-} == --check ]]; then
  "$tool" --dry-run -Werror "${files[@]}"
  echo "format: ${#files[@]} files are formatted"
else
  "$tool" -i "${files[@]}"
fi
