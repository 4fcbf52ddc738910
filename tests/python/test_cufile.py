"""Where a real libcufile can be found and no GPU is there: newer libraries never return from opening their
driver then, older ones print and leave a log in the current folder. So it is not even loaded.

TEST_CUFILE is the folder that `tools/setup.sh cufile` fills; there are wheels for x86_64 only.
"""
import os
import platform
from pathlib import Path

import pytest
from conftest import random_tensor, variable

PATIENCE_SECONDS = 30  # what imports NumPy takes its time on a busy machine; what spins for ever does not end


def libraries():
    if platform.machine() != "x86_64":
        return []  # pytest says that there is no case
    found = sorted(Path(os.environ.get("TEST_CUFILE", "")).glob("*/nvidia/*/lib/libcufile.so.0"))
    return found or [None]


@pytest.fixture(params=libraries(), ids=lambda path: path.parents[3].name if path else "none")
def cufile(request):
    folder = variable("TEST_CUFILE")
    assert request.param is not None, f"no libcufile in {folder}: run tools/setup.sh cufile"
    return request.param


@pytest.fixture
def run(cufile, tmp_path, run_python):
    """run(code, *arguments): an interpreter that finds this libcufile, and no driver; in a folder of its own
    that must stay as it was. Its last line says which libcufile it has mapped."""
    current, driver = tmp_path / "current", tmp_path / "driver"
    current.mkdir()
    driver.mkdir()
    (driver / "libcuda.so.1").write_text("not a library")  # in front of a real one

    def run_there(code, *arguments):
        head = f"import os\nos.chdir({str(current)!r})\n"
        tail = "\nprint('mapped:', 'libcufile' in open('/proc/self/maps').read())\n"
        finished = run_python(head + code + tail, *arguments, timeout=PATIENCE_SECONDS,
                              LD_LIBRARY_PATH=f"{driver}:{cufile.parent}").check()
        assert finished.stderr == ""
        assert list(current.iterdir()) == []
        lines = finished.stdout.splitlines()
        assert lines[-1] == "mapped: False"
        return lines[:-1]
    return run_there


@pytest.fixture
def model(make_checkpoint):
    return make_checkpoint("m.safetensors", {"a": random_tensor("F32", [300, 7])})


def test_the_library_is_found_by_its_name(cufile, run_python):
    """Else the others would prove nothing."""
    code = "import ctypes\nctypes.CDLL('libcufile.so.0')\nprint(open('/proc/self/maps').read())"
    finished = run_python(code, LD_LIBRARY_PATH=cufile.parent)
    assert str(cufile) in finished.check().stdout


def test_import(run):
    assert run("import inrush\nprint(inrush.__name__)") == ["inrush"]


def test_load_to_the_cpu(run, model):
    code = """
import sys, inrush
for transfer in ("auto", "staged"):
    print(inrush.load(sys.argv[1], "cpu", transfer=transfer)["a"].shape)
"""
    assert run(code, model) == ["(300, 7)", "(300, 7)"]


@pytest.mark.parametrize("transfer", ["gds", "cufile-compat"])
def test_gds_is_refused_and_says_why(run, model, transfer):
    code = """
import sys, inrush
for device in ("cpu", "cuda:0"):
    try:
        inrush.load(sys.argv[1], device, transfer=sys.argv[2])
    except inrush.Error as error:
        print(error.code)
        print(error)
print(inrush.load(sys.argv[1], "cpu")["a"].shape)
"""
    lines = run(code, model, transfer)
    assert lines[0] == lines[2] == "environment_unfit"
    assert f'path "{transfer}" was asked for' in lines[1]
    assert "GPU memory" in lines[1]
    assert "libcuda" in lines[3]
    assert lines[4] == "(300, 7)"


def test_devices(run):
    assert run("import inrush\nprint(inrush.Loader().devices())") == ["[('cpu', '')]"]
