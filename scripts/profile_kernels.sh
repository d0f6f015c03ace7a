#!/bin/bash
# Profiles the kernels inside one NVTX range with Nsight Compute, and fails if there were none.
#   scripts/profile_kernels.sh "conv2d.forward/cuda.zero_skip" program [arguments]
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 RANGE PROGRAM [ARGUMENTS]" >&2
  exit 2
fi
range=$1
shift
report=${ZERONE_NCU_REPORT:-zerone-ncu}
ncu --nvtx --nvtx-include "$range/" --profile-from-start off --clock-control none \
    --set detailed --force-overwrite -o "$report" "$@"
kernels=$(ncu --import "$report.ncu-rep" --page raw --csv 2>/dev/null | tail -n +3 | wc -l)
if [ "$kernels" -eq 0 ]; then
  echo "no kernel ran inside the range '$range': is it the row that explain() names, and does the" \
       "program open a profiler window (--profile)?" >&2
  exit 1
fi
echo "$kernels kernels in $report.ncu-rep"
ncu --import "$report.ncu-rep" --page details --print-summary per-kernel | head -60
