#!/usr/bin/env bash
# Makes build/bench/venv: inrush, and the loaders of bench/requirements.txt. Tens of milliseconds when done.
# usage: setup.sh [--wheels FOLDER]      FOLDER: take every package from its files, without a network
#        setup.sh --download FOLDER      fetch those files for the GPU machine (Python 3.12, x86-64)
# inrush is the newest of build/wheels, or, with PYTHONPATH set, what is there. What does not install is
# written to build/bench/venv/not_installed (package, reason) and shown in the table. Where the Python at hand
# has torch, the environment sees that one; PYTHON names another Python than python3.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/bench/venv
requirements=bench/requirements.txt
python=${PYTHON:-python3}
wheels=

packages() { grep -vE '^(#|$)' "$requirements"; }

download() {  # FOLDER: what a machine that has torch, NumPy, CuPy and accelerate lacks
  mkdir -p "$1"
  local platforms=() version package failed=0
  for version in 39 38 36 35 34 31 28 27 24 17 12 5; do
    platforms+=(--platform "manylinux_2_${version}_x86_64")
  done
  for version in 2014 2010 1; do platforms+=(--platform "manylinux${version}_x86_64"); done
  for package in $(packages | grep -vE '^(torch|numpy)=='); do
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --pre --only-binary=:all: \
      --python-version 3.12 --implementation cp "${platforms[@]}" --dest "$1" "$package" ||
      { echo "bench/setup: no file of $package for Python 3.12" >&2; failed=1; }
  done
  echo "bench/setup: $(find "$1" -name '*.whl' | wc -l) files, $(du -sh "$1" | cut -f1) in $1"
  return "$failed"
}

install() {  # PIP ARGUMENTS...
  local source=(--pre)
  [ -z "$wheels" ] || source=(--no-index --find-links "$wheels" --no-deps --pre)
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${source[@]}" "$@"
}

has_torch() {
  "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'
}

make_environment() {
  echo "bench/setup: making $venv"
  rm -rf "$venv"
  local system=() package reason
  if has_torch; then system=(--system-site-packages); fi
  "$python" -m venv "${system[@]}" "$venv"
  # Where the Python at hand is a venv itself, its packages are not the system's.
  if has_torch; then
    local own
    own=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c 'import site, sysconfig
print(*{*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}, sep="\n")' \
      >"$own/parent.pth"
  fi
  local wanted=()
  for package in $(packages); do
    case "$package" in torch==*|numpy==*) [ ${#system[@]} = 0 ] || continue ;; esac
    wanted+=("$package")
  done
  # At once in 8 s; one by one, a second or more each, is for the case that one of them does not install.
  if install "${wanted[@]}" 2>/dev/null; then return; fi
  for package in "${wanted[@]}"; do
    reason=$(install "$package" 2>&1) ||
      { echo "bench/setup: $package does not install" >&2
        printf '%s\t%s\n' "${package%%==*}" "$(tail -1 <<<"$reason")" >>"$venv/not_installed"; }
  done
}

install_inrush() {
  [ -z "${PYTHONPATH:-}" ] || return 0
  local wheel
  # shellcheck disable=SC2012  # names of ours
  wheel=$(ls -t build/wheels/inrush-*.whl 2>/dev/null | head -1)
  [ -n "$wheel" ] ||
    { echo "bench/setup: no wheel in build/wheels: run make wheel, or set PYTHONPATH" >&2; exit 1; }
  [ "$(cat "$venv/inrush" 2>/dev/null)" != "$(sha256sum "$wheel")" ] || return 0
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel"
  sha256sum "$wheel" >"$venv/inrush"
}

case "${1:-}" in
  --download) download "${2:?which folder}"; exit ;;
  --wheels) wheels=$(realpath "${2:?which folder}") ;;
  '') ;;
  *) sed -n '2,8s/^# //p' "$0" >&2; exit 2 ;;
esac

mkdir -p build/bench
exec 9>build/bench/venv.lock
flock 9  # another make may be at it
wanted=$({ cat "$requirements"; "$python" -VV; pwd; echo "$wheels"; } | sha256sum)
if [ "$(cat "$venv/made_from" 2>/dev/null)" != "$wanted" ]; then
  make_environment
  echo "$wanted" >"$venv/made_from"  # last, so that what is there is whole
fi
install_inrush
