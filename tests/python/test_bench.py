"""The harness of bench/: what it calls a claim, runs again and finds wrong, and what it survives."""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import types
from pathlib import Path

import inrush
import pytest
import torch
from conftest import variable, write_checkpoint

sys.path.insert(0, str(Path(variable("TEST_SOURCE")) / "bench"))

import bench  # noqa: E402
import checkpoints  # noqa: E402
import commands  # noqa: E402
import counters  # noqa: E402
import limits  # noqa: E402
import machine  # noqa: E402
import matrix  # noqa: E402
import outcomes  # noqa: E402
import page_cache  # noqa: E402
import processes  # noqa: E402
import report  # noqa: E402
import verification  # noqa: E402
from rivals import all_rivals  # noqa: E402

TENSORS = {"weight": ("BF16", [64, 32]), "layers.0.x_proj.weight": ("F32", [8, 16]), "scale": ("F32", []),
           "odd": ("U8", [13])}

# Loaders of which each goes wrong in its own way. Their files are the trial's own: no package is needed.
TEST_RIVALS = """
    import os, signal, subprocess, sys, time
    from rivals.rival import Rival, entries_of, views

    def read(files, device):
        import torch
        tensors = {}
        for path in files:
            start, entries = entries_of(path)
            data = torch.frombuffer(bytearray(open(path, "rb").read()[start:]), dtype=torch.uint8)
            tensors.update(views(data, entries))
        return tensors

    def flip(files, device):
        tensors = read(files, device)
        tensors["odd"][-1] ^= 1
        return tensors

    def crash(files, device):
        print("these are my last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def fail(files, device):
        raise ValueError("no such luck")

    def fill(files, targets):
        for name, tensor in read(files, "cpu").items():
            if name != "scale":
                targets[name].copy_(tensor)

    RIVALS = [Rival("good", "", "", load=read), Rival("flips", "", "", load=flip),
              Rival("crashes", "", "", load=crash), Rival("fails", "", "", load=fail),
              Rival("pairs", "", "", pairs=lambda files, device: iter(read(files, device).items())),
              Rival("forgets", "", "", fill=fill),
              Rival("slow", "", "", load=lambda files, device: (time.sleep(0.5), read(files, device))[1]),
              Rival("absent", "", "", imports=("no_such_package",), load=read)]
"""
HANGING = """
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.path.join(os.path.dirname(__file__), "processes"), "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


@pytest.fixture(name="trials", scope="module")
def trials_fixture(tmp_path_factory):
    with processes.Trials(tmp_path_factory.mktemp("trials")) as trials:
        yield trials


@pytest.fixture(name="pair")
def pair_fixture(tmp_path):
    """Two checkpoints of the same shape and other bytes, as lists of files."""
    files = []
    for part in "ab":
        folder = tmp_path / part
        folder.mkdir()
        tensors = {name: (dtype, shape, random.Random(part + name).randbytes(size(dtype, shape)))
                   for name, (dtype, shape) in TENSORS.items()}
        write_checkpoint(folder / "model.safetensors", tensors)
        files.append([str(folder / "model.safetensors")])
    return files


def size(dtype, shape):
    return {"BF16": 2, "F32": 4, "U8": 1}[dtype] * torch.Size(shape).numel()


def specification(pair, tmp_path, name, code=TEST_RIVALS, **more):
    folder = tmp_path / "rivals_of_the_test"
    folder.mkdir(exist_ok=True)
    (folder / "test_rivals.py").write_text(textwrap.dedent(code))
    return {"rival": name, "device": "cpu", "cpus": 0, "part": None, "state": "warm", "gate": False,
            "result": str(tmp_path / f"result-{name}-{random.randrange(1 << 60)}"), "files": pair,
            "source": pair, "rivals_folder": str(folder), **more}


# Trials

def test_what_becomes_of_a_trial(pair, tmp_path, trials):
    names = ["good", "flips", "crashes", "fails", "pairs", "forgets", "absent"]
    wanted = [specification(pair, tmp_path, name) for name in names]
    rows = dict(zip(names, trials.run(wanted, {}, 120)))
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "good": "ok", "flips": "wrong bytes", "crashes": "crashed", "fails": "failed", "pairs": "ok",
        "forgets": "wrong bytes", "absent": "unavailable"}
    assert rows["flips"]["reason"] == "first load: 1 wrong, such as 'odd'"
    assert rows["crashes"]["reason"] == "signal SIGSEGV: these are my last words"
    assert rows["fails"]["reason"] == "ValueError: no such luck"
    assert "'scale'" in rows["forgets"]["reason"]  # poisoned, and not written
    assert rows["absent"]["reason"].startswith("import no_such_package: ModuleNotFoundError")
    total = sum(size(*entry) for entry in TENSORS.values())
    for which, load in zip(("first", "second"), rows["good"]["loads"], strict=True):
        assert (load["which"], load["bytes"], load["tensors"]) == (which, total, len(TENSORS))
        assert load["seconds"] > 0 and load["resident_before"] == 1 and load["first_tensor_s"] is None
    assert 0 < rows["pairs"]["loads"][0]["first_tensor_s"] <= rows["pairs"]["loads"][0]["seconds"]


def test_a_hanging_trial_ends_with_what_it_started(pair, tmp_path, trials):
    wanted = specification(pair, tmp_path, "any", HANGING)
    path = tmp_path / "rivals_of_the_test" / "processes"
    started = processes.Process(wanted, {}, trials)
    while not path.exists() or len(path.read_text().split()) < 2:
        time.sleep(0.01)
    started.end()
    assert started.outcome(True, 3)["reason"] == "no end within 3 s"
    for number in map(int, path.read_text().split()):
        while is_alive(number):  # killed, and on its way out; a missed one outlives this test
            time.sleep(0.01)

    (row,) = trials.run([specification(pair, tmp_path, "any", HANGING)], {}, 0.5)
    assert (row["outcome"], row["loads"]) == ("timed out", [])


def test_trials_end_with_the_bench(pair, tmp_path):
    """Also where it is killed, and cannot end them itself."""
    path = tmp_path / "rivals_of_the_test" / "processes"
    with processes.Trials(tmp_path) as trials:
        started = processes.Process(specification(pair, tmp_path, "any", HANGING), {}, trials)
        while not path.exists() or len(path.read_text().split()) < 2:
            time.sleep(0.01)
    assert started.has_ended(60)
    os.kill(int(path.read_text().split()[1]), signal.SIGKILL)


def is_alive(number):
    """A zombie that its new parent has not looked at yet is none."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_processes_that_load_at_once(pair, tmp_path, trials):
    twice = [specification(pair, tmp_path, "good", gate=True) for _ in range(2)]
    rows = trials.run(twice, {}, 120)
    whole = processes.combined(rows)
    assert whole["outcome"] == "ok"
    assert whole["loads"][1]["bytes"] == 2 * rows[0]["loads"][1]["bytes"]
    assert whole["loads"][1]["seconds"] >= max(row["loads"][1]["seconds"] for row in rows) - 1e-4

    both = [specification(pair, tmp_path, name, gate=True) for name in ("good", "crashes")]
    rows = trials.run(both, {}, 120)
    assert processes.combined(rows)["outcome"] == "crashed"


