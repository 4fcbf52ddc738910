"""Fixtures of the tests of the Python package: checkpoints, fresh interpreters, the fake driver.

tests/python/run.sh sets the TEST_ variables. A test that needs one which is not set fails.
"""
import dataclasses
import gc
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def pytest_configure():
    """Machines are noisy: a test that took 0.8 s once is no failure."""
    import hypothesis  # tests/vllm takes fixtures from here and has none

    hypothesis.settings.register_profile("inrush", deadline=None)
    hypothesis.settings.load_profile("inrush")


# The 22 element types of the format, and bits of an element of each.
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
    "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}


def variable(name):
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"{name} is not set: run these tests by tests/python/run.sh or make test-python")
    return value


# Checkpoints

def tensor_bytes(dtype, shape):
    """How many bytes a tensor has; its elements must fill whole bytes."""
    bits = DTYPE_BITS[dtype]
    for extent in shape:
        bits *= extent
    assert bits % 8 == 0, f"{dtype} {shape} does not end on a byte"
    return bits // 8


def random_tensor(dtype, shape, seed=1):
    """(dtype, shape, bytes) of random bits, the same for the same arguments. BOOL is 0 or 1."""
    data = random.Random(f"{dtype} {list(shape)} {seed}").randbytes(tensor_bytes(dtype, shape))
    if dtype == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return dtype, list(shape), data


def tensors_of_every_dtype(seed=1):
    """Name -> (dtype, shape, bytes): of each dtype a matrix, an empty tensor and perhaps a scalar."""
    tensors = {}
    for dtype, bits in DTYPE_BITS.items():
        tensors[f"{dtype}.matrix"] = random_tensor(dtype, [3, 8], seed)
        tensors[f"{dtype}.empty"] = random_tensor(dtype, [0, 4], seed)
        if bits % 8 == 0:
            tensors[f"{dtype}.scalar"] = random_tensor(dtype, [], seed)
    return tensors


def write_file(path, tensors, metadata=None):
    """Writes one safetensors file. tensors: name -> (dtype, shape, bytes), laid out in this order."""
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for _, _, data in tensors.values())
    return Path(path)


def write_folder(folder, tensors, shards, metadata=None):
    """Writes a folder of `shards` files with an index. Neighbours in `tensors` get into different files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        write_file(folder / file_name, part, metadata)
        weight_map.update(dict.fromkeys(part, file_name))
    total = sum(len(data) for _, _, data in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_checkpoint(path, tensors, *, shards=0, metadata=None):
    """A file at `path`, or with `shards` a folder of so many files and an index. Returns the path.

    tensors: name -> (dtype, shape, bytes), or (dtype, shape) for random bytes.
    """
    whole = {name: entry if len(entry) == 3 else random_tensor(*entry, seed=name)
             for name, entry in tensors.items()}
    return write_folder(path, whole, shards, metadata) if shards else write_file(path, whole, metadata)


@pytest.fixture(name="make_checkpoint")
def make_checkpoint_fixture(tmp_path):
    """make_checkpoint(name, tensors, *, shards=0, metadata=None) -> path; write_checkpoint() in tmp_path."""
    def make(name, tensors, *, shards=0, metadata=None):
        return write_checkpoint(tmp_path / name, tensors, shards=shards, metadata=metadata)
    return make


@pytest.fixture
def every_dtype():
    """Name -> (dtype, shape, bytes), all 22 dtypes."""
    return tensors_of_every_dtype()


# Fresh interpreters

@dataclasses.dataclass(frozen=True)
class Finished:
    """A process that ended: exit code (negative: the signal that ended it) and what it wrote."""
    rc: int
    stdout: str
    stderr: str

    def check(self):
        assert self.rc == 0, f"exit code {self.rc}\n{self.stdout}\n{self.stderr}"
        return self


def clean_environment(changes):
    """This environment, less settings of the library that whoever runs the tests has, plus `changes`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INRUSH_")}
    environment.update((name, str(value)) for name, value in changes.items())
    return environment


