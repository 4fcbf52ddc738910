#!/usr/bin/env python3
"""The `inrush` command as a user meets it: words in, text and exit codes out.

usage: command_test.py INRUSH FAKES_FOLDER [unittest arguments]

FAKES_FOLDER holds our own libcuda.so.1, with two devices over host memory.
"""
import ctypes
import fcntl
import json
import os
import pty
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

INRUSH, FAKES = "", ""
SPARSE_BYTES = 6 << 30  # takes seconds to load, and next to nothing on the disk


def header_bytes(header):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_file(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)."""
    header = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    with open(path, "wb") as file:
        file.write(header_bytes(header))
        for _, _, data in tensors.values():
            file.write(data)


def write_sparse_file(path):
    part = SPARSE_BYTES // 8
    header = {f"t{i}": {"dtype": "U8", "shape": [part], "data_offsets": [i * part, (i + 1) * part]}
              for i in range(8)}
    start = header_bytes(header)
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(len(start) + SPARSE_BYTES)


def write_model(folder):
    """Two shards of ten tensors each, with an index."""
    os.makedirs(folder)
    source = random.Random(1)
    weight_map = {}
    for shard in range(2):
        name = f"model-0000{shard + 1}-of-00002.safetensors"
        tensors = {}
        for i in range(10):
            shape = [16, 64 * (i + 1)]
            tensors[f"layer.{shard}.{i}.weight"] = ("F32", shape, source.randbytes(shape[0] * shape[1] * 4))
        write_file(os.path.join(folder, name), tensors, {"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)


MODEL_BYTES = 2 * 16 * 64 * 4 * 55


def environment(**changes):
    """Ours without what would change a setting; the loader finds no GPU unless a test asks for the fake."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("INRUSH_") and name != "LOCAL_WORLD_SIZE"}
    return {**kept, **changes}


def start(*words, **options):
    # A shell that starts us in the background ignores SIGINT, and children inherit that.
    return subprocess.Popen([INRUSH, *words], env=options.pop("env", environment()),
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options)


