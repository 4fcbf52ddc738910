#!/usr/bin/env bash
# Translates src/gpu/copy_kernel.cu into src/gpu/copy_kernel_ptx.cpp, for who changes the kernel: takes nvcc
# of CUDA 12 or 13 in PATH. tools/tidy.py compares the checksum of the source with the one in the text.
set -euo pipefail
cd "$(dirname "$0")/../src/gpu"
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT

nvcc -ptx -arch=sm_75 -O3 copy_kernel.cu -o "$ptx"
# Nothing in it needs more than PTX 7.0, which drivers since 450 take.
sed -i 's/^\.version .*/.version 7.0/' "$ptx"
ptxas -arch=sm_90 "$ptx" -o /dev/null
python3 - "$ptx" <<'PY'
import hashlib, re, sys
lines = [line.strip() for line in open(sys.argv[1]) if line.strip() and not line.startswith("//")]
lines = [re.sub(r"\s+", " ", line) for line in lines if not line.startswith("//")]
rows = [""]
for line in lines:
    # What begins with a dot at the top, and labels, keep a line of their own.
    is_word = not line.startswith(".") and rows[-1] and not rows[-1].startswith(".")
    if is_word and len(rows[-1]) + len(line) < 104:
        rows[-1] += " " + line
    else:
        rows.append(line)
checksum = hashlib.sha256(open("copy_kernel.cu", "rb").read()).hexdigest()
with open("copy_kernel_ptx.cpp", "w") as out:
    out.write(f"""// Made by tools/make_ptx.sh from copy_kernel.cu; change that one.
// sha256 {checksum}
#include "gpu/copy_kernel.hpp"

namespace inrush::engine {{

const char* const copy_kernel_ptx = R"ptx(
""" + "\n".join(rows[1:]) + """
)ptx";

}  // namespace inrush::engine
""")
PY