def test_files_are_shared_among_processes(tmp_path):
    """Each part is a folder with its files and no others, so that a loader of folders loads its part."""
    tensors = {f"t{i}": ("U8", [100 + i]) for i in range(5)}
    folder = write_checkpoint(tmp_path / "model", tensors, shards=5)
    files = sorted(map(str, folder.glob("*.safetensors")))
    assert checkpoints.share(files, 1) == [files]
    parts = checkpoints.share(files, 2)
    assert parts == checkpoints.share(files, 2)
    assert [len(part) for part in parts] == [3, 2]
    ours = all_rivals()["inrush"]
    loaded_names = [set(ours.run(part, "cpu")) for part in parts]
    assert loaded_names[0] | loaded_names[1] == set(tensors) and not loaded_names[0] & loaded_names[1]


def test_a_wrong_state_is_no_time(pair, tmp_path, trials):
    cold = specification(pair, tmp_path, "good", state="half")
    for paths in pair:
        page_cache.bring(paths, "warm")
    (row,) = trials.run([cold], {}, 120)
    assert (row["outcome"], row["loads"]) == ("wrong state", [])
    assert "asked for half, and 100.0%" in row["reason"]


def restart(pair, tmp_path, names):
    parts = [{**specification(pair, tmp_path, name), "state": "any", "which": [which]}
             for name, which in zip(names, ("first", "second"))]
    return tuple(parts)


