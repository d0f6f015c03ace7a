# shellcheck shell=bash
# Named, timed steps for the scripts beside this file; to be sourced.
#
#   step NAME COMMAND...   runs COMMAND; its output goes to $STEP_LOGS/NAME.log if STEP_LOGS is set
#                          (the last lines are shown on failure), else straight through
#   skip NAME REASON       notes a step that does not apply here
#   summary                prints the table; returns 1 if a step failed or none ran
#
# STEP_AFTER names a function that runs after every step: to save what there is so far, say.
# A failed step does not end the script: the rest still runs and the summary tells.

STEP_TABLE=()
STEP_FAILED=0
STEP_RAN=0

step() {
  local name=$1 status=0 start=$SECONDS log
  shift
  printf '== %s\n' "$name"
  if [[ -n ${STEP_LOGS:-} ]]; then
    log=$STEP_LOGS/${name//[^A-Za-z0-9_.-]/_}.log
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status != 0)); then
      tail -n 25 "$log"
    fi
  else
    "$@" </dev/null || status=$?
  fi
  STEP_RAN=$((STEP_RAN + 1))
  if ((status == 0)); then
    STEP_TABLE+=("$(printf '%-28s %5d s  ok' "$name" $((SECONDS - start)))")
  else
    STEP_FAILED=$((STEP_FAILED + 1))
    STEP_TABLE+=("$(printf '%-28s %5d s  FAILED (exit %d)' "$name" $((SECONDS - start)) "$status")")
  fi
  printf '%s\n' "${STEP_TABLE[-1]}"
  ${STEP_AFTER:-:}
  return "$status"
}

skip() {
  STEP_TABLE+=("$(printf '%-28s %7s  skipped: %s' "$1" - "$2")")
  printf '== %s\n' "${STEP_TABLE[-1]}"
}

summary() {
  printf '\n%-28s %7s  result\n' step time
  printf '%s\n' "${STEP_TABLE[@]}"
  printf '%d of %d steps failed, %d s in all\n' "$STEP_FAILED" "$STEP_RAN" "$SECONDS"
  ((STEP_FAILED == 0 && STEP_RAN > 0))
}
