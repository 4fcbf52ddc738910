#!/usr/bin/env bash
# Builds on a machine with a GPU and no network, from the prefix that tools/gather_prefix.sh made elsewhere;
# prints a line a test, then the speed of warm loads beside the pinned limit. Exits 1 if any test failed.
# Each pipeline fails with its first program: pipefail.
#   tests/gpu/run.sh [FOLDER]    FOLDER: room for two checkpoints of 12.9 GB, removed at the end
set -uo pipefail
cd "$(dirname "$0")/../.."
build=build/gpu
folder=${1:-$(mktemp -d)}
log=${OUT:-$build}/gpu_build.log
prefix=()
failed=0

if [ -d .prefix ]; then prefix=(-DCMAKE_PREFIX_PATH="$PWD/.prefix"); fi
mkdir -p "$build" "$folder"
trap 'rm -rf "$folder/a" "$folder/b"' EXIT
for part in a b; do
  python3 tools/make_checkpoint.py "$folder/$part" --seed "$([ $part = a ] && echo 1 || echo 2)" >/dev/null &
done

echo "build: $(g++ --version | head -1), $(cmake --version | head -1)"
if ! { cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${prefix[@]}" &&
       cmake --build "$build" -j "$(nproc)"; } >"$log" 2>&1; then
  grep -E -A5 'error|FAILED' "$log" | head -40
  exit 1
fi
echo "build: $(grep -c 'warning:' "$log" || true) warnings"

for suite in unit conformance; do
  "$build/tests/${suite}_tests" --gtest_brief=1 2>&1 | grep -vE '^(Running main|$)' || failed=1
done
# The real libcufile in its compat mode, each version that tools/setup.sh cufile got (carry build/cufile).
cufiles=$(printf '%s:' build/cufile/*/nvidia/*/lib/libcufile.so.0)
TMPDIR=$folder INRUSH_TEST_CUFILE=$cufiles timeout 1200 "$build/tests/gpu_tests" 2>&1 |
  grep -E '^\[ +(OK|FAILED|PASSED) +\]|Failure|error|^(speed|gds):' || failed=1
# Streams that wait for a value must not hold up the copies that they wait for, with few channels either.
TMPDIR=$folder CUDA_DEVICE_MAX_CONNECTIONS=1 timeout 300 \
  "$build/tests/gpu_tests" --gtest_filter='*RealAsync*' 2>&1 |
  grep -E '^\[ +(OK|FAILED|PASSED) +\]|Failure|error|^speed:' || failed=1
wait

# What a user sees, and the speed: JSON lines in $OUT, here a line a load.
"$build/inrush" load "$folder/a" --check || failed=1
lines=${OUT:-$build}/bench_load.jsonl
"$build/inrush_bench_load" cuda:0 "$folder/a" "$folder/b" 3 | tee "$lines" | python3 -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line) if line.startswith("{") else {"what": line.strip()}
    print("speed:", *(f"{key} {value}" for key, value in row.items() if key != "report"))' || failed=1
exit "$failed"
