#!/usr/bin/env bash
# Runs every benchmark of a build, PyTorch's times of the same cases where PyTorch is installed, and
# merges them into tables and goals: OUT_DIR/<binary>.json, OUT_DIR/peers_*.json, OUT_DIR/results.
#
#   scripts/run_bench.sh BUILD_DIR OUT_DIR [--quick]
#
# On the CPU it times experiment 1 only: the other suites are for a GPU, or run by hand.
# Environment: BENCH_THREADS (CPU threads to time, as in 1,8; default all), BENCH_TIMEOUT (seconds a
# program, default 240), BENCH_FILTER (regular expression of Google Benchmark, GPU programs),
# BENCH_BUDGET_MS (time of one row's samples).

# The folder of the cuDNN that PyTorch brings, so that both sides run the same library.
pytorch_cudnn() {
  python3 - <<'PYTHON' 2>/dev/null
import importlib.util
import pathlib

spec = importlib.util.find_spec("nvidia.cudnn")
for place in spec.submodule_search_locations if spec else ():
    library = pathlib.Path(place) / "lib"
    if any(library.glob("libcudnn.so*")):
        print(library)
        break
PYTHON
}

bench_steps() {  # BUILD_DIR OUT_DIR QUICK(0|1)
  local build=$1 folder=$2 quick=$3 program name device filter devices=(cpu) more=() programs suites
  local threads=${BENCH_THREADS:-$(nproc)} cudnn files=() limited ours
  mkdir -p "$folder"
  rm -f "$folder"/*.json
  cudnn=$(pytorch_cudnn)
  limited=(timeout -k 10 "${BENCH_TIMEOUT:-240}")
  ours=(env LD_LIBRARY_PATH="${cudnn:+$cudnn:}${LD_LIBRARY_PATH:-}" "${limited[@]}")
  if ((quick)); then
    more+=(--quick)
  fi
  if [[ -n ${BENCH_BUDGET_MS:-} ]]; then
    more+=(--budget-ms "$BENCH_BUDGET_MS")
  fi
  if nvidia-smi -L >/dev/null 2>&1; then
    devices=(cuda cpu)
  fi
  if ! ls "$build"/bench/*_bench >/dev/null 2>&1; then
    step bench bash -c "echo 'no benchmark in $build/bench'; exit 1"
    return
  fi

  # Ours and the peers in turn on one device, so that both see the same machine.
  # A row that fails its check fails the step and carries no time; the other rows still count.
  for device in "${devices[@]}"; do
    programs=("$build"/bench/*_bench) filter=${BENCH_FILTER:-} suites=()
    if [[ $device == cpu ]]; then
      programs=("$build/bench/experiment_bench") filter='^(experiment1|ceilings)/'
      suites=(--suite experiment1 --suite ceilings)
    fi
    for program in "${programs[@]}"; do
      name=$(basename "$program" _bench)_$device
      step "bench $name" "${ours[@]}" "$program" --device "$device" --threads "$threads" "${more[@]}" \
        --benchmark_out="$folder/$name.json" --benchmark_out_format=json \
        ${filter:+--benchmark_filter="$filter"}
      [[ -s $folder/$name.json ]] && files+=("$folder/$name.json")
    done
    if python3 -c 'import torch' 2>/dev/null; then
      step "peers $device" "${limited[@]}" python3 bench/peers_pytorch.py --device "$device" \
        --threads "$threads" --out "$folder/peers_$device.json" "${more[@]}" "${suites[@]}" &&
        files+=("$folder/peers_$device.json")
    else
      skip "peers $device" "python3 has no torch"
    fi
  done

  if ((${#files[@]} > 0)); then
    compare_to() { python3 bench/compare.py --results "$1/results" "${@:2}" >"$1/tables.txt"; }
    step compare compare_to "$folder" "${files[@]}"
  fi
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -uo pipefail
  if (($# < 2)); then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
  fi
  quick=0
  if [[ ${3:-} == --quick ]]; then
    quick=1
  fi
  build=$(cd "$1" && pwd) && mkdir -p "$2" && out=$(cd "$2" && pwd) || exit 2
  cd "$(dirname "$0")/.." || exit 2
  # shellcheck source=scripts/steps.sh
  source scripts/steps.sh
  bench_steps "$build" "$out" "$quick"
  if [[ -f $out/tables.txt ]]; then
    cat "$out/tables.txt"
  fi
  summary
fi
