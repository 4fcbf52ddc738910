#!/usr/bin/env python3
"""Compares what libinrush exports with symbols.txt.

usage: symbols.py NM LIBRARY LIST [--write]

Strong symbols must be exactly those of the list (--write makes the list anew). Weak ones, the implicit and
inline members of exported classes, depend on what the optimiser inlined: they only have to be of inrush::v0.
"""
import re
import subprocess
import sys

OURS = re.compile(r"(typeinfo for |typeinfo name for |vtable for )?inrush::v0::")


def exported(nm, library):
    """Yields (type letter, demangled name) of each defined dynamic symbol."""
    command = [nm, "-D", "-C", "--defined-only", library]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        yield re.fullmatch(r"[0-9a-f]* *(\S) (.*)", line).groups()


def main():
    nm, library, list_path = sys.argv[1:4]
    symbols = list(exported(nm, library))
    faults = [f"exported, but not of inrush::v0: {name}" for _, name in symbols if not OURS.match(name)]
    strong = sorted({name for kind, name in symbols if kind not in "WVu"})
    if "--write" in sys.argv[4:]:
        with open(list_path, "w", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in strong)
    with open(list_path, encoding="utf-8") as file:
        wanted = set(file.read().splitlines())
    faults += [f"exported, but not in the list: {name}" for name in strong if name not in wanted]
    faults += [f"in the list, but not exported: {name}" for name in sorted(wanted - set(strong))]
    for fault in faults:
        print(fault)
    print(f"symbols: {len(strong)} exported, {len(faults)} faults; `make symbols` writes the list anew")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
