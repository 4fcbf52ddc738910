"""What inrush.load() takes: only, slices, progress, timeout, loader; and the report that it gives."""
import json
import math
import tempfile
import threading
from pathlib import Path

import inrush
import inrush._progress
import numpy
import pytest
from conftest import DTYPE_BITS, random_tensor, write_file
from hypothesis import given, settings
from hypothesis import strategies as st
from resources import write_sparse

MIB = 1 << 20
NAMES = [
    "layers.0.mlp.weight", "layers.0.norm", "layers.1.mlp.weight", "layers.1.norm", "a[0]", "a0", "a*",
    "back\\slash", "ü",
]


@pytest.fixture
def model(make_checkpoint):
    return make_checkpoint("model", {name: ("F32", [2, 3]) for name in NAMES})


def raised_by(*arguments, **more):
    with pytest.raises(inrush.Error) as raised:
        inrush.load(*arguments, **more)
    return raised.value


# --- only ---


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (None, NAMES),
        ("layers.0.norm", ["layers.0.norm"]),
        ("layers.*.norm", ["layers.0.norm", "layers.1.norm"]),
        ("layers.[0-1].mlp.*", ["layers.0.mlp.weight", "layers.1.mlp.weight"]),
        ("*", NAMES),
        ("?", ["ü"]),
        (["ü", "layers.0.*"], ["layers.0.mlp.weight", "layers.0.norm", "ü"]),
        (("a0", "a0"), ["a0"]),
        ({"layers.1.norm": 1}, ["layers.1.norm"]),
        ((name for name in ["ü", "a0"]), ["a0", "ü"]),
        ([], []),
        (set(), []),
        (lambda name: name.endswith("norm"), ["layers.0.norm", "layers.1.norm"]),
        (lambda name: False, []),
        # A function says names and no globs.
        (lambda name: name in ("a*", "a[0]", "back\\slash"), ["a[0]", "a*", "back\\slash"]),
        (lambda name: name == "a*", ["a*"]),
        ({"a*"}.__contains__, ["a*"]),
        ("a[0]", ["a[0]", "a0"]),
    ],
)
def test_only_what_was_asked_for_is_loaded_in_the_order_of_the_file(model, only, names):
    arrays = inrush.load(model, only=only)
    assert list(arrays) == list(arrays.dtypes) == names
    assert (arrays.report.tensor_count, arrays.report.loaded_bytes) == (len(names), 24 * len(names))
    whole = inrush.load(model)
    assert all(arrays[name].tobytes() == whole[name].tobytes() for name in names)


@pytest.mark.parametrize("only", ["layers.0.nrm", ["ü", "layers.0.nrm"], "*.bias", [""], "layers.0.norm "])
def test_a_name_that_matches_nothing_is_refused(model, only):
    error = raised_by(model, only=only)
    assert error.code == "invalid_request" and str(model) in str(error)
    assert f'"{only if isinstance(only, str) else only[-1]}"' in str(error)
    if "nrm" in only:
        assert "layers.0.norm" in str(error)


@pytest.mark.parametrize("only", [[3], ["ü", None], b"abc", [b"a0"]])
def test_what_is_no_name_is_refused(model, only):
    error = raised_by(model, only=only)
    assert error.code == "invalid_request" and "only=" in str(error)


def test_what_the_function_raises_comes_out(model):
    def only(name):
        raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError, match="layers.0.mlp.weight"):
        inrush.load(model, only=only)


# --- slices ---

WHOLE_BYTES = sorted(dtype for dtype, bits in DTYPE_BITS.items() if bits % 8 == 0)
PACKED = sorted(dtype for dtype, bits in DTYPE_BITS.items() if bits % 8)


@st.composite
def sliced_tensors(draw, dtypes, lengths):
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.lists(lengths, min_size=1, max_size=4))
    dimension = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[dimension]))
    length = draw(st.integers(0, shape[dimension] - start))
    return dtype, shape, inrush.Slice(dimension, start, length)


def elements_of(entry):
    """The bits of each element, along a last dimension."""
    dtype, shape, data = entry
    bits = numpy.unpackbits(numpy.frombuffer(data, numpy.uint8), bitorder="little")
    return bits.reshape([*shape, DTYPE_BITS[dtype]])


