#!/usr/bin/env python3
"""Collects what the tests counted and prints one table of it.

usage: trust_table.py [--write SECURITY.md | --check SECURITY.md] LOG...

A test that tries or injects things prints lines `count: KIND TOTAL name number...`; lines of one kind are
added up. Exits 1 where anything was wrong, left behind or hanging, or fewer than 2,000 faults were injected.
--write puts the table between the markers of that file; --check says whether it lists the same kinds (the
numbers depend on the machine).
"""
import argparse
import re
import sys
from pathlib import Path

FAULTS_MIN = 2000
FAULT_KINDS = ("faults ", "malloc failures", "allocation failures")
BAD = ("wrong", "leaks", "hangs")
LARGEST = ("peak_mb", "milliseconds", "seconds")  # of these the table shows the largest, not the sum
LINE = re.compile(r"^(?:\d+: )?count: (?P<kind>[^\d\n]*[^\d\s])\s+(?P<total>\d+)(?P<rest>[^\n]*)$", re.M)
BEGIN = "<!-- made by tools/trust_table.py from the logs of make test -->"
END = "<!-- end of the table -->"


def details(text):
    """'loaded 3 wrong 0 name x' -> {'loaded': 3, 'wrong': 0}"""
    words = text.split()
    return {name: int(number) for name, number in zip(words, words[1:])
            if number.isdigit() and not name.isdigit()}


def collect(text):
    """Kind -> (total, details), in the order of the kinds' names."""
    kinds = {}
    for found in LINE.finditer(text):
        total, sums = kinds.get(found["kind"], (0, {}))
        for name, number in details(found["rest"]).items():
            before = sums.get(name, 0)
            sums[name] = max(before, number) if name in LARGEST else before + number
        kinds[found["kind"]] = (total + int(found["total"]), sums)
    hangs = len(re.findall(r"^(?:\d+: )?HANG: ", text, re.M))
    if hangs:
        kinds["hang"] = (hangs, {"hangs": hangs})
    return dict(sorted(kinds.items()))


def is_fault(kind):
    return kind.startswith(FAULT_KINDS)


def injected(kinds):
    return sum(total for kind, (total, _) in kinds.items() if is_fault(kind))


def outcome(numbers):
    return ", ".join(f"{name} {number:,}" for name, number in numbers.items() if number or name in BAD)


def sums_of_bad(kinds):
    return {name: sum(numbers.get(name, 0) for _, numbers in kinds.values()) for name in BAD}


def summary(kinds):
    bad = ", ".join(f"{name} {number}" for name, number in sums_of_bad(kinds).items())
    return f"{injected(kinds):,} faults injected, {bad}"


def as_text(kinds):
    width = max(len(kind) for kind in kinds)
    rows = [f"  {kind:{width}} {total:10,}  {outcome(numbers)}" for kind, (total, numbers) in kinds.items()]
    return "\n".join(["trust: what was tried", *rows, f"trust: {summary(kinds)}"])


def as_markdown(kinds):
    rows = [f"| {kind} | {total:,} | {outcome(numbers)} |" for kind, (total, numbers) in kinds.items()]
    table = ["| what | tried | outcome |", "|---|---|---|", *rows]
    return "\n".join([BEGIN, "", *table, "", f"{summary(kinds)}.", "", END])


def split_document(path):
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{path}: the markers of the table must stand in it once: {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    return before, table, after


def write_table(path, kinds):
    before, _, after = split_document(path)
    path.write_text(before + as_markdown(kinds) + after, encoding="utf-8")


def stale_kinds(path, kinds):
    """Kinds that the document does not list, and kinds that only it lists."""
    _, table, _ = split_document(path)
    listed = {row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")} - {"what"}
    return sorted(set(kinds) - listed), sorted(listed - set(kinds))


def faults_of(kinds):
    """What must not be; empty where all is well."""
    found = [f"{name} {number}" for name, number in sums_of_bad(kinds).items() if number]
    if injected(kinds) < FAULTS_MIN:
        found.append(f"{injected(kinds)} faults were injected, fewer than {FAULTS_MIN}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--write", type=Path, help="put the table into this document")
    parser.add_argument("--check", type=Path, help="compare with the kinds in this document")
    parser.add_argument("logs", nargs="+", type=Path)
    chosen = parser.parse_args()
    kinds = collect("\n".join(path.read_text(encoding="utf-8", errors="replace") for path in chosen.logs))
    if not kinds:
        sys.exit("trust: the logs hold no line that begins with \"count: \"")
    print(as_text(kinds))
    faults = faults_of(kinds)
    if chosen.write:
        write_table(chosen.write, kinds)
    if chosen.check:
        missing, gone = stale_kinds(chosen.check, kinds)
        if missing or gone:
            faults.append(f"{chosen.check} is stale: it lacks {missing}, and nobody counts {gone}; "
                          "run make trust-table")
    for fault in faults:
        print(f"trust: FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
