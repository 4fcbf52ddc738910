#!/usr/bin/env bash
# Builds the wheel, installs it into build/python/clean and runs the tests against what is installed there.
# usage: run.sh [pytest options], e.g. -k torch. `make test-python` sets up first.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
environment=$root/build/python/clean

mkdir -p build/python/run
exec 9>build/python/run.lock
flock 9  # one run at a time: the environment holds one wheel
wheel=$(tools/wheel.sh)
echo "tests/python: $wheel"
PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
  "$environment/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"
# Not INRUSH_...: the library refuses variables of that kind that it does not know.
export TEST_WHEEL=$root/$wheel
export TEST_SOURCE=$root
export TEST_FAKE_CUDA=$root/build/dev/fakes/libcuda.so.1
export TEST_CUFILE=$root/build/cufile
export TEST_CORPUS=$root/tests/hostile/safetensors.jsonl
# An empty folder, and no folder of the caller's on the path: only the installed package can be imported.
cd build/python/run
unset PYTHONPATH PYTHONHOME
exec timeout --kill-after=30 "${TEST_SECONDS:-2400}" "$environment/bin/python" -P -m pytest \
  --rootdir "$root" -c "$root/pyproject.toml" "$root/tests/python" "$@"