def without_override():
    """root reads every file; without these two capabilities it does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; refused to those who lack them anyway


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="inrush-cli-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.model = self.path("model")
        write_model(self.model)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run_inrush(self, *words, **options):
        options.setdefault("env", environment())
        return subprocess.run([INRUSH, *words], capture_output=True, text=True, check=False, timeout=120,
                              **options)

    def succeed(self, *words, **options):
        done = self.run_inrush(*words, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout

    def fail_with(self, code, *words, says=(), **options):
        done = self.run_inrush(*words, **options)
        self.assertEqual(done.returncode, code, done)
        self.assertEqual(done.stdout, "", done)
        self.assertRegex(done.stderr, r"\Ainrush: [^\n]+\n\Z")
        for part in says:
            self.assertIn(part, done.stderr)


class Loading(CommandTest):
    def test_text(self):
        text = self.succeed("load", self.model, "--device", "cpu", "--check")
        self.assertTrue(text.startswith("loaded 20 tensors, "), text)
        self.assertIn(f"every byte equal: {MODEL_BYTES:,} bytes in 20 tensors", text)

    def test_json_parses_and_sums(self):
        document = json.loads(self.succeed("load", self.model, "--device", "cpu", "--json", "--check"))
        self.assertEqual(document["schema_version"], 1)
        report, check = document["loads"][0]["report"], document["loads"][0]["check"]
        self.assertEqual(report["loaded_bytes"], MODEL_BYTES)
        self.assertEqual(sum(way["bytes"] for way in report["bytes_by_path"]), MODEL_BYTES)
        self.assertTrue(report["complete"])
        self.assertEqual((check["equal"], check["bytes"], check["tensor_count"]), (True, MODEL_BYTES, 20))

    def test_several_paths(self):
        file = self.path("model", "model-00002-of-00002.safetensors")
        document = json.loads(self.succeed("load", self.model, file, "--device", "cpu", "--json"))
        self.assertEqual([load["report"]["tensor_count"] for load in document["loads"]], [20, 10])
        text = self.succeed("load", self.model, file, "--device", "cpu")
        self.assertIn(file + "\nloaded 10 tensors", text)

    def test_subset_and_slice(self):
        words = ["load", self.model, "--device", "cpu", "--only", "layer.0.*", "--only", "layer.1.9.weight",
                 "--slice", "layer.0.3.weight=1:5:7", "--slice", "layer.0.4.weight=0:2:3", "--json",
                 "--check"]
        load = json.loads(self.succeed(*words))["loads"][0]
        whole = sum(16 * 64 * (i + 1) * 4 for i in range(10) if i not in (3, 4)) + 16 * 640 * 4
        self.assertEqual(load["check"]["bytes"], whole + 16 * 7 * 4 + 3 * 320 * 4)
        self.assertEqual(load["check"]["tensor_count"], 11)

    def test_options_that_change_the_way(self):
        for words in (["--page-cache", "keep"], ["--page-cache", "bypass"], ["--path", "staged"],
                      ["--deadline", "1m"], ["--window", "64KiB"], ["--ignore-index"], ["--strict-index"],
                      ["--follow-links"]):
            text = self.succeed("load", self.model, "--device", "cpu", "--check", *words)
            self.assertIn("every byte equal", text)

    def test_quiet(self):
        self.assertEqual(self.succeed("load", self.model, "--device", "cpu", "--quiet"), "")

    def test_plan_loads_nothing(self):
        text = self.succeed("load", self.model, "--device", "cpu", "--plan")
        self.assertIn("gds", text)
        self.assertNotIn("loaded 20", text)
        plan = json.loads(self.succeed("load", self.model, "--device", "cpu", "--plan", "--json"))["plans"][0]
        self.assertEqual(plan["loaded_bytes"], MODEL_BYTES)
        self.assertEqual(sum(placement["size_bytes"] for placement in plan["placements"]), MODEL_BYTES)

    def test_settings_reach_the_plan(self):
        settings = environment(INRUSH_READERS="1", INRUSH_PIECE_BYTES="64KiB")
        text = self.succeed("load", self.model, "--device", "cpu", "--plan", "--json", env=settings)
        plan = json.loads(text)["plans"][0]
        self.assertEqual(plan["reader_count"], 1)
        self.assertGreaterEqual(plan["piece_count"], MODEL_BYTES >> 16)

    def test_empty_checkpoint(self):
        write_file(self.path("empty.safetensors"), {})
        text = self.succeed("load", self.path("empty.safetensors"), "--device", "cpu", "--check")
        self.assertIn("every byte equal: 0 bytes in 0 tensors", text)


class BadInput(CommandTest):
    def shard(self, number=1):
        return self.path("model", f"model-0000{number}-of-00002.safetensors")

    def fail_load(self, code, *says, path=None, **options):
        self.fail_with(code, "load", path or self.model, "--device", "cpu", says=says, **options)

    def test_shard_cut_short(self):
        size = os.path.getsize(self.shard())
        for length in (5, 100, size - 1000):
            os.truncate(self.shard(), length)
            self.fail_load(5, "model-00001-of-00002.safetensors")

    def test_stale_index(self):
        shutil.copy(self.shard(2), self.shard(1))
        self.fail_load(5, "layer.0.", "model-00001-of-00002.safetensors")

    def test_missing_shard(self):
        os.unlink(self.shard())
        self.fail_load(4, "model-00001-of-00002.safetensors")

    def test_folder_without_weights(self):
        os.makedirs(self.path("none"))
        self.fail_load(4, "none", path=self.path("none"))

    def test_git_lfs_pointer(self):
        with open(self.shard(), "w", encoding="utf-8") as file:
            file.write("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n")
        self.fail_load(5, "git", "lfs", "model-00001-of-00002.safetensors")

    def test_no_permission(self):
        os.chmod(self.shard(), 0)
        self.fail_load(4, "model-00001-of-00002.safetensors", "ermission denied", preexec_fn=without_override)

    def test_fifo(self):
        os.mkfifo(self.path("fifo.safetensors"))
        self.fail_load(2, "fifo.safetensors", path=self.path("fifo.safetensors"))

    def test_missing(self):
        self.fail_load(4, "nowhere", path=self.path("nowhere"))

    def test_second_path_bad_leaves_stdout_empty(self):
        self.fail_with(4, "load", self.model, self.path("nowhere"), "--device", "cpu", says=["nowhere"])

    def test_hostile_name_stays_one_harmless_line(self):
        self.fail_load(4, path=self.path("a\nb\x1b[31m"))

    def test_usage(self):
        cases = [(["load", self.model, "--devise", "cpu"], "did you mean --device"),
                 (["load", self.model, "--device", "tpu"], "tpu"),
                 (["load"], "PATH"), (["laod", self.model], "did you mean load"), ([], "no command"),
                 (["load", self.model, "--only", "zzz"], "zzz"),
                 (["load", self.model, "--slice", "x"], "NAME=DIM"),
                 (["load", self.model, "--slice", "zzz=0:0:1"], "zzz"),
                 (["load", self.model, "--slice", "layer.0.0.weight=0:10:7"], "layer.0.0.weight"),
                 (["load", self.model, "--slice", "a=0:0:1", "--slice", "a=0:1:1"], "twice"),
                 (["load", self.model, "--deadline", "soon"], "--deadline"),
                 (["load", self.model, "--window", "big"], "--window"),
                 (["load", self.model, "--path", "x"], "--path"),
                 (["load", self.model, "--plan", "--check"], "--plan"),
                 (["inspect", self.model, "--limit", "x"], "--limit"),
                 (["inspect", self.model, "more"], "more"), (["inspect", self.model, "--only", "zzz"], "zzz")]
        for words, says in cases:
            if words[:1] == ["load"] and "--device" not in words:
                words = words + ["--device", "cpu"]
            with self.subTest(words):
                self.fail_with(2, *words, says=[says])

    def test_bad_settings(self):
        for name, value in (("INRUSH_READERS", "none"), ("INRUSH_BOGUS", "1"), ("INRUSH_PIECE_BYTES", "5")):
            self.fail_load(2, name, env=environment(**{name: value}))

    def test_full_disk_on_stdout(self):
        for words in (["load", self.model, "--device", "cpu"], ["inspect", self.model], ["env"], ["--help"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([INRUSH, *words], stdout=full, stderr=subprocess.PIPE, text=True,
                                      check=False, env=environment(), timeout=120)
            self.assertEqual(done.returncode, 1, done)
            self.assertRegex(done.stderr, r"\Ainrush: standard output: [^\n]+\n\Z")

    def test_reader_that_left_ends_quietly(self):
        for ignore in (signal.SIG_DFL, signal.SIG_IGN):
            read_end, write_end = os.pipe()
            os.close(read_end)
            done = subprocess.run([INRUSH, "inspect", self.model], stdout=write_end, stderr=subprocess.PIPE,
                                  check=False, env=environment(), timeout=120, restore_signals=False,
                                  preexec_fn=lambda handler=ignore: signal.signal(signal.SIGPIPE, handler))
            os.close(write_end)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))


class Interruption(CommandTest):
    """With stderr on a terminal, so that the bar tells when the load is under way."""

    def setUp(self):
        super().setUp()
        self.big = self.path("big.safetensors")
        write_sparse_file(self.big)

    def start_on_terminal(self, *words, columns=80):
        terminal, other_end = pty.openpty()
        self.addCleanup(os.close, terminal)
        fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = start("load", self.big, "--device", "cpu", *words, stdout=subprocess.PIPE, stderr=other_end,
                        env=environment(INRUSH_READERS="1"))
        os.close(other_end)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process, terminal

    def read_terminal(self, terminal, until=None):
        text = b""
        while until is None or until not in text:
            try:
                chunk = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            text += chunk
        return text.decode()

    def test_signals_cancel_the_load(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            process, terminal = self.start_on_terminal()
            self.assertIn("%", self.read_terminal(terminal, b"% "))
            process.send_signal(number)
            rest = self.read_terminal(terminal)
            self.assertEqual(process.wait(timeout=60), code)
            self.assertEqual(process.stdout.read(), b"")
            self.assertTrue(rest.endswith("\r\x1b[Kinrush: interrupted\r\n"), repr(rest))

    def test_bar_fits_the_terminal(self):
        for columns in (20, 40, 80, 200):
            process, terminal = self.start_on_terminal(columns=columns)
            text = self.read_terminal(terminal, b"\x1b[K")
            process.kill()
            process.wait(timeout=60)
            line = text.split("\x1b[K")[0].lstrip("\r")
            self.assertIn("%", line)
            self.assertLess(len(line), columns)
            self.assertEqual("[" in line, columns >= 80, line)

    def test_no_bar_when_quiet_or_json(self):
        for words in (["--quiet"], ["--json"]):
            process, terminal = self.start_on_terminal(*words, "--deadline", "400ms")
            text = self.read_terminal(terminal)
            self.assertEqual(process.wait(timeout=60), 7)
            self.assertRegex(text, r"\Ainrush: [^\r\n]+\r\n\Z")

    def test_deadline(self):
        self.fail_with(7, "load", self.big, "--device", "cpu", "--deadline", "1ms", says=["big.safetensors"])


class Devices(CommandTest):
    def fake(self):
        return environment(LD_LIBRARY_PATH=FAKES)

    def test_no_gpu(self):
        self.fail_with(3, "load", self.model, "--device", "cuda:0", says=["libcuda"],
                       env=environment(LD_LIBRARY_PATH=self.no_driver()))

    def no_driver(self):
        # In front of a real driver: a file that is no library.
        os.makedirs(self.path("lib"), exist_ok=True)
        with open(self.path("lib", "libcuda.so.1"), "w", encoding="utf-8") as file:
            file.write("not a library")
        return self.path("lib")

    def test_auto_without_gpu_is_cpu(self):
        text = self.succeed("load", self.model, env=environment(LD_LIBRARY_PATH=self.no_driver()))
        self.assertIn(" to cpu", text)

    def test_fake_gpus(self):
        for device in ("cuda:0", "cuda:1"):
            text = self.succeed("load", self.model, "--device", device, "--check", env=self.fake())
            self.assertIn(f" to {device}", text)
            self.assertIn(f"every byte equal: {MODEL_BYTES:,} bytes in 20 tensors", text)

    def test_auto_takes_the_first(self):
        text = self.succeed("load", self.model, "--json", "--check", env=self.fake())
        load = json.loads(text)["loads"][0]
        self.assertEqual(load["report"]["device"], "cuda:0")
        self.assertEqual(load["check"]["bytes"], MODEL_BYTES)

    def test_slices_and_two_paths_on_a_gpu(self):
        text = self.succeed("load", self.model, self.model, "--device", "cuda:1", "--check", "--slice",
                            "layer.1.9.weight=1:3:5", env=self.fake())
        self.assertEqual(text.count("every byte equal"), 2)

    def test_absent_gpu(self):
        self.fail_with(3, "load", self.model, "--device", "cuda:7", says=["cuda:7"], env=self.fake())

    def test_gds_is_not_built(self):
        self.fail_with(3, "load", self.model, "--device", "cuda:0", "--path", "gds",
                       says=["gds", "not built"], env=self.fake())


class Information(CommandTest):
    def test_inspect_text(self):
        text = self.succeed("inspect", self.model)
        self.assertIn("20 tensors", text)
        self.assertIn("format=pt", text)
        row = r"layer\.0\.3\.weight +F32 +\[16, 256\] +16\.4 kB +model-00001-of-00002\.safetensors"
        self.assertRegex(text, row)
        self.assertIn("... and 18 more", self.succeed("inspect", self.model, "--limit", "2"))

    def test_inspect_json(self):
        document = json.loads(self.succeed("inspect", self.model, "--json"))
        self.assertEqual(document["tensor_count"], 20)
        self.assertEqual(sum(tensor["size_bytes"] for tensor in document["tensors"]), MODEL_BYTES)
        self.assertEqual(document["files"][0]["metadata"], {"format": "pt"})
        self.assertEqual(document["tensors"][1]["shape"], [16, 128])

    def test_inspect_only(self):
        words = ["inspect", self.model, "--only", "layer.1.*", "--json"]
        document = json.loads(self.succeed(*words))
        self.assertEqual([tensor["name"] for tensor in document["tensors"]],
                         [f"layer.1.{i}.weight" for i in range(10)])
        self.assertEqual(document["selected_count"], 10)

    def test_names_cannot_drive_the_terminal(self):
        name = "evil\x1b[2J\"\n\u202e\u00e9"
        write_file(self.path("evil.safetensors"), {name: ("U8", [1], b"x")})
        self.assertNotIn("\x1b", self.succeed("inspect", self.path("evil.safetensors")))
        document = json.loads(self.succeed("inspect", self.path("evil.safetensors"), "--json"))
        self.assertEqual(document["tensors"][0]["name"], name)

    def test_path_that_is_not_utf8(self):
        path = os.fsencode(self.path("m")) + b"\xff.safetensors"
        shutil.copy(self.path("model", "model-00001-of-00002.safetensors"), path)
        document = json.loads(self.succeed("inspect", os.fsdecode(path), "--json"))
        self.assertTrue(document["path"].endswith("\\xff.safetensors"))

    def test_env(self):
        settings = environment(INRUSH_READERS="3", XDG_CONFIG_HOME=self.folder)
        os.makedirs(self.path("inrush"))
        with open(self.path("inrush", "config.json"), "w", encoding="utf-8") as file:
            file.write('{"piece_bytes": "4MiB", "readers": 9} // ours')
        listed = json.loads(self.succeed("env", "--json", env=settings))["settings"]
        rows = {row["name"]: row for row in listed}
        self.assertEqual(rows["INRUSH_READERS"]["value"], "3")
        self.assertEqual(rows["INRUSH_READERS"]["source"], "environment INRUSH_READERS")
        self.assertEqual(rows["INRUSH_PIECE_BYTES"]["source"], "file " + self.path("inrush", "config.json"))
        text = self.succeed("env", env=settings)
        self.assertRegex(text, r"INRUSH_PIECE_BYTES +4194304 +file ")

    def test_version(self):
        self.assertRegex(self.succeed("version"), r"\Ainrush \d+\.\d+\.\d+\n\Z")
        self.assertEqual(self.succeed("--version"), self.succeed("version"))

    def test_help_shows_examples(self):
        for words in (["--help"], ["load", "--help"], ["inspect", "-h"], ["env", "--help"]):
            self.assertIn("Examples:\n  ", self.succeed(*words))
        self.assertIn("Usage: inrush load [OPTIONS] PATH", self.succeed("load", "--help"))


if __name__ == "__main__":
    INRUSH, FAKES = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
