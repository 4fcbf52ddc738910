"""get_slice of inrush.safetensors against torch, NumPy and the reference: elements, bytes, memory."""

import math
import os

import inrush
import inrush.safetensors
import numpy
import pytest
import safetensors
import torch
from conftest import random_tensor, write_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inrush.safetensors import _framework, _indices, _slices, _source, _torch
from inrush.torch import _dtypes
from reference import REFERENCE, bytes_of, same

safe_open = inrush.safetensors.safe_open

PROPERTY = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TORCH_DTYPES = ["F32", "BF16", "F8_E4M3", "BOOL", "I64", "C64", "F4"]
NUMPY_DTYPES = ["F32", "U8", "F16", "C64", "BOOL", "I64"]


@pytest.fixture(params=["direct", "engine"])
def way(request, monkeypatch):
    """How tensors in host memory are read: by one read each, or by loads of the engine."""
    if request.param == "engine":
        monkeypatch.setattr(_slices, "DIRECT_BYTES_MAX", -1)
    return request.param


@st.composite
def shapes(draw):
    return tuple(draw(st.lists(st.integers(0, 5), max_size=4)))


def bounds(extent):
    return st.none() | st.integers(-extent - 2, extent + 2)


@st.composite
def indices(draw, shape, steps):
    """An index that names some of the dimensions, now and then one too many or one beyond its end."""
    count = draw(st.integers(0, len(shape) + (draw(st.integers(0, 9)) == 0)))
    items = []
    for dimension in range(count):
        extent = shape[dimension] if dimension < len(shape) else 3
        kind = draw(st.integers(0, 9))
        if kind < 3 and extent:
            items.append(draw(st.integers(-extent, extent - 1)))
        elif kind == 3:
            items.append(draw(st.integers(-extent - 1, extent + 1)))
        else:
            items.append(slice(draw(bounds(extent)), draw(bounds(extent)), draw(steps)))
        if draw(st.integers(0, 9)) == 0:
            items.append(None)
    if draw(st.integers(0, 3)) == 0:
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
        if len(items) > 1 and draw(st.booleans()):  # the end of the dimensions is meant
            items = items[-2:] if items[-1] is not Ellipsis else items
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


@st.composite
def cases(draw, dtypes, steps):
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(shapes())
    in_file = shape
    if dtype == "F4":
        shape = (*shape, draw(st.integers(0, 4)))
        in_file = (*shape[:-1], shape[-1] * 2)
    return dtype, shape, in_file, draw(indices(shape, steps))


def raised(function):
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001  (whatever it is, the other has to be the same)
        return None, error


@pytest.mark.usefixtures("way")
@PROPERTY
@given(case=cases(TORCH_DTYPES, st.sampled_from([None, None, 1, 2, 3, -1])))
def test_a_slice_for_torch_is_torch_s(tmp_path_factory, case):
    dtype, _, in_file, index = case
    path = write_file(
        tmp_path_factory.getbasetemp() / "torch.safetensors",
        {
            "before": random_tensor("U8", [3]),
            "a": random_tensor(dtype, in_file),
            "after": random_tensor("U8", [5]),
        },
    )
    with safe_open(path, "pt") as file:
        whole = file.get_tensors()["a"]
        expected, error = raised(lambda: whole[index])
        ours, our_error = raised(lambda: file.get_slice("a")[index])
    assert type(our_error) is type(error), f"{index}: {our_error!r} and {error!r}"
    if error is None:
        same(ours, expected)
        assert ours.is_contiguous()
        assert ours.untyped_storage().nbytes() == ours.nbytes


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "index", [(slice(None), slice(3, 7)), (slice(1, 3), slice(5, 6)), (2, 4), slice(4, 6)]
)
def test_pairs_of_f4_are_cut_as_torch_counts_them(tmp_path, index):
    path = write_file(tmp_path / "f4.safetensors", {"a": random_tensor("F4", [6, 16])})
    with safe_open(path, "pt") as file:
        same(
            file.get_slice("a")[index],
            file.get_tensors()["a"].view(torch.uint8)[index].view(torch.float4_e2m1fn_x2),
        )


def ends_inside(item, extent):
    """Whether the rule of the reference, nothing beyond the end, allows an item, however it is counted."""
    if not isinstance(item, slice):
        return -extent <= item < extent
    if item.step is not None and item.step < 1:
        return False
    start, stop = item.start or 0, extent if item.stop is None else item.stop
    return -extent <= stop <= extent and -extent <= start and (start < extent or extent == start == 0)


