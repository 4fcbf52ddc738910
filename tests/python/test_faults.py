"""Faults through inrush.torch: right bytes or an Error, nothing half loaded, and the loader loads again.

Storage goes wrong by a preloaded pread (faulty_reads.cpp), the GPU by the fake driver. tests/faults does the
same to the engine, with more kinds and at more places.
"""
import fnmatch
import inspect
import json
import subprocess

import inrush
import inrush.torch
import pytest
from conftest import corpus_bytes, random_tensor, write_checkpoint
from fake_driver import LAUNCH_FAILED, OUT_OF_MEMORY
from hypothesis import given
from hypothesis import strategies as st
from resources import thread_count

# What may come of each kind: codes, and None for right bytes.
STORAGE_KINDS = {
    "EIO": {"storage_failed"}, "EINTR": {None}, "EAGAIN": {None}, "short read": {None},
    "early end": {"corrupt_checkpoint"}, "shrunk": {"corrupt_checkpoint", None},
    "grown": {"corrupt_checkpoint", None}, "rewritten": {"corrupt_checkpoint", None},
}  # fmt: skip
DRIVER_ENTRIES = (
    "cuStreamCreate", "cuMemcpyHtoDAsync", "cuEventCreate", "cuEventRecord", "cuEventQuery",
    "cuStreamWaitEvent", "cuMemHostRegister",
)  # fmt: skip

STORAGE_SCRIPT = """
import ctypes, json, os, shutil, sys
""" + inspect.getsource(thread_count) + """
import inrush, inrush.torch, torch

folder, original, kind, allowed = sys.argv[1], sys.argv[2], sys.argv[3], set(json.loads(sys.argv[4]))
shim = ctypes.CDLL(None)
loader = inrush.Loader(readers=1, piece_bytes=65536, io_uring=False)
expected = {name: bytes(array) for name, array in inrush.load(original).items()}
changed = os.path.join(folder, sorted(name for name in os.listdir(original) if name.endswith("rs"))[1])
counts = {"injected": 0, "loaded": 0, "refused": 0, "wrong": 0, "leaks": 0, "hangs": 0}

def restore():
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)

def raw(tensor):
    return tensor.numpy().tobytes()

def by_load():
    return {name: raw(tensor) for name, tensor in inrush.torch.load(folder, loader=loader).items()}

def by_stream():
    return {name: raw(tensor) for name, tensor in inrush.torch.stream(folder, loader=loader)}

def by_load_into():
    model = {name: torch.full((len(data),), 0xA5, dtype=torch.uint8) for name, data in expected.items()}
    try:
        inrush.torch.load_into(folder, model, loader=loader)
    except inrush.Error as error:
        touched = {name for name, tensor in model.items() if not bool((tensor == 0xA5).all())}
        if not touched <= set(error.overwritten):
            counts["wrong"] += 1
            print("WRONG: overwritten without a word", touched - set(error.overwritten))
        raise
    return {name: raw(tensor) for name, tensor in model.items()}

def alive():
    return len(os.listdir("/proc/self/fd")), thread_count()

restore()
by_load()
by_load_into()  # torch starts its threads
before = alive()
for way in (by_load, by_stream, by_load_into):
    for nth in range(1, 200):
        restore()
        shim.faulty_reads_arm(kind.encode(), nth, changed.encode())
        outcome = None
        try:
            if way() != expected:
                outcome = "wrong bytes"
        except inrush.Error as error:
            outcome = error.code
        if not shim.faulty_reads_disarm():
            break
        counts["injected"] += 1
        counts["loaded" if outcome is None else "refused"] += 1
        if outcome not in allowed:
            counts["wrong"] += 1
            print(f"WRONG: {way.__name__} {kind} at read {nth}: {outcome}")
        restore()
        if by_load() != expected:
            counts["wrong"] += 1
            print(f"WRONG: {way.__name__} {kind} at read {nth}: the next load")
        if alive() != before:
            counts["leaks"] += 1
            print(f"LEAK: {way.__name__} {kind} at read {nth}: {before} {alive()}")
print(json.dumps(counts))
"""


def tell(capsys, kind, counts):
    with capsys.disabled():
        print(f"\ncount: faults in Python, {kind} {counts['injected']} "
              + " ".join(f"{name} {number}" for name, number in counts.items()))


@pytest.fixture(scope="session")
def faulty_reads(source_folder, tmp_path_factory):
    made = tmp_path_factory.mktemp("shim") / "faulty_reads.so"
    source = source_folder / "tests/python/faulty_reads.cpp"
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


