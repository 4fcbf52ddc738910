#!/usr/bin/env bash
# Builds on a machine with a GPU and no network, from the prefix that tools/gather_prefix.sh made elsewhere;
# prints a line a test, then the speed of warm loads beside the pinned limit. Exits 1 if any test failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build/gpu
log=${OUT:-$build}/gpu_build.log
prefix=()

if [ -d .prefix ]; then prefix=(-DCMAKE_PREFIX_PATH="$PWD/.prefix"); fi
mkdir -p "$build"
echo "build: $(g++ --version | head -1), $(cmake --version | head -1)"
if ! { cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${prefix[@]}" &&
       cmake --build "$build" -j "$(nproc)"; } >"$log" 2>&1; then
  grep -E -A5 'error|FAILED' "$log" | head -40
  exit 1
fi
echo "build: $(grep -c 'warning:' "$log" || true) warnings"

failed=0
for suite in unit conformance gpu; do
  [ -x "$build/tests/${suite}_tests" ] || { echo "$suite: not built"; failed=1; continue; }
  "$build/tests/${suite}_tests" --gtest_brief=$([ "$suite" = gpu ] && echo 0 || echo 1) || failed=1
done
for program in "$build"/inrush_bench_load*; do
  [ ! -x "$program" ] || "$program" || failed=1
done
exit "$failed"
