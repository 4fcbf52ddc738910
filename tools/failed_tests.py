#!/usr/bin/env python3
"""Prints once more, after everything else, what the failed tests of a ctest run said.

A CI that shows the end of a log would otherwise show which test failed and not how.
usage: failed_tests.py BUILD_FOLDER
"""

import pathlib
import re
import sys

TESTS_MAX = 5
LINES_MAX = 25
COLUMNS_MAX = 300


def main() -> None:
    logs = pathlib.Path(sys.argv[1]) / "Testing/Temporary"
    failed = re.findall(r"^(\d+):", (logs / "LastTestsFailed.log").read_text(), re.MULTILINE)
    log = (logs / "LastTest.log").read_text(errors="replace")
    sections = re.split(r"^(\d+)/\d+ Test: ", log, flags=re.MULTILINE)
    said = dict(zip(sections[1::2], sections[2::2], strict=True))
    for number in failed[:TESTS_MAX]:
        name, _, text = said.get(number, "not in the log").partition("\n")
        print(f"--- failed: {name}")
        output = re.split(r"^-{20,}\n", text, flags=re.MULTILINE)
        for line in (output[1] if len(output) > 1 else text).splitlines()[-LINES_MAX:]:
            print(f"    {line[:COLUMNS_MAX]}")
    if len(failed) > TESTS_MAX:
        print(f"--- and {len(failed) - TESTS_MAX} more")


if __name__ == "__main__":
    main()