def test_a_load_and_a_restart(pair, tmp_path, trials):
    row = trials.run_restart(restart(pair, tmp_path, ["good", "good"]), {}, 120)
    assert row["outcome"] == "ok" and [load["which"] for load in row["loads"]] == ["first", "second"]
    first, second = row["loads"]
    assert second["began"] >= first["ended"] and (first["verdict"], second["verdict"]) == ("", "")
    assert outcomes.seconds_of(row, "both") == first["seconds"] + second["seconds"]
    for names, outcome in ((["flips", "good"], "wrong bytes"), (["good", "crashes"], "crashed"),
                           (["crashes", "good"], "crashed"), (["good", "flips"], "wrong bytes")):
        assert trials.run_restart(restart(pair, tmp_path, names), {}, 120)["outcome"] == outcome
    row = trials.run_restart(restart(pair, tmp_path, ["good", "good"]), {}, 0)
    assert (row["outcome"], row["loads"]) == ("timed out", [])


def test_what_is_pinned_is_seen_from_outside(pair, tmp_path):
    counts = iter(range(1000, 2000))
    with processes.Trials(tmp_path, lambda process: next(counts)) as trials:
        (row,) = trials.run([specification(pair, tmp_path, "slow")], {}, 120)
    assert row["loads"][1]["pinned_bytes"] >= 5  # a sample each 20 ms, of 0.5 s
    assert row["loads"][1]["pinned_bytes"] == row["loads"][1]["pinned_seen_bytes"]


# Verification

def loaded(files):
    return dict(inrush.torch.load(files[0]))


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_bit_is_found(pair, name, place):
    tensors = loaded(pair[0])
    assert verification.compare(pair[0], tensors).is_right
    tensors[name].reshape(-1).view(torch.uint8)[place] ^= 0x80
    assert verification.compare(pair[0], tensors).wrong == [name]


def test_another_checkpoints_bytes_are_wrong(pair):
    assert len(verification.compare(pair[1], loaded(pair[0])).wrong) == len(TENSORS)


def test_missing_unexpected_and_reshaped(pair):
    tensors = loaded(pair[0])
    tensors["other"] = tensors.pop("weight")
    tensors["scale"] = tensors["scale"].reshape(1)
    verdict = verification.compare(pair[0], tensors)
    assert (verdict.missing, verdict.unexpected, verdict.reshaped) == (["weight"], ["other"], 1)
    assert verdict.reason() == "1 missing, such as 'weight'; 1 unexpected, such as 'other'"


@pytest.mark.parametrize("dimension", [0, 1])
def test_slices(pair, dimension):
    spec = inrush.ShardSpec({"*_proj.weight": dimension}, rank=0, world=4)
    tensors = dict(inrush.torch.load(pair[0][0], slices=spec))
    assert verification.compare(pair[0], tensors, (dimension, 4)).is_right
    assert verification.compare(pair[0], tensors, (dimension, 2)).wrong == ["layers.0.x_proj.weight"]


def test_large_files_come_in_parts(pair, monkeypatch):
    monkeypatch.setattr(verification, "PART_BYTES", 600)
    tensors = loaded(pair[0])
    assert verification.compare(pair[0], tensors).is_right
    tensors["weight"].view(torch.uint8)[63, 63] ^= 1
    assert verification.compare(pair[0], tensors).wrong == ["weight"]


def test_many_small_tensors_are_compared_together(pair, monkeypatch):
    calls = []
    together = verification._are_equal_together
    monkeypatch.setattr(verification, "TOGETHER_MIN", 2)
    monkeypatch.setattr(verification, "TOGETHER_ON", ("cpu",))
    monkeypatch.setattr(verification, "_are_equal_together",
                        lambda *words: calls.append(together(*words)) or calls[-1])
    tensors = loaded(pair[0])
    tensors["scale"] = tensors["scale"].reshape(1)
    assert verification.compare(pair[0], tensors) == ([], [], [], 1)
    tensors["odd"][-1] ^= 1
    assert verification.compare(pair[0], tensors).wrong == ["odd"]
    assert calls == [True, False]


