#!/usr/bin/env bash
# Profiles the kernels of one operation with Nsight Compute, found by NVTX range, and fails where
# none was found: a filter that matches nothing otherwise ends in an empty report and exit status 0.
#
#   scripts/profile_kernels.sh RANGE PROGRAM [ARGUMENT...]
#     RANGE   <pass>/<implementation>, such as conv2d.forward/cuda.zero_skip
#
# Environment: NCU_OUT (report, default out/<range>.ncu-rep), NCU_SET (sections, default detailed),
# NCU_COUNT (most kernels, default 20), NCU_ARGUMENTS (more arguments of ncu).
set -euo pipefail

if (($# < 2)); then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
range=$1
shift
ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null) || {
  echo "profile_kernels: ncu was not found" >&2
  exit 2
}
report=${NCU_OUT:-out/${range//\//_}.ncu-rep}
mkdir -p "$(dirname "$report")"
rm -f "$report"

# A slash separates nested ranges in ncu's filters; the one inside our names is escaped.
read -ra more <<<"${NCU_ARGUMENTS:-}"
"$ncu" --nvtx --nvtx-include "${range//\//\\/}/" --profile-from-start off --clock-control none \
  --set "${NCU_SET:-detailed}" --launch-count "${NCU_COUNT:-20}" --force-overwrite \
  --export "${report%.ncu-rep}" "${more[@]}" "$@"

kernels=0
if [[ -f $report ]]; then
  # One line of numbers a kernel, below two lines of headings.
  kernels=$("$ncu" --import "$report" --csv --page raw 2>/dev/null | grep -c '^"[0-9]' || true)
fi
if ((kernels == 0)); then
  echo "profile_kernels: no kernel ran inside the range $range; what ran is told by explain(), and" \
    "the program has to open a profiler window (--profile)" >&2
  exit 1
fi
echo "profile_kernels: $kernels kernels in $report"
