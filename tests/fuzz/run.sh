#!/usr/bin/env bash
# Replays the seeds of each fuzz target and then fuzzes it, two at a time. Needs build/fuzz (make fuzz).
# usage: run.sh SECONDS [TARGET...]    a target: header, index, glob, spelling, config
# What was found stays in build/fuzz/faults; build/fuzz/corpus grows from run to run.
set -euo pipefail
cd "$(dirname "$0")/../.."

fuzz() {  # TARGET SECONDS
  local target=$1 seconds=$2 program=build/fuzz/tests/fuzz/$1_fuzz log=build/fuzz/$1.log
  local corpus=build/fuzz/corpus/$1 seeds=() options=()
  mkdir -p "$corpus" build/fuzz/faults
  for folder in build/fuzz/seeds/$1 tests/fuzz/seeds/$1; do [ ! -d "$folder" ] || seeds+=("$folder"); done
  [ ! -e "tests/fuzz/$target.dict" ] || options+=("-dict=tests/fuzz/$target.dict")
  options+=(-timeout=20 -rss_limit_mb=1024 -max_len=8192 -print_final_stats=1
            "-artifact_prefix=build/fuzz/faults/$target-")
  if ! { "$program" "${options[@]}" -runs=0 "${seeds[@]}" "$corpus" &&
         "$program" "${options[@]}" "-max_total_time=$seconds" "$corpus" "${seeds[@]}"; } >"$log" 2>&1; then
    grep -vE '^#[0-9]' "$log" | tail -60
    echo "fuzz: $target: a fault; $log has all, build/fuzz/faults the input: $program FILE shows it again"
    return 1
  fi
  # The last ones are those of the fuzzing; the replay prints them too.
  echo "count: fuzz $target $(awk '/number_of_executed_units/{n=$2} END{print n}' "$log")" \
    "seeds $(find "${seeds[@]}" -type f | wc -l) faults 0 seconds $seconds"
}
export -f fuzz

seconds=$1
shift
[ $# -gt 0 ] || set -- header index glob spelling config
python3 tests/fuzz/make_seeds.py tests/hostile/safetensors.jsonl build/fuzz/seeds
export ASAN_OPTIONS=quarantine_size_mb=16:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
printf '%s\n' "$@" | xargs -P 2 -I{} bash -euo pipefail -c 'fuzz "$@"' fuzz {} "$seconds"
