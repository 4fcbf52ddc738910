#!/usr/bin/env bash
# usage: gather_prefix.sh [BUILD_FOLDER]
# Gathers in .prefix what the build needs and the GPU machine lacks (it has no network): the headers that our
# sources and tests really include of fmt, Boost, CLI11, xxHash, liburing and GoogleTest, and three static
# libraries, for tests/gpu/run.sh. Run it on Debian 12: what g++ 12 made links into programs of g++ 13,
# not the other way round.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=.prefix
build=${1:-build/dev}  # any configured build will do: it knows how each file is compiled
size_max_kib=20480

[ -f "$build/compile_commands.json" ] || cmake --preset dev >/dev/null
rm -rf "$prefix"
mkdir -p "$prefix/include" "$prefix/lib"

# `g++ -M` lists what a file includes; of that, what lies below /usr/include and belongs to one of the six.
# CMake looks for some headers by name, so those are named here although a file includes them too.
python3 - "$build/compile_commands.json" <<'PY' | sort -u >"$prefix/headers"
import concurrent.futures, json, re, shlex, subprocess, sys

OURS = re.compile(r"/usr/(?:local/)?include/(?:boost/|fmt/|CLI/|xxh|liburing|gtest/)")

def included(entry):
    words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
    options = [word for word in words if re.match(r"-(?:I|D|std=)", word)]
    options += [f"-isystem{after}" for word, after in zip(words, words[1:]) if word == "-isystem"]
    command = [words[0], *options, "-M", entry["file"]]
    listed = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True, check=True)
    return [word for word in listed.stdout.split() if OURS.match(word)]

with open(sys.argv[1], encoding="utf-8") as file, concurrent.futures.ThreadPoolExecutor() as pool:
    for headers in pool.map(included, json.load(file)):
        print("\n".join(headers))
PY
sed -i '/^$/d' "$prefix/headers"
for needed in boost/json.hpp boost/version.hpp fmt/format.h CLI/CLI.hpp xxhash.h liburing.h gtest/gtest.h; do
  find /usr/include /usr/local/include -path "*/include/$needed" >>"$prefix/headers"
done
sort -u -o "$prefix/headers" "$prefix/headers"
while read -r header; do
  install -D -m 644 "$header" "$prefix/include/${header#*/include/}"
done <"$prefix/headers"
rm "$prefix/headers"

for library in liburing.a libgtest.a libgtest_main.a; do
  found=$(find /usr/lib /usr/local/lib -name "$library" | head -1)
  [ -n "$found" ] || { echo "gather_prefix: no $library here; run tools/setup.sh build" >&2; exit 1; }
  install -m 644 "$found" "$prefix/lib/"
done

size_kib=$(du -sk "$prefix" | cut -f1)
[ "$size_kib" -le "$size_max_kib" ] ||
  { echo "gather_prefix: $size_kib KiB; at most $size_max_kib" >&2; exit 1; }
echo "gather_prefix: $(find "$prefix/include" -type f | wc -l) headers, 3 libraries, $size_kib KiB in $prefix"