def cut(elements, slice_):
    dimension, start, length = slice_
    return elements[(slice(None),) * dimension + (slice(start, start + length),)]


def bytes_of(elements):
    return numpy.packbits(elements.reshape(-1), bitorder="little").tobytes()


def load_slices(tensors, slices, **arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = write_file(Path(folder) / "model.safetensors", tensors)
        return inrush.load(path, slices=slices, framework="dlpack", **arguments)


@settings(deadline=None, max_examples=150)
@given(st.lists(sliced_tensors(WHOLE_BYTES, st.integers(0, 9)), min_size=1, max_size=5))
def test_slices_are_those_of_numpy(chosen):
    tensors = {f"{i}": random_tensor(dtype, shape, i) for i, (dtype, shape, _) in enumerate(chosen)}
    tensors["whole"] = random_tensor("BF16", [3])
    slices = {f"{i}": slice_ for i, (_, _, slice_) in enumerate(chosen)}
    loaded = load_slices(tensors, slices)
    for name, slice_ in slices.items():
        expected = cut(elements_of(tensors[name]), slice_)
        assert loaded[name].shape == expected.shape[:-1]
        assert bytes(loaded[name]) == bytes_of(expected)
    assert bytes(loaded["whole"]) == tensors["whole"][2]


@settings(deadline=None, max_examples=150)
@given(sliced_tensors(PACKED, st.sampled_from([1, 2, 3, 4, 8, 12])))
def test_slices_of_packed_elements_are_exact_or_refused(chosen):
    dtype, shape, slice_ = chosen
    if math.prod(shape) * DTYPE_BITS[dtype] % 8:
        shape = [*shape, 8]
    entry = random_tensor(dtype, shape)
    expected = cut(elements_of(entry), slice_)
    step = math.prod(shape[slice_.dimension + 1 :]) * DTYPE_BITS[dtype]
    bits = (slice_.start * step, slice_.length * step, shape[slice_.dimension] * step)
    try:
        loaded = load_slices({"weight": entry}, {"weight": slice_})["weight"]
    except inrush.Error as error:
        assert error.code == "invalid_request" and "byte boundaries" in str(error)
        assert any(number % 8 for number in bits)
        return
    assert loaded.shape == expected.shape[:-1]
    assert bytes(loaded) == bytes_of(expected)


@pytest.mark.parametrize(
    "slice_", [(0, 100, 56), (1, 3, 700), (2, 1, 31), (2, 0, 1), (0, 255, 1), (1, 0, 1024)]
)
def test_slices_of_a_large_tensor(slice_):
    values = numpy.arange(256 * 1024 * 32, dtype=numpy.uint16).reshape(256, 1024, 32)
    tensors = {"before": random_tensor("U8", [5]), "weight": ("U16", list(values.shape), values.tobytes())}
    loaded = load_slices(tensors, {"weight": slice_})
    dimension, start, length = slice_
    expected = values.take(range(start, start + length), axis=dimension)
    assert numpy.array_equal(numpy.from_dlpack(loaded["weight"]), expected)
    assert bytes(loaded["before"]) == tensors["before"][2]


def test_a_slice_is_three_numbers_of_any_kind(model):
    whole = inrush.load(model)["a0"]
    for slice_ in (inrush.Slice(1, start=1, length=2), (1, 1, 2), [1, 1, 2], numpy.array([1, 1, 2])):
        arrays = inrush.load(model, slices={"a0": slice_})
        assert numpy.array_equal(arrays["a0"], whole[:, 1:3])
        assert arrays["ü"].shape == (2, 3)
        assert arrays.report.planned_bytes == 24 * len(NAMES) - 8


def test_a_slice_of_what_is_not_loaded_is_no_fault(model):
    assert list(inrush.load(model, only="a0", slices={"ü": (0, 0, 1)})) == ["a0"]


@pytest.mark.parametrize(
    ("slices", "cause"),
    [
        ({"a0": (0, 0, 3)}, "2 elements"),
        ({"a0": (0, 2, 1)}, "2 elements"),
        ({"a0": (2, 0, 1)}, "2 dimensions"),
        ({"a0": (0, 2**62, 2**62)}, "2 elements"),
        ({"a1": (0, 0, 1)}, "does not have"),
        ({"a0": (0, -1, 1)}, "count from 0"),
        ({"a0": (0, 0, -1)}, "count from 0"),
        ({"a0": (-1, 0, 1)}, "count from 0"),
        ({"a0": (0, 0, 2**64)}, "count from 0"),
        ({"a0": (0, 1)}, "dimension, start, length"),
        ({"a0": (0, 0, 1, 1)}, "dimension, start, length"),
        ({"a0": (0, 0.0, 1)}, "dimension, start, length"),
        ({"a0": slice(0, 1)}, "dimension, start, length"),
    ],
)
def test_slices_that_cannot_be_are_refused_before_anything_is_read(model, slices, cause):
    checkpoint = inrush.open(model)
    model.unlink()
    error = raised_by(checkpoint, slices=slices)
    assert error.code == "invalid_request"
    assert next(iter(slices)) in str(error) and cause in str(error)


# --- progress ---


def test_progress_is_told_on_the_thread_that_waits(tmp_path):
    # Long enough for the engine to tell of it too, every 50 ms, and not only the end of each batch.
    path = write_sparse(tmp_path / "model", {f"{i}": ("U8", [128 * MIB]) for i in range(4)})
    told = []
    inrush.load(path, progress=lambda loaded, planned: told.append((loaded, planned, threading.get_ident())))
    assert {planned for _, planned, _ in told} == {512 * MIB}
    assert [loaded for loaded, _, _ in told] == sorted(loaded for loaded, _, _ in told)
    assert told[-1][0] == 512 * MIB
    assert {thread for _, _, thread in told} == {threading.get_ident()}


def test_progress_of_nothing(model):
    told = []
    inrush.load(model, only=[], progress=lambda *numbers: told.append(numbers))
    assert set(told) == {(0, 0)}


def test_a_bar_on_request(model, capfd):
    inrush.load(model, progress=True)
    written = capfd.readouterr()
    assert written.out == ""
    assert model.name in written.err and "100%" in written.err


@pytest.mark.parametrize("progress", [None, False])
def test_no_bar_where_there_is_no_terminal(model, progress, capfd, monkeypatch):
    monkeypatch.setattr(inrush._progress, "_SHOW_AFTER_S", 0)
    inrush.load(model, progress=progress)
    assert capfd.readouterr() == ("", "")


ON_A_TERMINAL = """
import os, pty, sys, termios
terminal, inside = pty.openpty()
termios.tcsetwinsize(inside, (25, 100))
os.dup2(inside, 2)
{setting}
import inrush, inrush._progress
inrush._progress._SHOW_AFTER_S = 0  # a load that is over by then shows no bar
inrush.load(sys.argv[1], progress={progress})
os.write(2, b"end")
text = b""
while not text.endswith(b"end"):
    text += os.read(terminal, 1 << 16)
print("model" in text.decode())
"""


@pytest.mark.parametrize(("progress", "is_shown"), [(None, True), (False, False), (True, True)])
def test_a_bar_on_terminals(model, run_python, progress, is_shown):
    result = run_python(ON_A_TERMINAL.format(setting="", progress=progress), model).check()
    assert result.stdout == f"{is_shown}\n"


def test_without_tqdm_there_is_no_bar_unless_it_was_asked_for(model, run_python):
    setting = "sys.modules['tqdm.auto'] = None"
    result = run_python(ON_A_TERMINAL.format(setting=setting, progress=None), model).check()
    assert result.stdout == "False\n"
    code = f"import sys; {setting}; import inrush; inrush.load(sys.argv[1], progress=True)"
    assert "tqdm" in run_python(code, model).stderr.splitlines()[-1]


# --- timeout ---


@pytest.mark.parametrize("timeout", [1e-6, 1e-12, 5e-324])
def test_a_load_that_takes_too_long_is_a_timeout_error(tmp_path, timeout):
    path = write_sparse(tmp_path / "model", {f"{i}": ("U8", [128 * MIB]) for i in range(8)})
    loader = inrush.Loader()
    error = raised_by(path, timeout=timeout, loader=loader)
    assert isinstance(error, TimeoutError) and not isinstance(error, FileNotFoundError)
    assert error.code == "timed_out" and str(path) in str(error)
    assert not error.report.complete and error.report.planned_bytes == 1024 * MIB
    assert error.report.loaded_bytes < 1024 * MIB
    assert inrush.load(path, only="3", loader=loader)["3"].nbytes == 128 * MIB


@pytest.mark.parametrize("timeout", [60, 60.0, float("inf"), 1e300, None, numpy.float32(60)])
def test_a_load_that_is_in_time(model, timeout):
    assert len(inrush.load(model, timeout=timeout)) == len(NAMES)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), -0.0, float("-inf")])
