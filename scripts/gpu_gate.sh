#!/usr/bin/env bash
# Everything that a CUDA host has to show, in under 12 minutes: build, tests, sanitizers on our own
# kernels, benchmarks beside their peers, both experiments, and what the compiler made of the
# kernels. Needs no root and no network; changes nothing on the GPU.
#
#   scripts/gpu_gate.sh OUT_DIR [--quick] [--only STEP,...] [--build BUILD_DIR]
#     STEP: build test sanitize bench experiments sass (default: all; a step needs an earlier build)
#     --quick   shorter benchmarks and experiments, one sanitizer
#
# Environment: ZERONE_DEPS_PREFIX (a prefix with dependencies that the system lacks), JOBS,
# ZERONE_ARCHITECTURES (default: the GPU's own), and that of scripts/run_bench.sh.
#
# OUT_DIR gets eight files: summary.txt, tables.txt (benchmarks and goals), kernels.txt, test.log,
# sanitize.log, zero_weights.json, conv1x1_vs_linear.json, and results.tar.gz, which holds these and
# bench/results, every log and every raw file. All are kept up to date from step to step, so a run
# that is cut short leaves what it had; what earlier runs with the same BUILD_DIR made stays in.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
# shellcheck source=scripts/steps.sh
source scripts/steps.sh
# shellcheck source=scripts/run_bench.sh
source scripts/run_bench.sh

usage() {
  sed -n '2,17s/^# \{0,1\}//p' scripts/gpu_gate.sh >&2
  exit 2
}

readonly all_steps=build,test,sanitize,bench,experiments,sass
out='' quick=0 only=$all_steps build=build/cuda
while (($# > 0)); do
  case $1 in
    --quick) quick=1 ;;
    --only) only=${2:-}; shift ;;
    --build) build=${2:-}; shift ;;
    -*) echo "gpu_gate: unknown option $1" >&2; usage ;;
    *) [[ -z $out ]] || usage; out=$1 ;;
  esac
  shift
done
[[ -n $out && -n $only && -n $build ]] || usage
IFS=, read -ra steps <<<"$only"
for name in "${steps[@]}"; do
  if [[ ",$all_steps," != *",$name,"* ]]; then
    echo "gpu_gate: --only $name: legal are $all_steps" >&2
    exit 2
  fi
done
wants() { [[ ",$only," == *",$1,"* ]]; }