@pytest.mark.parametrize("kind", STORAGE_KINDS)
def test_storage_that_goes_wrong(run_python, faulty_reads, tmp_path, capsys, kind):
    tensors = {f"t{i}": random_tensor("U8", [50_000 + 7 * i], seed=i) for i in range(6)}
    original = write_checkpoint(tmp_path / "original", tensors, shards=2)
    allowed = json.dumps(list(STORAGE_KINDS[kind]))
    done = run_python(
        STORAGE_SCRIPT, tmp_path / "changed", original, kind, allowed, LD_PRELOAD=faulty_reads, timeout=120
    ).check()
    counts = json.loads(done.stdout.splitlines()[-1])
    tell(capsys, kind, counts)
    assert (counts["wrong"], counts["leaks"]) == (0, 0), done.stdout
    assert counts["injected"] >= 15  # else reads come another way than the shim sees


@pytest.mark.usefixtures("nothing_left")
def test_a_driver_that_goes_wrong(driver, fake_torch, tmp_path, capsys):
    tensors = {f"t{i}": random_tensor("BF16", [64, 64], seed=i) for i in range(40)}
    path = write_checkpoint(tmp_path / "model", tensors, shards=2)
    counts = {"injected": 0, "loaded": 0, "refused": 0, "wrong": 0, "leaks": 0, "hangs": 0}
    for entry in DRIVER_ENTRIES:
        for result in (LAUNCH_FAILED, OUT_OF_MEMORY):
            for nth in range(1, 6):
                loader = inrush.Loader(cuda_library=driver.path, piece_bytes=65536)
                driver.fail(entry.encode(), nth, result)
                counts["injected"] += 1
                try:
                    loaded = inrush.torch.load(path, "cuda:0", loader=loader)
                    counts["loaded"] += 1
                    driver.reset()
                    assert {n: driver.bytes_of(t) for n, t in loaded.items()} == {
                        n: data for n, (_, _, data) in tensors.items()
                    }
                except inrush.Error as error:
                    counts["refused"] += 1
                    assert error.code in ("device_failed", "out_of_memory", "environment_unfit"), error
                driver.reset()
                again = inrush.torch.load(path, "cuda:0", loader=loader)
                assert driver.bytes_of(again["t7"]) == tensors["t7"][2]
                loaded = again = None
    tell(capsys, "driver call fails", counts)
    assert counts["refused"] > 10 and counts["loaded"] > 10


def test_malformed_files_through_torch(corpus, tmp_path, capsys):
    """Each row of the corpus: refused where it is to be refused, else every tensor that torch can express."""
    counts = {"injected": 0, "loaded": 0, "refused": 0, "wrong": 0}
    path = tmp_path / "row.safetensors"
    for row in corpus:
        data = corpus_bytes(row)
        if len(data) > 10_000_000:
            continue  # caps of the header: tests/hostile
        path.write_bytes(data)
        counts["injected"] += 1
        try:
            inrush.torch.load(path, unsupported="uint8")
            outcome = "accept"
        except inrush.Error as error:
            # Legal, and more than torch can count: refused as a request.
            is_uncountable = error.code == "invalid_request" and "2^63" in str(error)
            assert is_uncountable or error.code == "corrupt_checkpoint", (row["name"], error)
            outcome = "accept" if is_uncountable else "reject"
        counts["loaded" if outcome == "accept" else "refused"] += 1
        if outcome != row["inrush"]:
            counts["wrong"] += 1
            print(f"WRONG: {row['name']}: {outcome}")
    tell(capsys, "malformed file", counts)
    assert counts["wrong"] == 0
    assert counts["injected"] > 100


NAMES = st.lists(st.text("ab.*?[]!-", max_size=6), min_size=1, max_size=8, unique=True)


@given(names=NAMES, pattern=st.text("ab.*?", min_size=1, max_size=6))
def test_globs_are_those_of_the_shell(tmp_path_factory, names, pattern):
    path = tmp_path_factory.mktemp("globs") / "m.safetensors"
    write_checkpoint(path, {name: ("U8", [1]) for name in names})
    expected = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
    if not expected:
        with pytest.raises(inrush.Error) as caught:
            inrush.torch.load(path, only=pattern)
        assert caught.value.code == "invalid_request"
    else:
        assert set(inrush.torch.load(path, only=pattern)) == expected