def test_no_time_at_all_is_refused(model, timeout):
    error = raised_by(model, timeout=timeout)
    assert error.code == "invalid_request" and "timeout" in str(error)


# --- loader ---


@pytest.mark.parametrize(
    "options",
    [
        {"readers": 1}, {"readers": 3, "piece_bytes": "64KiB"}, {"piece_bytes": 4096, "staging_bytes": 8192},
        {"staging_bytes": "1MiB", "processes": 4}, {"io_uring": False}, {"io_uring": True},
    ],
)
@pytest.mark.parametrize("page_cache", ["auto", "keep", "bypass"])
def test_every_loader_loads_the_same(make_checkpoint, every_dtype, options, page_cache):
    tensors = every_dtype | {"large": random_tensor("U8", [MIB + 1])}
    path = make_checkpoint("model", tensors, shards=2)
    loader = inrush.Loader(**options)
    for _ in range(2):
        loaded = inrush.load(path, loader=loader, page_cache=page_cache, framework="dlpack")
        assert set(loaded) == set(tensors)
        assert all(bytes(loaded[name]) == data for name, (_, _, data) in tensors.items())


def test_a_checkpoint_is_loaded_as_it_was_opened(model, make_checkpoint):
    checkpoint = inrush.open(model)
    assert list(inrush.load(checkpoint)) == NAMES
    replaced = {name: ("F32", [2, 3]) for name in reversed(NAMES)}
    make_checkpoint("other", replaced).rename(model)
    error = raised_by(checkpoint)
    assert error.code == "corrupt_checkpoint" and str(model) in str(error)
    assert list(inrush.load(model)) == NAMES[::-1]


