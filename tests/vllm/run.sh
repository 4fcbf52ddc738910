#!/usr/bin/env bash
# Builds the wheel, installs it beside the real vLLM and SGLang into build/python/vllm and tests the plug-ins.
# usage: run.sh [pytest options]. `make test-vllm` sets up first.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
environment=$root/build/python/vllm

mkdir -p build/python/vllm-run
exec 9>build/python/vllm-run.lock
flock 9  # one run at a time: the environment holds one wheel
wheel=$(tools/wheel.sh)
echo "tests/vllm: $wheel"
PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
  "$environment/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"
# Neither a network nor the home folder; a KV cache as small as vLLM makes one.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_HOST_IP=127.0.0.1
export VLLM_CACHE_ROOT=$root/build/python/vllm-run/cache VLLM_CONFIG_ROOT=$root/build/python/vllm-run/config
# An empty folder, and of the caller's no folder on the path: it is the installed packages that are imported.
cd build/python/vllm-run
unset PYTHONPATH PYTHONHOME
exec timeout --kill-after=30 "${TEST_SECONDS:-1500}" "$environment/bin/python" -P -m pytest \
  --rootdir "$root" -c "$root/pyproject.toml" -o pythonpath=tests/python "$root/tests/vllm" "$@"
