#!/usr/bin/env bash
# What the compiler made of each CUDA kernel: registers, stack (spills), shared memory, and how many
# instructions of the kinds that matter. One line a kernel.
#
#   scripts/kernel_resources.sh FILE...    (static library, object or program)
set -euo pipefail

tool=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump 2>/dev/null) || {
  echo "kernel_resources: cuobjdump was not found" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in "$@"; do
  "$tool" --dump-resource-usage "$file" >>"$work/usage" 2>>"$work/errors" || true
  "$tool" --dump-sass "$file" >>"$work/sass" 2>>"$work/errors" || true
done
if ! grep -q 'Function' "$work/usage"; then
  cat "$work/errors" >&2
  echo "kernel_resources: no kernel in $*" >&2
  exit 1
fi

awk '
  FILENAME ~ /usage$/ {
    if ($1 == "Function") { name = $2; sub(/:$/, "", name) }
    else if (/REG:/) {
      for (i = 1; i <= NF; ++i) { split($i, pair, ":"); value[pair[1]] = pair[2] }
      register[name] = value["REG"]; stack[name] = value["STACK"]; shared[name] = value["SHARED"]
    }
    next
  }
  /Function :/ { name = $NF; next }
  /^[ \t]*\/\*[0-9a-f]+\*\// {
    operation = $2; if (operation ~ /^@/) operation = $3
    sub(/[.;].*/, "", operation)
    ++total[name]
    if (operation ~ /^(FFMA|FFMA2|DFMA|HFMA2)$/) ++fma[name]
    if (operation ~ /^(HMMA|HGMMA|IMMA|DMMA|QGMMA)$/) ++matrix[name]
    if (operation ~ /^(LDG|LDGSTS|UTMALDG|UBLKCP)$/) ++load[name]
    if (operation ~ /^(LDL|STL)$/) ++local[name]
  }
  END {
    for (name in register)
      printf "%d %d %d %d %d %d %d %d %s\n", register[name], stack[name], shared[name], total[name],
             fma[name], matrix[name], load[name], local[name], name
  }' "$work/usage" "$work/sass" | { c++filt 2>/dev/null || cat; } |
  sed -e 's/zerone::kernels::cuda:://g; s/(anonymous namespace):://g' | LC_ALL=C sort -k9 >"$work/table"
printf '%5s %6s %7s %6s %6s %6s %5s %6s  %s\n' regs stack shared instr fma matrix loads local kernel
awk '{ line = $0; for (i = 1; i <= 8; ++i) sub(/^[^ ]+ /, "", line)
       printf "%5d %6d %7d %6d %6d %6d %5d %6d  %s\n", $1, $2, $3, $4, $5, $6, $7, $8, line }' \
  "$work/table"
awk '$8 > 0 { ++n } END { printf "%d kernels, %d of them with local loads or stores\n", NR, n }' \
  "$work/table"
