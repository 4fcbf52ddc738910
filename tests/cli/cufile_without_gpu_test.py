#!/usr/bin/env python3
"""The command where a real libcufile can be found and no GPU is there: newer libraries never return from
opening their driver then, older ones print on the terminal and leave a log in the current folder.

usage: cufile_without_gpu_test.py INRUSH CUFILE_LIBRARY [unittest arguments]

CUFILE_LIBRARY is a libcufile.so.0 that `tools/setup.sh cufile` got. To take over five seconds is to fail.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

INRUSH, LIBRARY = "", ""
PATIENCE_SECONDS = 5
DATA = bytes(range(256)) * 16

# What the engine asks dlsym for: always, and from which version on.
ALWAYS = ["DriverOpen", "DriverClose_v2", "UseCount", "DriverGetProperties", "GetVersion", "HandleRegister",
          "HandleDeregister", "BufRegister", "BufDeregister", "Read", "Write", "SetParameterSizeT",
          "SetParameterBool", "SetParameterString", "GetParameterBool"]
SINCE = {"SetStatsLevel": (1, 15), "GetStatsLevel": (1, 15), "StatsStart": (1, 15), "GetStatsL3": (1, 15),
         "DriverGetP2PFlags": (1, 16), "Readv": (1, 19)}


def write_file(path):
    header = json.dumps({"a": {"dtype": "U8", "shape": [len(DATA)], "data_offsets": [0, len(DATA)]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + DATA)


class WithoutGpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="inrush-cufile-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        for name in ("current", "state", "scratch", "driver"):
            os.mkdir(os.path.join(self.folder, name))
        self.model = os.path.join(self.folder, "model.safetensors")
        write_file(self.model)
        # In front of a real driver: a file that is no library.
        with open(os.path.join(self.folder, "driver", "libcuda.so.1"), "w", encoding="utf-8") as file:
            file.write("not a library")

    def run_inrush(self, *words):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("INRUSH_", "CUFILE_"))}
        env = {**kept, "LD_LIBRARY_PATH": self.folder + "/driver:" + os.path.dirname(LIBRARY),
               "XDG_STATE_HOME": self.folder + "/state", "TMPDIR": self.folder + "/scratch",
               "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": self.folder + "/linker"}
        done = subprocess.run([INRUSH, *words], capture_output=True, text=True, check=False, env=env,
                              cwd=self.folder + "/current", stdin=subprocess.DEVNULL,
                              timeout=PATIENCE_SECONDS)
        self.assertEqual(os.listdir(self.folder + "/current"), [], "left in the current folder")
        self.assertNotIn("libcufile", self.linker_said(), "loaded although there is no GPU")
        return done

    def linker_said(self):
        said = ""
        for name in os.listdir(self.folder):
            if name.startswith("linker."):
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                    said += file.read()
        self.assertIn("libc.so", said, "LD_DEBUG shows nothing: this test would prove nothing")
        return said

    def succeed(self, *words):
        done = self.run_inrush(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout

    def refuse(self, *words, says):
        done = self.run_inrush(*words)
        self.assertEqual((done.returncode, done.stdout), (3, ""), done)
        self.assertRegex(done.stderr, r"\Ainrush: [^\n]+\n\Z")
        for part in says:
            self.assertIn(part, done.stderr)

    def test_version(self):
        self.assertRegex(self.succeed("version"), r"\Ainrush \d+\.\d+\.\d+\n\Z")

    def test_env(self):
        self.assertIn("INRUSH_READERS", self.succeed("env"))

    def test_inspect(self):
        self.assertIn("1 tensor", self.succeed("inspect", self.model))

    def test_explain(self):
        self.assertIn("5001", self.succeed("explain"))
        self.assertIn("/run/udev", self.succeed("explain", "5027"))

    def test_load_to_the_cpu(self):
        for words in (["--device", "cpu"], [], ["--device", "cpu", "--path", "staged"]):
            self.assertIn(f"every byte equal: {len(DATA):,} bytes",
                          self.succeed("load", self.model, "--check", *words))

    def test_gds_without_a_gpu(self):
        for path in ("gds", "cufile-compat"):
            self.refuse("load", self.model, "--path", path,
                        says=[f'path "{path}" was asked for', "GPU memory"])

    def test_gds_to_a_gpu_that_is_not_there(self):
        for path in ("gds", "cufile-compat"):
            self.refuse("load", self.model, "--device", "cuda:0", "--path", path, says=["cuda:0", "libcuda"])

    def test_plan(self):
        self.assertIn("gds", self.succeed("load", self.model, "--device", "cpu", "--plan"))


class Library(unittest.TestCase):
    """In a process of its own: what is loaded here may do what it likes."""

    def test_has_the_entries_that_its_version_should_have(self):
        version = tuple(int(part) for part in LIBRARY.split("/nvidia/")[0].rsplit("/", 1)[1].split(".")[:2])
        names = ALWAYS + list(SINCE)
        code = ("import ctypes, json, sys\nlibrary = ctypes.CDLL(sys.argv[1])\n"
                "print(json.dumps([name for name in sys.argv[2:] if hasattr(library, 'cuFile' + name)]))")
        done = subprocess.run([sys.executable, "-c", code, LIBRARY, *names], capture_output=True, text=True,
                              check=True, timeout=60)
        expected = ALWAYS + [name for name, since in SINCE.items() if version >= since]
        self.assertEqual(json.loads(done.stdout), expected)


if __name__ == "__main__":
    INRUSH, LIBRARY = sys.argv[1], os.path.abspath(sys.argv[2])
    assert os.path.isfile(LIBRARY), LIBRARY
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