@pytest.mark.usefixtures("way")
@PROPERTY
@given(case=cases(NUMPY_DTYPES, st.sampled_from([None, None, 1, 2, 3, -1])))
def test_a_slice_for_numpy_is_numpy_s_where_it_ends_inside(tmp_path_factory, case):
    dtype, shape, in_file, index = case
    path = write_file(
        tmp_path_factory.getbasetemp() / "numpy.safetensors", {"a": random_tensor(dtype, in_file)}
    )
    with safe_open(path, "np") as file:
        expected, error = raised(lambda: file.get_tensor("a")[index])
        ours, our_error = raised(lambda: file.get_slice("a")[index])
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in items:
        place = items.index(Ellipsis)
        items[place : place + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    allowed = None not in items and len(items) <= len(shape) and all(map(ends_inside, items, shape))
    if allowed:
        assert (error, our_error) == (None, None)
        same(ours, numpy.asarray(expected))
        assert ours.flags.c_contiguous
    else:
        assert isinstance(our_error, safetensors.SafetensorError), index


@st.composite
def reference_cases(draw):
    """What the reference takes as NumPy does, and what it refuses: no bounds below 0, no backward ranges."""
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    index = []
    for extent in [*shape, 3][: draw(st.integers(0, len(shape) + 1))]:
        if draw(st.booleans()):
            index.append(draw(st.integers(-extent - 1, extent + 1)))
        else:
            start = draw(st.none() | st.integers(0, extent + 1))
            stop = draw(st.none() | st.integers(start or 0, extent + 2))
            if start is None or start < extent or stop is not None:
                index.append(slice(start, stop, draw(st.sampled_from([None, None, 1, 2, 3, -1]))))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        index.insert(draw(st.integers(0, len(index))), Ellipsis)
    if draw(st.integers(0, 19)) == 0:
        index.append(draw(st.sampled_from([None, "text", 1.5, [0], numpy.array([1])])))
    return shape, tuple(index) if len(index) != 1 or draw(st.booleans()) else index[0]


@pytest.mark.usefixtures("way")
@PROPERTY
@given(case=reference_cases())
def test_a_slice_for_numpy_is_the_reference_s(tmp_path_factory, case):
    shape, index = case
    path = write_file(tmp_path_factory.getbasetemp() / "np.safetensors", {"a": random_tensor("I16", shape)})
    with safe_open(path, "np") as file, REFERENCE["safe_open"](path, "np") as theirs:
        expected, error = raised(lambda: theirs.get_slice("a")[index])
        ours, our_error = raised(lambda: file.get_slice("a")[index])
    assert isinstance(our_error, type(error)), f"{index}: {our_error!r} and {error!r}"
    if error is None:
        same(ours, expected)
        assert ours.flags.c_contiguous
    else:
        assert str(our_error) == str(error)


@pytest.fixture(name="matrix")
def matrix_fixture(tmp_path):
    """(path, tensor): 6 x 4 x 8 of F32 between two others."""
    dtype, shape, data = random_tensor("F32", [6, 4, 8])
    path = write_file(
        tmp_path / "matrix.safetensors",
        {
            "before": random_tensor("U8", [1000]),
            "a": (dtype, shape, data),
            "after": random_tensor("U8", [1000]),
        },
    )
    return path, torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "index",
    [
        [],
        [0, 2],
        [[1, 3]],
        ([1, 2], [3, 0]),
        (slice(None), [1, 3]),
        (Ellipsis, [0]),
        torch.tensor(2),
        torch.tensor([1, 1]),
        (1, torch.tensor([0, 2])),
        torch.tensor([True] * 3 + [False] * 3),
        True,
        (0, False),
        numpy.int64(2),
        slice(numpy.int32(1), numpy.int32(3)),
        (0, 0, 0),
        (None, 0),
        (),
        Ellipsis,
        None,
        (1, Ellipsis, slice(0, 2)),
        (2**40),
        "text",
        1.5,
        (0, 0, 0, 0),
        (Ellipsis, Ellipsis),
        slice(None, None, -1),
        slice(None, None, 0),
        (slice(0, 1), slice(None, None, -1)),
        torch.ones(6, 4, dtype=torch.bool),
        [7],
        (6,),
    ],
)
def test_whatever_torch_takes_or_refuses(matrix, index):
    path, tensor = matrix
    expected, error = raised(lambda: tensor[index])
    with safe_open(path, "pt") as file:
        ours, our_error = raised(lambda: file.get_slice("a")[index])
    assert type(our_error) is type(error), f"{our_error!r} and {error!r}"
    if error is None:
        same(ours, expected)
        assert ours.untyped_storage().nbytes() == ours.nbytes


