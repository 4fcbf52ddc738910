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
import time
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
    # What a probe of this user measured must not steer a test.
    return {**kept, "XDG_STATE_HOME": os.path.join(tempfile.gettempdir(), "inrush-no-state"), **changes}


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


def drop_cache(folder):
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Warming(CommandTest):
    def test_text(self):
        drop_cache(self.model)
        pattern = r"\A(\S+ kB) of \1 in the page cache: \S+ \S+ were there, \S+ \S+ read in \S+ s.*\n\Z"
        self.assertRegex(self.succeed("warm", self.model), pattern)
        self.assertIn(" were there, 0 B read", self.succeed("warm", self.model))

    def test_json(self):
        drop_cache(self.model)
        report = json.loads(self.succeed("warm", self.model, "--json", "--only", "layer.1.*"))
        self.assertEqual(report["planned_bytes"], MODEL_BYTES // 2)
        self.assertEqual(report["resident_bytes"] + report["read_bytes"], MODEL_BYTES // 2)
        self.assertEqual((report["schema_version"], report["left_bytes"]), (1, 0))

    def test_quiet(self):
        self.assertEqual(self.succeed("warm", self.model, "--quiet"), "")

    def test_background(self):
        drop_cache(self.model)
        text = self.succeed("warm", self.model, "--background")
        child = int(text.rsplit(" ", 1)[1])
        self.assertIn("in the background: process", text)
        for _ in range(600):
            if not os.path.exists(f"/proc/{child}"):
                break
            time.sleep(0.1)
        self.assertIn(" 0 B read", self.succeed("warm", self.model))
        document = json.loads(self.succeed("warm", self.model, "--background", "--json"))
        self.assertGreater(document["process"], 0)

    def test_bad_input(self):
        self.fail_with(4, "warm", self.path("absent"), says=["absent"])
        self.fail_with(4, "warm", self.path("absent"), "--background", says=["absent"])
        self.fail_with(2, "warm", self.model, "--only", "nothing.*", says=["nothing.*"])
        self.fail_with(2, "warm", says=["PATH"])
        self.fail_with(2, "warm", self.model, "--json", "--quiet", says=["--quiet"])

    def test_interrupted(self):
        sparse = self.path("sparse.safetensors")
        write_sparse_file(sparse)
        process = start("warm", sparse, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (130, ""))
        self.assertIn("interrupted", err)


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

    def cufile(self, words, version="1.19"):
        return environment(LD_LIBRARY_PATH=f"{FAKES}:{FAKES}/cufile-{version}", FAKE_CUFILE=words)

    def test_gds_without_a_libcufile(self):
        self.fail_with(3, "load", self.model, "--device", "cuda:0", "--path", "gds",
                       says=['path "gds"', "no libcufile", "nvidia-cufile"], env=self.fake())

    def test_gds_is_proven_or_says_that_it_is_not(self):
        for words, version, path in (("p2pdma", "1.19", "gds"), ("nvfs", "1.15", "gds"),
                                     ("p2pdma", "1.14", "gds (unproven)"), ("mute", "1.19", "gds (unproven)"),
                                     ("silent", "1.19", "cufile-compat")):
            with self.subTest(words=words, version=version):
                text = self.succeed("load", self.model, "--device", "cuda:0", "--path", "gds", "--check",
                                    "--json", env=self.cufile(words, version))
                load = json.loads(text)["loads"][0]
                self.assertEqual(load["report"]["path"], path)
                self.assertEqual(load["check"]["bytes"], MODEL_BYTES)

    def test_compat_is_called_compat(self):
        text = self.succeed("load", self.model, "--device", "cuda:0", "--path", "cufile-compat", "--check",
                            env=self.cufile("compat"))
        self.assertIn("cuFile compat", text)
        self.assertNotIn("GDS", text)

    def test_gds_that_is_refused_names_code_and_remedy(self):
        self.fail_with(3, "load", self.model, "--device", "cuda:0", "--path", "gds",
                       says=["5001", "compat mode forbidden", "path staged"], env=self.cufile("compat"))


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
        for words in (["--help"], ["load", "--help"], ["inspect", "-h"], ["env", "--help"],
                      ["bench", "--help"]):
            self.assertIn("Examples:\n  ", self.succeed(*words))
        self.assertIn("Usage: inrush load [OPTIONS] PATH", self.succeed("load", "--help"))


class Explaining(CommandTest):
    def explained(self, *words):
        return json.loads(self.succeed("explain", "--json", *words))["codes"]

    def test_code_of_cufile(self):
        text = self.succeed("explain", "5027")
        pattern = (r"\ACU_FILE_HANDLE_NOT_REGISTERED \(5027\)\n  meaning  [^\n]+\n  likely   [^\n]+\n"
                   r"  remedy   [^\n]*/run/udev[^\n]*\n\Z")
        self.assertRegex(text, pattern)
        for word in ("-5027", "CU_FILE_HANDLE_NOT_REGISTERED", "cu_file_Handle_not_registered"):
            self.assertEqual(self.succeed("explain", word), text)

    def test_code_of_ours(self):
        text = self.succeed("explain", "Corrupt_Checkpoint")
        self.assertRegex(text, r"\Acorrupt_checkpoint \(exit code 5\)\n")
        self.assertIn("  remedy   get the file again\n", text)
        exits = {row["name"]: row["exit_code"] for row in self.explained() if row["exit_code"] is not None}
        self.assertEqual(exits, {"invalid_request": 2, "environment_unfit": 3, "not_found": 4,
                                 "corrupt_checkpoint": 5, "storage_failed": 1, "out_of_memory": 6,
                                 "device_failed": 1, "timed_out": 7, "cancelled": 7, "internal": 1})

    def test_several_and_all(self):
        self.assertEqual([row["code"] for row in self.explained("5036", "-5001")], [5036, 5001])
        self.assertIn("\n\nCU_FILE_IO_NOT_SUPPORTED (5008)\n", self.succeed("explain", "5001", "5008"))
        listed = self.explained()
        self.assertEqual(len(listed), 10 + 48)
        table = self.succeed("explain")
        for row in listed:
            self.assertRegex(table, rf"(?m)^ +{row['code'] or row['exit_code']}  +{row['name']}  +\S")

    def test_unknown(self):
        for word in ("5021", "-5021", "4", "5027x", "", "CU_FILE"):
            self.fail_with(2, "explain", word, says=[f'"{word}"', "inrush explain"])
        self.fail_with(2, "explain", "5027", "cu_file_io_eror",
                       says=["did you mean CU_FILE_IO_ERROR?"])
        self.fail_with(2, "explain", "--table", says=["--table"])

    def test_names_cannot_drive_the_terminal(self):
        self.fail_with(2, "explain", "\x1b[2J", says=[r"\x1b[2J"])

    def test_driver_statistics(self):
        self.fail_with(2, "stats", says=["--gds"])
        if os.path.exists("/proc/driver/nvidia-fs/stats"):
            self.assertIn("nvidia-fs", self.succeed("stats", "--gds"))
            self.assertEqual(json.loads(self.succeed("stats", "--gds", "--json"))["schema_version"], 1)
            return
        for words in (["stats", "--gds"], ["stats", "--gds", "--json"]):
            self.fail_with(3, *words, says=["nvidia-fs is not loaded"])


class Probing(CommandTest):
    def setUp(self):
        super().setUp()
        self.file = self.path("large.safetensors")
        write_file(self.file, {"t": ("U8", [34 << 20], random.Random(2).randbytes(34 << 20))})
        os.makedirs(self.path("tmp"))

    def fakes(self, words="p2pdma", **changes):
        return environment(LD_LIBRARY_PATH=FAKES, FAKE_CUFILE=words, INRUSH_STATE=self.path("state"),
                           INRUSH_CUFILE_LIBRARY=os.path.join(FAKES, "cufile-1.15", "libcufile.so.0"),
                           TMPDIR=self.path("tmp"), **changes)

    def rows(self, words="p2pdma", *options):
        text = self.succeed("probe", self.file, "--json", *options, env=self.fakes(words))
        return {row["path"]: row for row in json.loads(text)["candidates"]}

    def gds_of_plan(self, **options):
        plan = json.loads(self.succeed("load", self.file, "--plan", "--json", **options))["plans"][0]
        return next(path for path in plan["paths"] if path["name"] == "gds")

    def test_text(self):
        text = self.succeed("probe", self.file, env=self.fakes())
        self.assertTrue(text.startswith(f"35.7 MB of {self.file} ("), text)
        self.assertRegex(text, r"\n  staged +yes +\S+ +\S+  \S.*every byte equal")
        self.assertRegex(text, r"\n  gds +yes .* \(cuFile P2PDMA\) +every byte equal")
        self.assertRegex(text, r"\nchosen: \S+ \(measured here: staged .*\)\nkept in " + self.path("state"))
        self.assertEqual(os.listdir(self.path("tmp")), [])
        self.assertEqual(os.listdir(self.path("state")), ["probes"])

    def test_json(self):
        text = self.succeed("probe", self.file, "--json", "--bytes", "20MiB", env=self.fakes())
        report = json.loads(text)
        self.assertEqual((report["schema_version"], report["bytes"]), (1, 20 << 20))
        self.assertEqual([row["path"] for row in report["candidates"]], ["staged", "gds", "cufile-compat"])
        self.assertFalse(report["wrong_bytes"])
        self.assertTrue(report["device"].startswith("GPU-"))
        self.assertIn("say little", report["why_not_cached"])

    def test_impossible_gds_is_an_answer(self):
        rows = self.rows("compat")
        self.assertFalse(rows["gds"]["usable"])
        self.assertIn("5001", rows["gds"]["reason"])
        self.assertTrue(rows["cufile-compat"]["usable"])

    def test_what_hangs_or_crashes_is_an_answer(self):
        self.assertIn("did not come back within 2 s", self.rows("hang=cuFileDriverOpen", "--timeout", "2s")
                      ["gds"]["reason"])
        self.assertIn("signal 11", self.rows("crash=cuFileRead")["gds"]["reason"])

    def test_wrong_bytes_are_an_error(self):
        done = self.run_inrush("probe", self.file, env=self.fakes("corrupt_read=2"))
        self.assertEqual(done.returncode, 1, done)
        self.assertTrue(done.stdout.startswith('!!! WRONG BYTES by the path "gds"'), done.stdout)
        self.assertIn("\nchosen: staged", done.stdout)
        self.assertRegex(done.stderr, r"\Ainrush: [^\n]*WRONG BYTES at offset \d+[^\n]*\n\Z")
        # Also for those who ask for it by name.
        self.fail_with(3, "load", self.file, "--path", "gds", env=self.fakes(), says=["WRONG BYTES"])

    def test_loads_use_it(self):
        env = self.fakes()
        self.assertIn("`inrush probe PATH` does", self.gds_of_plan(env=env)["reason"])
        self.succeed("probe", self.file, env=env)
        self.assertRegex(self.gds_of_plan(env=env)["reason"], r"\Aprobed 20\d\d-\d\d-\d\d: every byte equal")
        self.assertNotIn("probed", self.gds_of_plan(env={**env, "INRUSH_STATE": self.path("none")})["reason"])

    def test_cpu(self):
        report = json.loads(self.succeed("probe", self.file, "--device", "cpu", "--json", env=self.fakes()))
        self.assertEqual([row["path"] for row in report["candidates"]], ["staged"])
        self.assertEqual((report["chosen"], report["cached_in"]), ("staged", ""))

    def test_bad_input(self):
        self.fail_with(4, "probe", self.path("absent"), says=["absent"])
        self.fail_with(2, "probe", "/dev/null", says=["regular file"])
        self.fail_with(2, "probe", says=["PATH"])
        self.fail_with(2, "probe", self.file, "--bytes", "7X", says=["--bytes"])
        self.fail_with(2, "probe", self.file, "--timeout", "0", says=["--timeout"])
        self.fail_with(3, "probe", self.file, "--device", "cuda:7", says=["cuda:7"], env=self.fakes())

    def children(self):
        """Processes that were told to read our file."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"inrush-probe") and os.fsencode(self.file) in words:
                found.append(int(pid))
        return found

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            process = start("probe", self.file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=self.fakes("hang=cuFileDriverOpen"))
            while not self.children():
                time.sleep(0.01)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual(out, "")
            if number == signal.SIGINT:
                self.assertEqual((process.returncode, err), (130, "inrush: interrupted\n"))
            deadline = time.monotonic() + 30
            while self.children() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(self.children(), [])

    def test_forced_path_has_a_configuration_of_its_own(self):
        def configuration(path, **changes):
            process = start("load", self.file, "--path", path, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env=self.fakes("hang=cuFileDriverOpen", **changes))
            try:
                while True:
                    for descriptor in os.listdir(f"/proc/{process.pid}/fd"):
                        link = f"/proc/{process.pid}/fd/{descriptor}"
                        try:
                            if not os.readlink(link).startswith("/memfd:cufile.json"):
                                continue
                            with open(link, encoding="utf-8") as file:
                                return json.loads(file.read())["properties"]
                        except (FileNotFoundError, json.JSONDecodeError):
                            pass  # not yet
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
            finally:
                process.kill()
                process.wait()

        self.assertEqual(configuration("gds"), {"allow_compat_mode": False, "use_pci_p2pdma": True})
        self.assertEqual(configuration("cufile-compat"), {"allow_compat_mode": True, "use_pci_p2pdma": False})
        for path in ("gds", "cufile-compat"):
            text = self.succeed("load", self.file, "--path", path, "--check", env=self.fakes())
            self.assertIn(f"\n  path       {path}\n", text)
            self.assertEqual(os.listdir(self.path("tmp")), [])


if __name__ == "__main__":
    INRUSH, FAKES = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