def run_command(command, folder, *, timeout=60, **env):
    """Runs a command in `folder`; what it started ends with it. To take over `timeout` s is to fail."""
    # Files, since reading a pipe to its end would wait for grandchildren too.
    output = Path(folder) / f"output.{random.randrange(1 << 62)}"
    errors = output.with_suffix(".errors")
    with open(output, "wb") as stdout, open(errors, "wb") as stderr:
        child = subprocess.Popen(command, cwd=folder, env=clean_environment(env), stdin=subprocess.DEVNULL,
                                 stdout=stdout, stderr=stderr, start_new_session=True)
        ended = os.pidfd_open(child.pid)
        try:
            in_time = bool(select.select([ended], [], [], timeout)[0])
        finally:
            os.close(ended)
            # Not reaped yet, so the group is still the child's own, whether it has ended or not.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    finished = Finished(child.returncode, *(file.read_text(errors="replace") for file in (output, errors)))
    if not in_time:
        pytest.fail(f"no end within {timeout} s: {command}\n{finished.stdout}\n{finished.stderr}")
    return finished


@pytest.fixture
def run_python(tmp_path):
    """run_python(code, *arguments, timeout=60, **env) -> Finished: a script in an interpreter of its own.

    The arguments are in its sys.argv[1:]. The code is dedented and run from a file, so that children that are
    spawned can import it; it has to guard itself by __name__ where it spawns.
    """
    def run(code, *arguments, timeout=60, **env):
        script = tmp_path / f"script_{len(list(tmp_path.glob('script_*.py')))}.py"
        script.write_text(textwrap.dedent(code))
        command = [sys.executable, "-X", "faulthandler", str(script), *map(str, arguments)]
        return run_command(command, tmp_path, timeout=timeout, **env)
    return run


# What the build and the repository have

@pytest.fixture(scope="session")
def fake_cuda():
    """Path of our own libcuda.so.1: two devices over host memory (tests/fakes/fake_cuda.hpp says how to steer
    it). For a process of its own: run_python(code, LD_LIBRARY_PATH=fake_cuda.parent)."""
    path = Path(variable("TEST_FAKE_CUDA"))
    assert path.is_file(), f"{path} is not built"
    return path


def corpus_bytes(row):
    """The file that a row of the corpus stands for; one has 100 MB."""
    return b"".join(text.encode("latin-1") * count for text, count in row["segments"])


@pytest.fixture(scope="session")
def corpus():
    """Malformed and odd files with their verdicts: rows with "name", "inrush" ("accept" or "reject") and
    "segments", for corpus_bytes()."""
    with open(variable("TEST_CORPUS"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def source_folder():
    """The root of the repository that the wheel was built from."""
    return Path(variable("TEST_SOURCE"))


# The fake driver, in this process. torch is imported where it is used: the differential test's workers have
# no need of it.

@pytest.fixture(scope="session")
def library(fake_cuda, tmp_path_factory):
    from fake_driver import copy_aside

    return copy_aside(fake_cuda, tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(library, source_folder):
    """The fake, from a clean slate."""
    from fake_driver import FakeDriver

    fake = FakeDriver(library, source_folder / "tests/fakes/fake_cuda.hpp")
    fake.reset()
    yield fake
    fake.reset()


@pytest.fixture
def nothing_left(driver):
    """Whatever the test did, nothing is left alive in the fake and no call was a misuse."""
    before = driver.live()
    yield
    gc.collect()
    assert driver.misuse_count() == 0, driver.last_misuse()
    assert driver.live() == before


@pytest.fixture
def fake_torch(driver, monkeypatch):
    """inrush.torch takes device memory from the fake, and tensors in it for tensors on CUDA devices."""
    from fake_driver import TorchOnFake
    from inrush.torch import _load_into, _memory

    stand_in = TorchOnFake(driver)
    monkeypatch.setattr(_memory, "torch", stand_in)

    def device(pair):
        number = driver.device_of(pair.target.data_ptr())
        return "cpu" if number is None else f"cuda:{number}"

    monkeypatch.setattr(_load_into._Pair, "device", property(device))
    return stand_in