BOUNDS = (
    r"^Error during slicing \[{}\] with shape \[6, 4, 8\]: index {} out of bounds for tensor dimension {}$"
)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 1], "^Non empty lists are not implemented$"),
        ((0, -5), "^Invalid index -5 for dimension 1 of size 4$"),
        ((slice(2, None), 20), BOUNDS.format("2:, 20", 20, "#1 of size 4")),
        (slice(20), BOUNDS.format(":20", 19, "#0 of size 6")),
        ((slice(6, None), slice(0, 5)), BOUNDS.format("6:, 0:5", 4, "#1 of size 4")),
    ],
)
def test_what_the_reference_refuses_of_numpy(matrix, index, message):
    for opened in (safe_open, REFERENCE["safe_open"]):
        with opened(matrix[0], "np") as file, pytest.raises(safetensors.SafetensorError, match=message):
            file.get_slice("a")[index]


def test_numpy_goes_on_where_the_reference_stops(matrix):
    """Bounds from the end, and ranges that take nothing, which the reference trips over."""
    path, tensor = matrix
    array = tensor.numpy()
    with safe_open(path, "np") as file, REFERENCE["safe_open"](path, "np") as theirs:
        part, other = file.get_slice("a"), theirs.get_slice("a")
        for index in (slice(-2, None), (slice(None), slice(None, -1)), slice(5, 2)):
            same(part[index], array[index])
            with pytest.raises((OverflowError, SystemError)):
                other[index]
        for refused in (part, other):
            with pytest.raises(TypeError):
                refused["a":]


# Bytes


@pytest.fixture
def read_bytes(monkeypatch):
    """Bytes that were read of tensors since, both ways."""
    counted = []
    preadv, load = os.preadv, _torch.Torch.load

    def counting_preadv(descriptor, buffers, offset):
        counted.append(preadv(descriptor, buffers, offset))
        return counted[-1]

    def counting_load(self, *arguments):
        loaded = load(self, *arguments)
        counted.append(loaded.report.read_bytes)
        return loaded

    monkeypatch.setattr(_source.os, "preadv", counting_preadv)
    monkeypatch.setattr(_torch.Torch, "load", counting_load)
    return counted


ROWS = [  # index of [6, 4, 8] and what has to be read of it at most, in elements: as much as is taken
    (slice(2, 4), 64),
    (3, 32),
    ((3, 1), 8),
    ((3, slice(1, 3)), 16),
    ((3, 1, slice(2, 5)), 3),
    ((-1, -1, -1), 1),
    (slice(4, 4), 0),
    (Ellipsis, 192),
    (slice(0, 6), 192),
    ((slice(3, 4), slice(2, 4)), 16),
    ((5, slice(0, 0)), 0),
]


@pytest.mark.parametrize(("index", "elements"), ROWS)
def test_rows_are_read_and_nothing_else(matrix, read_bytes, index, elements):
    with safe_open(matrix[0], "pt") as file:
        same(file.get_slice("a")[index], matrix[1][index].contiguous())
    assert sum(read_bytes) == elements * 4


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "index",
    [
        (slice(None), 2),
        (Ellipsis, slice(0, 1)),
        (slice(1, 5), slice(0, 2), slice(7, 8)),
        [0, 5],
        slice(None, None, 5),
    ],
)
def test_never_more_than_the_tensor_is_read(matrix, read_bytes, index):
    with safe_open(matrix[0], "pt") as file:
        same(file.get_slice("a")[index], matrix[1][index].contiguous())
    assert 0 < sum(read_bytes) <= 192 * 4


