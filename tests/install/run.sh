#!/usr/bin/env bash
# Installs a build into a scratch prefix, moves that, and builds an outside project against it, once by
# find_package and once by pkg-config.
# usage: run.sh CMAKE BUILD_FOLDER CXX
set -euo pipefail
cmake=$1 build=$2 cxx=$3
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "install test: $*" >&2; exit 1; }

expect() {  # WHAT PROGRAM...: the program's output is what main.cpp promises
  local what=$1 said
  shift
  said=$("$@" "$scratch/tiny.safetensors") || fail "$what: $* failed"
  [ "$said" = "$(printf 'inrush 0.1.0: weight F32 24 bytes\nnot_found')" ] || fail "$what said: $said"
  echo "$what: $said"
}

"$cmake" --install "$build" --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/prefix"  # what is found from here on is found relative to the files themselves
prefix=$scratch/prefix
lib=$(dirname "$(find "$prefix" -name 'libinrush.so.0')")
[ -e "$lib/libinrush.so" ] || fail "no libinrush.so beside libinrush.so.0"
find "$prefix" -name LICENSE | grep -q . || fail "no LICENSE installed"
diff -r "$prefix/include/inrush" "$here/../../include/inrush" ||
  fail "installed headers are not those of include/"

"$cmake" -S "$here" -B "$scratch/by_cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" >/dev/null
"$cmake" --build "$scratch/by_cmake" >/dev/null
expect find_package "$scratch/by_cmake/by_cmake"

export PKG_CONFIG_PATH=$lib/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs inrush)"
[ "$(pkg-config --modversion inrush)" = 0.1.0 ] || fail "pkg-config knows another version"
"$cxx" -std=c++20 -Wall -Wextra -Werror "$here/main.cpp" -o "$scratch/by_pkg_config" "${flags[@]}"
expect pkg-config env LD_LIBRARY_PATH="$lib" "$scratch/by_pkg_config"

# The README's example is what people copy: it must compile, load, and say what is wrong.
sed -n '/^```cpp$/,/^```$/p' "$here/../../README.md" | sed '/^```/d' >"$scratch/readme.cpp"
"$cxx" -std=c++20 -Wall -Wextra -Werror "$scratch/readme.cpp" -o "$scratch/readme" "${flags[@]}"
export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$scratch/readme" "$scratch/tiny.safetensors" | grep -qF 'weight at ' ||
  fail "the README's example loads nothing"
! "$scratch/readme" "$scratch/absent" 2>"$scratch/said" ||
  fail "the README's example loads what is not there"
grep -qF 'absent' "$scratch/said" || fail "the README's example does not say what is missing"
echo "README: $(wc -l <"$scratch/readme.cpp") lines compile and load"

if [ -x "$build/inrush" ]; then  # the command finds its library from where it was installed
  "$prefix/bin/inrush" version | grep -qF 0.1.0 || fail "the installed command does not say its version"
  ! readelf -d "$prefix/bin/inrush" | grep -qF "$build" || fail "the command points into the build folder"
fi

