#!/usr/bin/env python3
"""The table adds up what the tests counted, and fails where it must."""
import tempfile
import unittest
from pathlib import Path

import trust_table

LOG = """
[ RUN      ] Something
count: faults short read 1500 injected 1600 loaded 1500 refused 0 wrong 0 leaks 0 hangs 0
count: faults short read 500 injected 500 loaded 499 refused 1 wrong 0 leaks 0 hangs 0
12: count: faults EIO 10 injected 10 loaded 0 refused 10 wrong 0 leaks 0 hangs 0
count: differential mutants 100000 equal 99950 deliberate 50 wrong 0
count: resource bombs 1 wrong 0 peak_mb 120 milliseconds 900 name shape
count: resource bombs 1 wrong 0 peak_mb 20 milliseconds 90 name field
a line with count: faults in its middle 7
"""


class TrustTable(unittest.TestCase):
    def test_lines_of_one_kind_are_added_up(self):
        kinds = trust_table.collect(LOG)
        self.assertEqual(list(kinds),
                         ["differential mutants", "faults EIO", "faults short read", "resource bombs"])
        self.assertEqual(kinds["faults short read"][0], 2000)
        self.assertEqual(kinds["faults short read"][1]["loaded"], 1999)
        self.assertEqual(kinds["resource bombs"], (2, {"wrong": 0, "peak_mb": 120, "milliseconds": 900}))
        self.assertEqual(trust_table.injected(kinds), 2010)
        self.assertEqual(trust_table.faults_of(kinds), [])

    def test_what_is_wrong_fails(self):
        for name in trust_table.BAD:
            kinds = trust_table.collect(LOG + f"count: faults signal 3 {name} 1\n")
            self.assertEqual(trust_table.faults_of(kinds), [f"{name} 1"])
        kinds = trust_table.collect(LOG + "HANG: run it again\n")
        self.assertEqual(trust_table.faults_of(kinds), ["hangs 1"])

    def test_too_few_faults_fail(self):
        kinds = trust_table.collect(LOG.replace("1500 injected", "1400 injected"))
        self.assertEqual(len(trust_table.faults_of(kinds)), 1)

    def test_document_is_written_and_compared(self):
        kinds = trust_table.collect(LOG)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "SECURITY.md"
            path.write_text(f"before\n{trust_table.BEGIN}\n{trust_table.END}\nafter\n", encoding="utf-8")
            self.assertEqual(trust_table.stale_kinds(path, kinds), (sorted(kinds), []))
            trust_table.write_table(path, kinds)
            text = path.read_text(encoding="utf-8")
            self.assertTrue(text.startswith("before\n") and text.endswith("\nafter\n"))
            row = "| faults short read | 2,000 | injected 2,100, loaded 1,999, refused 1, wrong 0"
            self.assertIn(row, text)
            other_numbers = trust_table.collect(LOG.replace("99950", "99949"))
            self.assertEqual(trust_table.stale_kinds(path, other_numbers), ([], []))
            fewer = {kind: kinds[kind] for kind in kinds if kind != "faults EIO"}
            self.assertEqual(trust_table.stale_kinds(path, fewer), ([], ["faults EIO"]))


if __name__ == "__main__":
    unittest.main()
