#!/usr/bin/env python3
"""`inrush bench` as a user meets it. Figures are of this machine: only what must hold for any is asked.

usage: bench_command_test.py INRUSH FAKES_FOLDER [unittest arguments], as command_test.py
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import command_test
from command_test import CommandTest, environment, header_bytes, start, write_file


class Benching(CommandTest):
    def setUp(self):
        super().setUp()
        self.file = self.path("large.safetensors")
        write_file(self.file, {"t": ("U8", [34 << 20], random.Random(2).randbytes(34 << 20))})

    def bench(self, *words, **options):
        text = self.succeed("bench", *words, "--loads", "2", "--seconds", "50ms", "--json", **options)
        return json.loads(text)

    def test_text(self):
        text = self.succeed("bench", self.file, "--device", "cpu", "--loads", "2", "--seconds", "50ms")
        self.assertTrue(text.startswith(f"{self.file}: 35.7 MB in 1 tensor of 1 file, to cpu; "), text)
        self.assertRegex(text, r"\n  page cache +\d+\.\d\d GB/s  35.7 MB of it read into host memory by \d")
        self.assertRegex(text, r"\n  pinned +not measured  the target is the CPU")
        self.assertEqual(re.findall(r"\n  (cold|warm) +(first|later) +\d+\.\d+ +\d+\.\d+  ", text),
                         [("cold", "first"), ("cold", "first"), ("warm", "first"), ("warm", "later")])
        self.assertRegex(text, r"\n  warm, \w+: plan .*, all bytes .*; CPUs busy for ")
        self.assertIn("says nothing of a GPU", text)

    def test_json(self):
        report = self.bench(self.file, "--device", "cpu")
        self.assertEqual((report["schema_version"], report["device"]), (1, "cpu"))
        self.assertEqual(report["size_bytes"], 34 << 20)
        self.assertEqual([load["state"] for load in report["loads"]], ["cold", "cold", "warm", "warm"])
        self.assertIsNone(report["limits"]["pinned"]["bytes_per_second"])
        for load in report["loads"]:
            self.assertTrue(load["equal"])
            self.assertEqual(load["report"]["loaded_bytes"], 34 << 20)
            name = "page cache" if load["resident_share"] > 0.5 else "storage"
            limit = report["limits"][name.replace(" ", "_")]["bytes_per_second"]
            self.assertEqual(load["limit"], name if limit else None)
            if limit:
                self.assertAlmostEqual(load["limit_share"], (34 << 20) / load["seconds"] / limit)
        for load in report["loads"][2:]:  # some kernels take pages that rest for a moment
            self.assertGreater(load["resident_share"], 0.5)

    def test_states(self):
        for state in ("cold", "warm"):
            loads = self.bench(self.file, "--device", "cpu", "--state", state)["loads"]
            self.assertEqual([load["state"] for load in loads], [state, state])

    def test_gpu(self):
        report = self.bench(self.file, "--state", "warm", env=environment(LD_LIBRARY_PATH=command_test.FAKES))
        self.assertEqual(report["device"], "cuda:0")
        self.assertGreater(report["limits"]["pinned"]["bytes_per_second"], 0)
        self.assertEqual({load["report"]["device"] for load in report["loads"]}, {"cuda:0"})
        self.assertTrue({load["limit"] for load in report["loads"]} <= {"page cache", "pinned"})

    def test_pages_that_stay_are_not_called_cold(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            shutil.copy(self.file, folder)
            text = self.succeed("bench", folder, "--device", "cpu", "--state", "cold", "--seconds", "50ms")
            self.assertRegex(text, r"\n  storage +not measured  \S+: the file system is memory")
            row = r"\n  cold +first .* % of page cache .*  not cold: 100 % was in the page cache"
            self.assertEqual(len(re.findall(row, text)), 3, text)

    def test_too_small_to_measure(self):
        report = self.bench(self.model, "--device", "cpu")
        self.assertEqual(report["limits"]["page_cache"]["reason"], "every file is smaller than 1 MiB")
        self.assertEqual({load["limit"] for load in report["loads"]}, {None})
        self.assertRegex(self.succeed("bench", self.model, "--device", "cpu", "--state", "warm"),
                         r"\n  warm +first +\d+\.\d+ +\d+\.\d+  - ")

    def test_wrong_bytes(self):
        env = environment(LD_LIBRARY_PATH=command_test.FAKES, INRUSH_STATE=self.path("state"),
                          INRUSH_CUFILE_LIBRARY=f"{command_test.FAKES}/cufile-1.15/libcufile.so.0")
        self.succeed("probe", self.file, env={**env, "FAKE_CUFILE": "p2pdma"})
        (result,) = os.listdir(self.path("state", "probes"))
        with open(self.path("state", "probes", result), encoding="utf-8") as file:
            probed = json.load(file)
        next(row for row in probed["candidates"] if row["path"] == "gds")["bytes_per_second"] = 1e15
        with open(self.path("state", "probes", result), "w", encoding="utf-8") as file:
            json.dump(probed, file)
        self.fail_with(5, "bench", self.file, "--state", "cold", "--seconds", "50ms",
                       says=["tensor t: byte "], env={**env, "FAKE_CUFILE": "corrupt_read=2"})

    def test_bad_input(self):
        write_file(self.path("empty.safetensors"), {"t": ("U8", [0], b"")})
        huge = self.path("huge.safetensors")
        with open(huge, "wb") as file:
            start = header_bytes({"t": {"dtype": "U8", "shape": [8 << 40], "data_offsets": [0, 8 << 40]}})
            file.write(start)
            file.truncate(len(start) + (8 << 40))
        self.fail_with(6, "bench", huge, "--device", "cpu", says=["huge.safetensors", "of host memory"])
        self.fail_with(4, "bench", self.path("absent"), says=["absent"])
        self.fail_with(3, "bench", self.file, "--device", "cuda:7", says=["cuda:7"],
                       env=environment(LD_LIBRARY_PATH=command_test.FAKES))
        for words, says in [([], "PATH"), ([self.file, "--state", "hot"], "--state"),
                            ([self.file, "--loads", "0"], "--loads"),
                            ([self.file, "--seconds", "0"], "--seconds"),
                            ([self.path("empty.safetensors")], "no bytes to load")]:
            self.fail_with(2, "bench", *words, says=[says])

    def test_interrupted(self):
        for number, words in ((signal.SIGINT, ["--seconds", "1h"]), (signal.SIGTERM, ["--loads", "100"])):
            process = start("bench", self.file, "--device", "cpu", *words, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
            while len(os.listdir(f"/proc/{process.pid}/task")) == 1:  # until it reads
                time.sleep(0.01)
            process.send_signal(number)
            self.assertEqual(process.communicate(timeout=60), ("", "inrush: interrupted\n"))
            self.assertEqual(process.returncode, 128 + number)


if __name__ == "__main__":
    command_test.INRUSH, command_test.FAKES = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