# --- report ---


def test_the_report_says_what_happened(make_checkpoint):
    tensors = {"a": ("F32", [MIB]), "b": ("U8", [3]), "none": ("F32", [0])}
    path = make_checkpoint("model", tensors, shards=2)
    report = inrush.load(path).report
    nbytes = 4 * MIB + 3
    assert (report.device, report.path, report.complete) == ("cpu", "staged", True)
    assert (report.tensor_count, report.planned_bytes, report.loaded_bytes) == (3, nbytes, nbytes)
    assert sum(way.bytes for way in report.bytes_by_path) == nbytes
    assert all(way.path for way in report.bytes_by_path)
    assert report.read_bytes >= nbytes and report.read_count >= 2
    assert report.bytes_per_second > 0 and report.host_peak_bytes > nbytes
    assert (report.retry_count, report.orphan_count) == (0, 0)
    assert report.suspect_tensors == report.overwritten_targets == []
    assert report.notes == inrush.open(path).notes
    stages = report.seconds
    assert 0 < stages.open <= stages.first_byte <= stages.last_byte
    assert stages.first_byte <= stages.first_tensor and min(stages.headers, stages.plan, stages.allocate) > 0
    assert "4.19 MB" in repr(report)


def test_the_report_as_text_and_as_json(model):
    report = inrush.load(model).report
    text = str(report)
    assert f"loaded {len(NAMES)} tensors" in text and "to cpu" in text
    assert all(way.path in text for way in report.bytes_by_path)
    values = json.loads(report.to_json())
    assert (values["tensor_count"], values["loaded_bytes"]) == (report.tensor_count, report.loaded_bytes)
    assert values["device"] == "cpu"


def test_the_report_cannot_be_changed(model):
    report = inrush.load(model).report
    with pytest.raises(AttributeError):
        report.complete = False
    with pytest.raises(TypeError):
        type(report)()