# The page cache

def test_both_ways_to_count_pages_agree(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20) + b"y")
    with path.open("rb") as file:
        by_mincore = page_cache._by_mincore(file.fileno(), (1 << 20) + 1)
    assert by_mincore == 257 and page_cache.resident_pages(str(path)) == (257, 257)


def test_states(tmp_path):
    path = str(tmp_path / "file")
    Path(path).write_bytes(random.Random(1).randbytes(8 << 20))
    page_cache.bring([path], "warm")
    with pytest.raises(page_cache.WrongState, match="asked for cold, and 100"):
        page_cache.check([path], "cold")
    if machine.file_system(path) == "tmpfs":  # where nothing can be dropped it says so
        assert page_cache.check([path], "tmpfs") == 1
        with pytest.raises(page_cache.WrongState):
            page_cache.bring([path], "cold")
        return
    page_cache.bring([path], "cold")
    page_cache.bring([path], "half")
    assert 0.45 < page_cache.resident_part([path]) < 0.55
    with pytest.raises(page_cache.WrongState, match="asked for tmpfs"):
        page_cache.check([path], "tmpfs")


# What can be said about pairs

@pytest.mark.parametrize(("count", "dropped", "confidence"), [
    (1, 0, 0.0), (2, 0, 0.5), (5, 0, 0.9375), (6, 0, 0.96875), (8, 0, 0.9922), (9, 1, 0.9609),
    (20, 5, 0.9586)])
def test_intervals_by_the_sign_test(count, dropped, confidence):
    values = [float(value) for value in range(count)]
    random.Random(count).shuffle(values)
    found = outcomes.interval(values)
    assert (found.low, found.high) == (dropped, count - 1 - dropped)
    assert found.confidence == pytest.approx(confidence, abs=1e-4)
    assert found.is_claim == (count >= 5)


def test_intervals_hold_the_median_as_often_as_they_say():
    source, true_median, tries = random.Random(3), 1.0, 4000
    held = 0
    for _ in range(tries):
        found = outcomes.interval([source.lognormvariate(0, 1) for _ in range(9)])
        held += found.low <= true_median <= found.high
    assert held / tries == pytest.approx(0.9609, abs=0.012)


def row_of(rival, round_, seconds, outcome="ok", **more):
    load = {"which": "second", "seconds": seconds, "bytes": 10**9, "cpu_s": 1.0, "host_peak_bytes": 10**6,
            "reshaped": 0, "mapped": False, "first_tensor_s": None}
    loads = [{**load, "which": "first", "seconds": 2 * seconds}, load] if outcome == "ok" else []
    return {"key": ["warm-gib", 1.0, "cpu", rival, round_], "case": "warm-gib", "title": "warm, one file",
            "state": "warm", "rival": rival, "ours": "inrush", "round": round_, "run": "now",
            "settings": "as it is", "version": "1", "import_s": 0.1, "limits": {"page_cache": 20e9},
            "outcome": outcome, "loads": loads,
            "machine": {"device": "cpu", "cpus": 2, "file_system": "ext4", "torch": "2",
                        "note": "CPU TARGET: no GPU was used"}, **more}


def test_pairs_are_of_one_round():
    rows = [row_of("inrush", 0, 1.0), row_of("inrush", 1, 2.0), row_of("inrush", 2, 0, "crashed"),
            row_of("other", 0, 3.0), row_of("other", 1, 3.0), row_of("other", 2, 3.0),
            row_of("other", 3, 3.0)]
    assert sorted(outcomes.ratios(rows, "inrush", "other", "second")) == [1.5, 3.0]


@pytest.mark.parametrize(("state", "device", "rate"), [
    ("warm", "cpu", 20.0), ("warm", "cuda:0", 55.0), ("tmpfs", "cuda:0", 55.0), ("cold", "cuda:0", 2.0),
    ("half", "cuda:0", 4.0), ("restart", "cuda:0", 2 / (1 / 2.0 + 1 / 55.0))])
def test_limits(state, device, rate):
    limits = {"page_cache": 20.0, "pinned": 55.0, "storage": 2.0}
    assert outcomes.limit_rate(state, limits, device)[0] == rate
    assert outcomes.limit_rate(state, {}, device) is None