work=$build/gate
mkdir -p "$out" "$work/logs" "$work/raw" || exit 2
out=$(cd "$out" && pwd)
STEP_LOGS=$work/logs
STEP_AFTER=save
save() {
  {
    printf 'commit %s\n' "${ZERONE_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}"
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu \
      --format=csv 2>/dev/null
    summary
  } >"$out/summary.txt"
  cp "$out"/*.txt "$out"/*.log "$out"/*.json "$work" 2>/dev/null
  tar -C "$build" -czf "$out/results.tar.gz" gate
}
jobs=${JOBS:-$(nproc)}

# Tools of the toolkit that are not on the PATH, and libraries of the given prefix.
for folder in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do
  if [[ -d $folder ]]; then
    PATH=$PATH:$folder
  fi
done
prefix=${ZERONE_DEPS_PREFIX:-}
if [[ -n $prefix ]]; then
  libraries=$prefix/lib/$(uname -m)-linux-gnu:$prefix/lib
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi

# --- build ----------------------------------------------------------------------------------------
build_ok=0
if wants build; then
  configure=(cmake --preset cuda -B "$build" -DZERONE_TESTS=ON -DZERONE_EXAMPLES=ON -DZERONE_BENCH=ON)
  if [[ -n $prefix ]]; then
    configure+=("-DCMAKE_PREFIX_PATH=$prefix")
  fi
  if [[ -n ${ZERONE_ARCHITECTURES:-} ]]; then
    configure+=("-DCMAKE_CUDA_ARCHITECTURES=$ZERONE_ARCHITECTURES")
  fi
  step configure "${configure[@]}" && step build cmake --build "$build" -j "$jobs" -- -k 0 && build_ok=1
elif [[ -f $build/CMakeCache.txt ]]; then
  build_ok=1
fi
if ((!build_ok)); then
  echo "gpu_gate: no complete build in $build; running what is there" >&2
fi

# --- tests ----------------------------------------------------------------------------------------
# One test at a time on the GPU: they share its memory, and some measure.
run_tests() {
  ctest --test-dir "$build" --no-tests=error --output-on-failure --timeout 300 -j "${CTEST_JOBS:-1}"
}
if wants test; then
  step test run_tests
  cp "$work/logs/test.log" "$out/test.log"
  grep -E 'tests passed|tests failed' "$out/test.log"
fi

# --- sanitizers: our own kernels only, on the tests that launch them --------------------------------
# Test and gtest filter: every own row once; the long random sweeps run without a sanitizer, and
# racecheck, which is slower by another factor of 20, sees every seventh problem.
readonly sanitized=(
  'elementwise *'
  'reduce *'
  'pointwise Pointwise.NamedProblems*:Pointwise.KnownZero*:Pointwise.NoSpelling*'
  'batch_norm BatchNorm.*'
  'dropout Dropout*'
  'optimizer Optimizer*'
  'pool Pool.*'
  'softmax Softmax.*:CrossEntropy.*'
  'conv2d Conv2d.NamedProblems*:Conv2d.WeightsWithZeros*:Conv2d.NoInput*:Conv2d.Denormals*'
)
sanitize() {  # TOOL TEST FILTER; API errors inside vendor libraries are theirs, ours are checked
  local text status=0
  text=$(ZERONE_TEST_ROWS=own compute-sanitizer --tool "$1" --kernel-name kns=zerone --error-exitcode 99 \
    --print-limit 20 --report-api-errors no "$build/tests/$2_test" --gtest_filter="$3" \
    --gtest_brief=1 2>&1) || status=$?
  printf '%s\n' "$text"
  if [[ $text == *" 0 tests from"* ]]; then
    echo "no test matches $3"
    return 1
  fi
  return "$status"
}
if wants sanitize; then
  if command -v compute-sanitizer >/dev/null; then
    tools=(memcheck racecheck)
    if ((quick)); then
      tools=(memcheck)
    fi
    export -f sanitize
    export build
    for tool in "${tools[@]}"; do
      stride=1
      if [[ $tool == racecheck ]]; then
        stride=7
      fi
      for line in "${sanitized[@]}"; do
        read -r name filter <<<"$line"
        # shellcheck disable=SC2016
        step "$tool $name" env ZERONE_TEST_STRIDE="$stride" timeout -k 10 "${SANITIZE_TIMEOUT:-120}" \
          bash -c 'sanitize "$@"' - "$tool" "$name" "$filter"
      done
    done
    tail -n 200 "$work"/logs/{memcheck,racecheck}_*.log >"$out/sanitize.log" 2>/dev/null
  else
    step sanitize bash -c 'echo "compute-sanitizer was not found"; exit 1'
  fi
fi

# --- benchmarks -----------------------------------------------------------------------------------
if wants bench; then
  bench_steps "$build" "$work/raw" "$quick"
  cp "$work/raw/tables.txt" "$out/tables.txt" 2>/dev/null
fi

# --- experiments ----------------------------------------------------------------------------------
if wants experiments; then
  arguments=(--device both)
  if ((quick)); then
    arguments+=(--time-budget 5)
  fi
  for name in zero_weights conv1x1_vs_linear; do
    step "experiment $name" timeout -k 10 "${EXPERIMENT_TIMEOUT:-150}" \
      env LD_LIBRARY_PATH="$(pytorch_cudnn):${LD_LIBRARY_PATH:-}" \
      "$build/examples/$name" "${arguments[@]}" --json "$out/$name.json"
  done
fi

# --- kernels --------------------------------------------------------------------------------------
if wants sass; then
  resources() { scripts/kernel_resources.sh "$build/libzerone.a" >"$out/kernels.txt"; }
  step kernels resources
  tail -n 1 "$out/kernels.txt"
fi

save
cat "$out/summary.txt"
((STEP_FAILED == 0 && STEP_RAN > 0))