def test_a_large_slice_is_a_load_of_the_dimension_that_saves_most(tmp_path, read_bytes):
    """4 MiB of a tensor: rows by the engine, a part of one row directly, columns by the engine again."""
    path = write_file(tmp_path / "large.safetensors", {"a": random_tensor("U8", [4, 1024, 1024])})
    with safe_open(path, "pt") as file:
        whole = file.get_tensor("a")
        part = file.get_slice("a")
        for index, most in (
            (slice(1, 3), 2 << 20),
            ((2, slice(0, 512)), 512 << 10),
            ((slice(None), slice(None), slice(0, 9)), 4 << 20),
            ((slice(0, 2), slice(None), slice(0, 900)), 2 << 20),
            ((slice(0, 3), slice(0, 64)), 256 << 10),  # of all four, which is less than all rows of three
        ):
            read_bytes.clear()
            same(part[index], whole[index].contiguous())
            assert most // 2 < sum(read_bytes) <= most, index


@given(shape=shapes(), data=st.data())
def test_the_cheapest_cut(shape, data):
    """Of all single cuts none costs less, by the rule that inner ones read whole rows."""
    ranges = []
    for extent in shape:
        start = data.draw(st.integers(0, extent))
        ranges.append(_indices.Range(start, data.draw(st.integers(0, extent - start))))
    total = math.prod(shape)
    costs = [2 * total]
    for dimension, range_ in enumerate(ranges):
        kept = math.prod(range_.length if i == dimension else extent for i, extent in enumerate(shape))
        costs.append(kept + (kept if math.prod(shape[:dimension]) == 1 else total))
    cut = _indices.cheapest_cut(ranges, shape)
    assert (costs[cut.dimension + 1] if cut else costs[0]) == min(costs)


# On a GPU


@pytest.fixture
def moves(driver, monkeypatch):
    """Devices that torch would have copied tensors to which lie in host memory."""
    seen = []

    def moved(_, tensor, place):
        if tensor.numel() and driver.device_of(tensor.data_ptr()) is None:
            seen.append(place.device)
        return tensor

    def own(_, entry, device):
        dtype, shape = _dtypes.form_or_bytes(entry.dtype, entry.shape, entry.nbytes)
        if entry.nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        return driver.empty(entry.nbytes, int(device.partition(":")[2])).view(dtype).view(shape)

    monkeypatch.setattr(_torch.Torch, "moved", moved)
    monkeypatch.setattr(_torch.Torch, "own", own)
    return seen


GPU_INDICES = (
    slice(1, 4), 2, (slice(None), slice(1, 3)), Ellipsis, (Ellipsis, slice(3, 4)), slice(0, 0),
)  # fmt: skip


@pytest.mark.usefixtures("nothing_left", "fake_torch")
def test_on_a_gpu_the_engine_cuts(driver, moves, matrix, monkeypatch):
    monkeypatch.setattr(_slices, "DIRECT_BYTES_MAX", -1)
    path, tensor = matrix
    loader = inrush.Loader(cuda_library=driver.path)
    with safe_open(path, "pt", "cuda", loader=loader) as file:  # that is cuda:0
        for index in GPU_INDICES:
            part = file.get_slice("a")[index]
            assert driver.bytes_of(part) == bytes_of(tensor[index])
            assert part.shape == tensor[index].shape
        assert driver.bytes_of(file.get_tensor("a")) == bytes_of(tensor)
        assert driver.bytes_of(file.get_tensors()["a"]) == bytes_of(tensor)
        assert driver.bytes_of(dict(file.tensors())["a"]) == bytes_of(tensor)
        assert driver.device_of(file.get_tensor("a").data_ptr()) == 0
    with safe_open(path, "pt", 1, loader=loader) as file:
        part = file.get_slice("a")[3:]
    assert driver.device_of(part.data_ptr()) == 1
    assert driver.bytes_of(part) == bytes_of(tensor[3:])
    assert not moves


@pytest.mark.usefixtures("nothing_left", "fake_torch")
def test_on_a_gpu_small_tensors_come_by_one_copy(driver, moves, matrix):
    path, tensor = matrix
    with safe_open(path, "pt", "cuda:1", loader=inrush.Loader(cuda_library=driver.path)) as file:
        same(file.get_tensor("a"), tensor)
        for index in GPU_INDICES:
            same(file.get_slice("a")[index], tensor[index].contiguous())
    assert moves == ["cuda:1"] * 6  # one of the slices is empty


def test_moving_is_torch_s_own():
    place = _framework.Place("meta", None)
    assert _torch.Torch().moved(torch.ones(2), place).device.type == "meta"