def test_storage_is_measured_by_io_uring_where_that_is_built(pair, tmp_path, monkeypatch):
    program = tmp_path / "inrush_bench_storage"
    program.write_text("#!/bin/sh\necho '{\"size\": 1, \"depth\": 2, \"gb_per_s\": 3.5}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(commands, "built", lambda name: str(program) if name == program.name else None)
    assert limits.measure("storage", pair[0], "cpu", 0.01)["best"] == 3.5e9
    program.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(limits, "sweep", lambda reads, counts, sizes: [{"threads": 1, "gb_per_s": 1.5}])
    assert limits.measure("storage", pair[0], "cpu", 0.01)["best"] == 1.5e9


# Resumption

class FakePair:
    files = [["a"], ["b"]]

    def files_for(self, rival, converts):
        return self.files


@pytest.fixture(name="make_bench")
def make_bench_fixture(tmp_path, monkeypatch):
    """make_bench(outcome) -> Bench whose trials are not run but noted in `ran`, and end as outcome(name)."""
    monkeypatch.setattr(bench.Bench, "_probe", lambda self: {"absent": "not here"})
    monkeypatch.setattr(bench.Bench, "_limits", lambda self, case, pair: {"page_cache": {"best": 20e9}})
    monkeypatch.setattr(bench, "all_rivals", lambda: {
        name: all_rivals()["naive-read"] for name in ("inrush", "other", "absent")})

    def make(outcome=lambda name: "ok", pairs=3):
        arguments = argparse.Namespace(out=tmp_path, deadline=None, device="cpu", folder=tmp_path, only=None,
                                       quick=False, pairs=pairs, scale=1.0, machine={}, command=None)
        made = bench.Bench(arguments, Path(tempfile.mkdtemp(dir=tmp_path)))
        made.ran = []

        def trial(case, files, name):
            made.ran.append(name)
            return {key: row_of(name, 0, 1.0, outcome(name))[key] for key in ("outcome", "loads")}

        monkeypatch.setattr(made, "_trial", trial)
        monkeypatch.setattr(made, "fitting", lambda case: ["inrush", "other", "absent"])
        return made

    return make


CASE = matrix.Case("warm", "gib")


def test_trials_are_interleaved_and_nobody_is_always_first(make_bench):
    made = make_bench()
    made.run_case(CASE, FakePair())
    assert made.ran == ["inrush", "other", "other", "inrush", "inrush", "other"]


def test_what_was_run_is_not_run_again(make_bench, tmp_path):
    make_bench(pairs=2).run_case(CASE, FakePair())
    path = tmp_path / "trials.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:40])  # killed in the middle of a line
    made = make_bench(pairs=3)
    made.run_case(CASE, FakePair())
    assert len(made.ran) == 3  # the lost one, and the third round
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert not make_bench(pairs=3).ran
    other = make_bench(pairs=1)
    other.arguments.scale = 0.5
    other.run_case(CASE, FakePair())
    assert len(other.ran) == 2  # of another size


def test_a_loader_that_cannot_run_is_listed_once_and_asked_again(make_bench):
    for _ in range(2):
        made = make_bench(pairs=1)
        made.run_case(CASE, FakePair())
    rows = [row for row in made.results.rows if row["rival"] == "absent"]
    assert [(row["outcome"], row["reason"]) for row in rows] == [("unavailable", "not here")]
    made = make_bench(pairs=1)
    made.unfit.clear()
    made.run_case(CASE, FakePair())
    assert made.ran == ["absent"]


def test_a_loader_that_fails_twice_is_given_up(make_bench):
    made = make_bench(lambda name: "crashed" if name == "other" else "ok", pairs=5)
    made.run_case(CASE, FakePair())
    assert (made.ran.count("inrush"), made.ran.count("other")) == (5, 2)


def test_a_trial_that_the_end_of_the_call_cut_off_is_no_result(make_bench, monkeypatch):
    made = make_bench(lambda name: "timed out")
    monkeypatch.setattr(made, "is_late", lambda: len(made.ran) == 2)
    assert not made.run_case(CASE, FakePair())
    assert [row["rival"] for row in made.results.rows if row["outcome"] == "timed out"] == ["inrush"]
    assert make_bench().run_case(CASE, FakePair())


# Checkpoints

def test_pairs_stay_until_their_room_is_needed(tmp_path, monkeypatch):
    made = []

    class Made:
        def __init__(self, folder, shape, scale, until):
            made.append(shape)
            self.shape = shape

        def close(self):
            made.remove(self.shape)

    monkeypatch.setattr(checkpoints, "Pair", Made)
    monkeypatch.setattr(checkpoints, "lacks_room",
                        lambda folder, shape, scale: "full" if len(made) > 1 or shape == "moe" else None)
    pairs = checkpoints.Pairs(1.0, None)
    for shape in ("gib", "small", "gib"):
        pairs.take(tmp_path, shape, [])
    pairs.take(tmp_path, "large", ["llama", "gib", "small"])
    assert made == ["gib", "large"]
    pairs.take(tmp_path, "llama", ["gib"])
    assert made == ["gib", "llama"]
    with pytest.raises(checkpoints.NoRoom, match="full"):
        pairs.take(tmp_path, "moe", [])
    assert not made


def test_the_scale_is_what_the_disk_has_room_for(tmp_path, monkeypatch):
    for free, scale in ((10**12, 1.0), (2**30 + 16_200_000_000, 0.5), (0, 0.01)):
        monkeypatch.setattr(checkpoints.shutil, "disk_usage",
                            lambda folder, free=free: types.SimpleNamespace(free=free))
        assert checkpoints.fitting_scale(tmp_path) == scale


def test_no_time_for_a_checkpoint(tmp_path):
    with pytest.raises(checkpoints.NoTime):
        checkpoints.Pair(tmp_path, "large", 0.02, time.monotonic())
    assert not list(tmp_path.iterdir())


def test_rows_by_their_names():
    arguments = argparse.Namespace(quick=False, rows=["restart-gib,warm-gib", "warm-gib-command"], state=None,
                                   shape=None)
    assert [case.key for case in bench.wanted(arguments)] == ["restart-gib", "warm-gib", "warm-gib-command"]
    arguments.rows = ["warm-gibb"]
    with pytest.raises(SystemExit, match="no row 'warm-gibb'; there are: .*warm-gib,"):
        bench.wanted(arguments)


# The command

COMMAND = """#!/bin/sh
case "$*" in *--check*) exit ${WRONG:-0};; esac
echo '{"loads": [{"report": {"loaded_bytes": 7, "seconds": {"last_byte": 0.1}}}]}'
"""


def test_the_command_is_measured_from_exec(tmp_path, monkeypatch):
    program = tmp_path / "inrush"
    program.write_text(COMMAND)
    program.chmod(0o755)
    row = commands.trial(commands.COMMAND, str(program), [tmp_path, tmp_path], "cpu")
    assert row["outcome"] == "ok" and [load["bytes"] for load in row["loads"]] == [7, 7]
    assert all(load["seconds"] > 0 for load in row["loads"])
    assert commands.check(str(program), tmp_path, "cpu") == ""
    monkeypatch.setenv("WRONG", "5")
    assert commands.check(str(program), tmp_path, "cpu") == "exit code 5"
    program.write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
    row = commands.trial(commands.COMMAND, str(program), [tmp_path, tmp_path], "cpu")
    assert (row["outcome"], row["reason"]) == ("failed", "it broke")
    assert commands.trial(commands.CONTEXT, None, [tmp_path] * 2, "cpu")["outcome"] == "unavailable"
    assert commands.trial(commands.COMMAND, None, [tmp_path] * 2, "cpu")["outcome"] == "unavailable"


def test_what_the_command_takes_beyond_the_context():
    def row(name, round_, seconds):
        return row_of(name, round_, seconds, ours=commands.COMMAND)

    rows = [row(commands.COMMAND, i, 0.5 + i / 1000) for i in range(5)]
    rows += [row(commands.CONTEXT, i, 0.4) for i in range(5)]
    found = outcomes.differences(rows, commands.COMMAND, commands.CONTEXT)
    assert sorted(found)[:5] == pytest.approx([0.100, 0.101, 0.102, 0.103, 0.104])  # second; first: double
    assert "The command took: context alone + 152.0 ms [" in report.table(rows)


# Table and picture

ROWS = [row_of("inrush", i, 0.5 + i / 100) for i in range(5)] + [
    row_of("good", i, 1.0) for i in range(5)] + [
    row_of("crashed one", 0, 0, "crashed", reason="signal SIGSEGV: a | b"),
    row_of("crashed one", 1, 0, "crashed", reason="signal SIGSEGV: a | b"),
    row_of("absent one", 0, 0, "unavailable", reason="import absent: No module"),
    row_of("absent two", 0, 0, "unavailable", reason="import absent: No module"),
    row_of("seldom", 0, 2.0)]


def test_the_table():
    text = report.table(ROWS)
    lines = {line.split(" | ")[0].strip("| "): line
             for line in reversed(text.splitlines()) if line.startswith("| ")}
    assert "**CPU TARGET: no GPU was used.**" in text
    assert "CPU target. Limit: page cache reads, 20.00 GB/s" in text
    assert "Best of the others: good; its time over ours: second 1.92 [1.85, 2.00], first" in text
    assert "1.92 [1.85, 2.00]" in lines["good"]
    assert "crashed: signal SIGSEGV: a / b (2 times)" in lines["crashed one"]
    assert "Not run: absent one, absent two: import absent: No module." in text
    assert "(1 pairs: no claim)" in lines["seldom"]
    assert lines["good"].count(" - ") == 2  # nobody counted what it pinned, nor what crossed PCIe
    columns = {line.count("|") for line in text.splitlines() if line.startswith("| ")}
    assert len(columns) == 2  # of the one case, and of the settings
    assert report.table([]) == "No trials.\n"


def test_a_mapping_is_not_the_best_of_the_others():
    rows = [row_of("inrush", 0, 1.0), row_of("copies", 0, 3.0), row_of("maps", 0, 0.1)]
    rows[-1]["loads"][1]["mapped"] = True
    text = report.table(rows)
    assert "Best of the others: copies" in text and "nothing was copied" in text


def test_a_restart_is_one_time():
    rows = [row_of(name, i, seconds, state="restart", limits={"page_cache": 20e9, "storage": 5e9})
            for name, seconds in (("inrush", 0.1), ("good", 0.4)) for i in range(5)]
    text = report.table(rows)
    assert "storage, then page cache reads, 8.00 GB/s" in text
    assert "| 1.20 times its seconds |" in text  # 0.2 + 0.1 s, of 0.2 + 0.05
    assert "both 4.00 [4.00, 4.00]" in text


def test_the_table_says_what_the_counters_are_worth():
    counted = {"pinned_counter": None, "pinned_seen": {"process": [0, 0], "machine": [1, 0.2]},
               "pcie_counter": 198, "pcie_seen": {197: 0, 198: 1}}
    rows = [row_of("inrush", 0, 1.0)]
    assert "Pinned:" not in report.table(rows)
    rows[0]["machine"]["counters"] = counted
    assert "of others unknown" in report.table(rows) and "0% and 0%" in report.table(rows)
    rows[0]["machine"]["counters"] = {**counted, "pinned_counter": "machine", "pcie_counter": None}
    assert "of others by growth" in report.table(rows) and "PCIe: unknown" in report.table(rows)


def test_without_matplotlib_there_is_no_picture(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.draw(ROWS, tmp_path / "picture.png").startswith("no picture: ")
    assert not list(tmp_path.iterdir())


# What is compared

@pytest.mark.parametrize(("counted", "pinned", "pcie"), [
    ({"registered", "allocated"}, "machine", 198), ({"registered"}, None, None)])
def test_counters_are_tried_on_memory_of_known_size(monkeypatch, counted, pinned, pcie):
    """With a stand-in for what torch and the driver do on a GPU."""
    bytes_of, copied = {"registered": 0, "allocated": 0}, []

    def empty(size, dtype=None, device=None, pin_memory=False):
        bytes_of["allocated"] += size * pin_memory
        return types.SimpleNamespace(nbytes=size)

    def register(pointer, size, flags=0):
        bytes_of["registered"] += size

    cuda = types.SimpleNamespace(synchronize=lambda device: None, cudart=lambda: types.SimpleNamespace(
        cudaHostRegister=register,
        cudaHostUnregister=lambda pointer: register(pointer, -counters.TRIED_BYTES)))
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "empty_like", lambda source, device: types.SimpleNamespace(
        copy_=lambda source, non_blocking: copied.append(source.nbytes)))
    monkeypatch.setattr(counters, "PINNED", {
        "process": lambda process: 0, "machine": lambda process: sum(bytes_of[way] for way in counted)})
    monkeypatch.setattr(counters, "Pcie", type("Pcie", (), {
        "FIELDS": (197, 198), "__init__": lambda self, device: None,
        "count": lambda self, field: sum(copied) if (field, pcie) == (198, 198) else None}))
    found = counters.facts("cuda:0")
    assert "why" not in found and (found["pinned_counter"], found["pcie_counter"]) == (pinned, pcie)
    assert found["pinned_seen"]["process"] == [0, 0]


def test_counters_that_fail_are_none(monkeypatch):
    monkeypatch.setattr(counters, "_try_all", lambda device: 1 // 0)
    assert counters.facts("cuda:0")["why"].startswith("ZeroDivisionError")


def test_what_a_process_has_pinned():
    assert counters.pinned_by_process(os.getpid()) >= 0
    found = []
    for _ in range(5):
        before = counters.pinned_by_machine(0)
        memory = bytearray(os.urandom(1 << 20) * 64)  # of a program, and neither pinned nor a driver's
        found.append(abs(counters.pinned_by_machine(0) - before))
        assert len(memory) == 64 << 20
        del memory
    assert min(found) < 32 << 20  # others are at work on this machine too


def test_the_machine_says_that_it_has_no_gpu(tmp_path):
    found = machine.ask("cpu", tmp_path)
    assert found["device"] == "cpu" and found["note"].startswith("CPU TARGET") and found["cpus"] >= 1
    assert found["file_system"] != "unknown"


def test_every_loader_says_what_it_is():
    found = all_rivals()
    assert list(found)[0] == "inrush"
    for name, rival in found.items():
        ways = [way for way in (rival.load, rival.pairs, rival.fill) if way is not None]
        assert len(ways) == 1 and rival.settings and name == rival.name
    assert set(matrix.STRONGEST["warm"] + matrix.STRONGEST["cold"] + matrix.STRONGEST_FILLS) <= set(found)


def test_the_strongest_that_can_run():
    usable = ["naive-read", "safetensors-prefetch", "kvikio", "flashpack"]
    found = matrix.strongest(matrix.Case("warm", "gib"), usable, 3)
    assert found == ["safetensors-prefetch", "kvikio", "flashpack"]
    assert matrix.strongest(matrix.Case("warm", "gib", fill=True), usable, 3) == []


def test_cases_have_names_of_their_own():
    for cases in (matrix.QUICK, matrix.full()):
        assert len({case.key for case in cases}) == len(cases)


@pytest.mark.parametrize("shape", matrix.SHAPES)
def test_shapes(shape, tmp_path, source_folder):
    words = matrix.SHAPES[shape].words(0.0005)
    small = {"equal": ["--tensor-bytes", "4096", "--file-bytes", "16384"], "scalars": []}.get(
        matrix.SHAPES[shape].layout, ["--vocab", "100", "--hidden", "128", "--intermediate", "256"])
    made = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        maker = str(source_folder / "tools" / "make_checkpoint.py")
        subprocess.run([sys.executable, maker, str(folder), "--seed", str(seed), *words, *small], check=True)
        made.append(inrush.open(folder))
    forms = [{name: (entry.dtype, tuple(entry.shape)) for name, entry in one.items()} for one in made]
    assert forms[0] == forms[1] and len(forms[0]) > 0
    contents = [b"".join(Path(file.path).read_bytes() for file in one.files) for one in made]
    assert len(contents[0]) == len(contents[1]) and contents[0] != contents[1]
    if shape == "scalars":
        kinds = [form == ("F32", ()) for form in forms[0].values()]
        assert kinds.count(True) * 2 == len(kinds)
        assert any(first == second for first, second in zip(kinds, kinds[1:]))  # in no regular order
        assert os.path.getsize(made[0].files[0].path) > 0
