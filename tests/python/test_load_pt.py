"""inrush.torch.load_pt against torch.load: the same objects, and what it refuses of files that lie."""
import io
import os
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict

import inrush
import inrush.torch
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inrush.torch import _archive, _load_pt, _ranges

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu,
]


# Comparison

class Same:
    """Compares two objects element by element, and which parts of each are one thing."""

    def __init__(self):
        self.pairs = {}  # identity on the left: on the right

    def _is_one(self, kind, left, right):
        assert self.pairs.setdefault((kind, left), right) == right, kind
        assert self.pairs.setdefault((kind, "back", right), left) == left, kind

    def check(self, left, right):
        assert type(left) is type(right)
        if isinstance(left, (torch.Tensor, dict, list, set, bytearray)):
            self._is_one("object", id(left), id(right))
        if isinstance(left, torch.Tensor):
            self.check_tensor(left, right)
        elif isinstance(left, torch.storage.TypedStorage):
            assert left.dtype == right.dtype
            self.check_storage(left.untyped(), right.untyped())
        elif isinstance(left, dict):
            self.check_items(left, right)
            self.check_items(getattr(left, "__dict__", {}), getattr(right, "__dict__", {}))
        elif isinstance(left, (list, tuple)):
            assert len(left) == len(right)
            for pair in zip(left, right):
                self.check(*pair)
        else:
            assert repr(left) == repr(right)

    def check_items(self, left, right):
        assert list(left) == list(right)
        for key, value in left.items():
            self.check(value, right[key])

    def check_tensor(self, left, right):
        assert left.is_nested == right.is_nested
        if left.is_nested:
            return self.check(list(left.unbind()), list(right.unbind()))
        for what in ("dtype", "shape", "layout", "requires_grad", "is_quantized", "device"):
            assert getattr(left, what) == getattr(right, what), what
        assert left.is_conj() == right.is_conj() and left.is_neg() == right.is_neg()
        self.check_items(left.__dict__, right.__dict__)
        if left.layout != torch.strided or left.is_quantized:
            assert repr(left) == repr(right)
            return
        assert (left.stride(), left.storage_offset()) == (right.stride(), right.storage_offset())
        self.check_storage(left.untyped_storage(), right.untyped_storage())

    def check_storage(self, left, right):
        assert left.nbytes() == right.nbytes()
        if left.nbytes():
            self._is_one("storage", left.data_ptr(), right.data_ptr())
        assert bytes_of(left) == bytes_of(right)


def bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def assert_as_torch_loads(path):
    expected = torch.load(path, map_location="cpu", weights_only=True)
    loaded = inrush.torch.load_pt(path)
    Same().check(expected, loaded)
    return loaded


@pytest.fixture
def saved(tmp_path):
    """saved(object) -> path of a file that torch.save() wrote."""
    def save(value, name="model.pt", **options):
        torch.save(value, tmp_path / name, **options)
        return tmp_path / name
    return save


def refused(code, words, path, *args, **options):
    with pytest.raises(inrush.Error, match=words) as caught:
        inrush.torch.load_pt(path, *args, **options)
    assert caught.value.code == code, caught.value
    assert os.fspath(path) in str(caught.value)
    return caught.value


# What torch.load gives

def test_a_state_dict(saved):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    loaded = assert_as_torch_loads(saved(module.state_dict()))
    assert isinstance(loaded, OrderedDict) and loaded._metadata
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    other.load_state_dict(loaded)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(saved, dtype):
    data = torch.randint(0, 256 if dtype != torch.bool else 2, (24 * dtype.itemsize,), dtype=torch.uint8)
    assert_as_torch_loads(saved(data.view(dtype).view(4, 6)))


def test_views_and_tied_tensors(saved):
    base = torch.arange(24.0).view(4, 6)
    loaded = assert_as_torch_loads(saved({
        "base": base, "again": base, "part": base[1:3, 2:5], "turned": base.t(), "row": base[3],
        "apart": torch.arange(24.0), "spread": base[0, :1].expand(5), "scalar": base[2, 2],
    }))
    loaded["base"].zero_()
    assert not loaded["part"].any() and loaded["again"] is loaded["base"] and loaded["apart"].any()


def test_a_storage_larger_than_its_tensor(saved):
    loaded = assert_as_torch_loads(saved(torch.arange(1000)[10:12]))
    assert loaded.untyped_storage().nbytes() == 8000


def test_parameters_and_attributes(saved):
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    frozen.note = "kept"
    assert_as_torch_loads(saved({
        "p": torch.nn.Parameter(torch.randn(2, 2)), "frozen": frozen,
        "buffer": torch.nn.Buffer(torch.ones(2)), "grad": torch.ones(2, requires_grad=True),
    }))


def test_nested_containers_and_scalars(saved):
    shared = [torch.ones(2)]
    assert_as_torch_loads(saved({
        "list": [1, 2.5, "text", None, True, b"bytes", bytearray(b"x"), 2**70, -1, 1 + 2j, {3}],
        7: (1, (2,), [3]), "shared": shared, "twice": (shared, shared), "counter": Counter("abca"),
        "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda:3"),
        "ordered": OrderedDict(b=1, a=2), "none": {},
    }))


def test_layouts(saved):
    dense = torch.tensor([[0.0, 2.0, 0.0, 1.0], [3.0, 0.0, 0.0, 0.0]])
    scales, zeros = torch.rand(2) + 0.1, torch.zeros(2, dtype=torch.int64)
    with pytest.warns(UserWarning):  # of torch, about layouts and quantisation that it will change
        values = {
            "coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(),
            "bsr": dense.to_sparse_bsr((2, 2)),
            "affine": torch.quantize_per_tensor(dense, 0.1, 3, torch.quint8),
            "channels": torch.quantize_per_channel(dense, scales, zeros, 0, torch.qint8),
            "nested": torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)]),
        }
    assert_as_torch_loads(saved(values))


def test_lazy_conjugates_and_negatives(saved):
    z = torch.randn(3, dtype=torch.complex64)
    real = torch.randn(3)
    assert_as_torch_loads(saved({"z": z, "conj": z.conj(), "real": real, "neg": torch._neg_view(real)}))


def test_storages_themselves(saved):
    numbers = torch.arange(5.0)
    assert_as_torch_loads(saved({
        "t": numbers, "typed": numbers.storage(), "raw": torch.ones(3).untyped_storage(),
    }))


def test_tensors_without_elements(saved):
    empty = torch.empty(0, 3)
    state = {"a": empty, "b": empty.view(3, 0), "c": torch.empty(0), "d": empty}
    loaded = assert_as_torch_loads(saved(state))
    assert loaded["a"] is loaded["d"]


def test_a_storage_of_an_odd_length(saved):
    """torch.save() writes what torch.load() refuses."""
    storage = torch.UntypedStorage(10)
    path = saved(torch.empty(0).set_(storage, 0, (2,), (1,)))
    with pytest.raises(RuntimeError):
        torch.load(path)
    refused("corrupt_checkpoint", "data/0.*8 bytes", path)


@pytest.mark.parametrize("value", [5, None, [], "text", {}])
def test_no_tensors_at_all(saved, value):
    assert_as_torch_loads(saved(value))


def test_sparse_tensors_are_checked_as_torch_does(saved):
    bad = torch.sparse_coo_tensor([[0, 9]], [1.0, 2.0], (3,), check_invariants=False)
    path = saved(bad)
    with torch.sparse.check_sparse_tensor_invariants():
        with pytest.raises(RuntimeError):
            torch.load(path, weights_only=True)
        refused("corrupt_checkpoint", "no object of torch.save", path)
    assert not torch._utils._sparse_tensors_to_validate


def test_storages_are_like_those_of_torch(saved):
    loaded = inrush.torch.load_pt(saved({"a": torch.ones(3), "b": torch.ones(3)}))
    assert loaded["a"].untyped_storage().resizable()
    loaded["a"].resize_(1000)
    written = io.BytesIO()
    torch.save(loaded["b"], written)
    assert len(written.getvalue()) < 2000


def test_classes_that_the_user_allowed(saved):
    path = saved({"path": Path()})
    refused("invalid_request", "test_load_pt.Path.*add_safe_globals", path)
    with torch.serialization.safe_globals([Path]):
        loaded = inrush.torch.load_pt(path)
    assert type(loaded["path"]) is Path


class Path:
    """Of these tests."""


def test_an_archive_of_other_alignment(saved):
    from torch.utils.serialization import config

    with config.patch({"save.storage_alignment": 4096}):
        path = saved({"a": torch.ones(3), "b": torch.arange(5)})
    assert_as_torch_loads(path)


@pytest.mark.parametrize("of", [str, os.fsencode, os.fspath, lambda path: path])
def test_spellings_of_a_path(saved, of):
    path = saved(torch.arange(3), name="two words \u00fc.pt")
    assert inrush.torch.load_pt(of(path)).tolist() == [0, 1, 2]


def test_inside_contexts_that_change_what_torch_makes(saved):
    path = saved({"w": torch.nn.Parameter(torch.arange(3.0)), "e": torch.empty(0)})
    for surroundings in (torch.device("meta"), torch.inference_mode(), torch.no_grad()):
        expected = torch.load(path, map_location="cpu", weights_only=True)
        with surroundings:
            loaded = inrush.torch.load_pt(path)
        assert loaded["w"].tolist() == expected["w"].tolist() and loaded["w"].requires_grad


def test_options_reach_the_engine(saved):
    path, told = saved({"a": torch.ones(1000), "b": torch.ones(24)}), []
    inrush.torch.load_pt(path, progress=lambda *now: told.append(now), loader=inrush.Loader(), timeout=60,
                         transfer="staged", page_cache="keep")
    assert told[-1] == (4096, 4096)
    for options in ({"timeout": 0}, {"transfer": "pigeon"}, {"page_cache": "maybe"}):
        with pytest.raises(inrush.Error) as caught:
            inrush.torch.load_pt(path, **options)
        assert caught.value.code == "invalid_request"


# Any state dict at all

@st.composite
def storages(draw):
    """(storage, dtype): up to 40 elements of random bytes."""
    dtype = draw(st.sampled_from(DTYPES))
    count = draw(st.integers(0, 40))
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    storage = torch.UntypedStorage(len(data))
    for i, byte in enumerate(data):
        storage[i] = byte
    return storage, dtype, count


@st.composite
def tensors(draw, pool):
    """A view of one of the storages: any shape, strides and offset that fit."""
    storage, dtype, count = draw(st.sampled_from(pool))
    offset = draw(st.integers(0, count))
    shape, strides, room = [], [], count - offset
    for _ in range(draw(st.integers(0, 3))):
        stride = draw(st.integers(0, 4))
        most = 3 if stride == 0 else 1 + max(room - 1, 0) // stride
        extent = draw(st.integers(0 if room else 0, min(most, 5) if room else 0))
        room -= max(extent - 1, 0) * stride
        shape.append(extent)
        strides.append(stride)
    if not room and 0 not in shape:
        shape, strides = [0], [1]
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)
    kind = draw(st.sampled_from(["tensor", "parameter", "conj", "grad"]))
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=False)
    if kind == "conj" and dtype.is_complex:
        return tensor.conj()
    return tensor.requires_grad_() if kind == "grad" and dtype.is_floating_point else tensor


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5),
                   st.binary(max_size=5), st.sampled_from(DTYPES))
KEYS = st.one_of(st.text(max_size=6), st.integers(-3, 3))


@st.composite
def states(draw):
    pool = draw(st.lists(storages(), min_size=1, max_size=4))
    some = draw(st.lists(tensors(pool), min_size=1, max_size=6))
    return draw(st.recursive(
        st.one_of(LEAVES, st.sampled_from(some)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(KEYS, inner, max_size=4),
            st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict),
        ),
        max_leaves=12,
    ))


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(state=states())
def test_any_state_is_as_torch_loads_it(state, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.pt"
    torch.save(state, path)
    try:
        expected = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError):  # b"", and F8 that requires grad
        with pytest.raises(inrush.Error):
            inrush.torch.load_pt(path)
        return
    Same().check(expected, inrush.torch.load_pt(path))


# A GPU

def test_into_memory_of_a_device(saved, driver, nothing_left, fake_torch, monkeypatch):
    def on_fake(nbytes, device):
        assert device == "cuda:1"
        memory = driver.empty(nbytes, 1) if nbytes else torch.empty(0, dtype=torch.uint8)
        return memory.untyped_storage()

    monkeypatch.setattr(_load_pt, "make_storage", on_fake)
    base = torch.arange(1 << 18, dtype=torch.int64)
    state = {"base": base, "part": base[5:7], "other": torch.randn(3, 5), "none": torch.empty(0, 2), "n": 3}
    path = saved(state)
    loader = inrush.Loader(cuda_library=driver.path)
    loaded = inrush.torch.load_pt(path, "cuda:1", loader=loader)
    assert loaded["n"] == 3 and loaded["none"].shape == (0, 2)
    assert driver.bytes_of(loaded["base"]) == base.numpy().tobytes()
    assert driver.bytes_of(loaded["other"]) == state["other"].numpy().tobytes()
    assert driver.device_of(loaded["base"].data_ptr()) == 1
    assert loaded["part"].data_ptr() == loaded["base"].data_ptr() + 40
    del loaded
    loader.release_idle()
    del loader


# What is refused

class Attack:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


@pytest.fixture
def no_reads(monkeypatch):
    """Fails the test where a tensor is read."""
    def fail(*_):
        raise AssertionError("tensors were read")
    monkeypatch.setattr(_ranges, "load_ranges", fail)


def test_code_in_a_pickle_does_not_run(saved, tmp_path, no_reads):
    path = saved({"a": torch.ones(3), "b": Attack(tmp_path / "marker")})
    refused("invalid_request", "posix.system.*weights_only", path)
    assert not (tmp_path / "marker").exists()


def write_archive(path, records, folder="archive"):
    """A zip as torch.save() writes them, but of these records."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in ({"version": b"3\n", "byteorder": b"little"} | records).items():
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}"), data)
    return path


def pickled(value, protocol=2):
    return pickle.dumps(value, protocol=protocol)


class Reduced:
    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("data", [
    pickled(Reduced(eval, ("1",))), pickled(Reduced(eval, ("1",)), 4), pickled(Reduced(getattr, (1, "real"))),
    pickled(Reduced(torch.load, ("x",))), b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n.",
    b"\x80\x02\x82\x01.", pickled({1: frozenset([1])}, 4),
])
def test_pickles_that_the_unpickler_does_not_allow(tmp_path, no_reads, data):
    path = write_archive(tmp_path / "m.pt", {"data.pkl": data})
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    refused("invalid_request", "pickle", path)


STORAGE = b"ctorch\nFloatStorage\n"


def persistent(*parts):
    """A pickle of what persistent_load() gives for a tuple of pickled parts."""
    return b"\x80\x02(" + b"".join(parts) + b"tQ."


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


@pytest.mark.parametrize("data, words", [
    (persistent(text("storage"), STORAGE, text("9"), text("cpu"), b"K\x01"), "no record 'data/9'"),
    (persistent(text("storage"), STORAGE, text("0"), text("cpu"), b"K\x02"), r"'data/0'.*\d+, \d+.*8 bytes"),
    (persistent(text("storage"), STORAGE, text("0"), text("cpu"), b"J\xff\xff\xff\xff"), "no storage"),
    (persistent(text("storage"), STORAGE, text("../version"), text("cpu"), b"K\x01"), "no record"),
    (persistent(text("storage"), STORAGE, b"K\x00", text("cpu"), b"K\x01"), "no storage"),
    (persistent(text("storage"), text("x"), text("0"), text("cpu"), b"K\x01"), "no storage"),
    (persistent(text("storage"), STORAGE), "no storage"),
    (b"\x80\x02K\x05Q.", "no storage"),
    (b"\x80\x02", "no object|pickle"), (b"", "no object|pickle"), (b"\x80\x02.", "no object|pickle"),
    (b"\x80\x02K\x01a.", "pickle"),
])
def test_pickles_that_make_no_sense(tmp_path, data, words):
    path = write_archive(tmp_path / "m.pt", {"data.pkl": data, "data/0": b"abcd"})
    with pytest.raises(inrush.Error, match=words) as caught:
        inrush.torch.load_pt(path)
    assert caught.value.code in ("corrupt_checkpoint", "invalid_request") and str(path) in str(caught.value)


def test_a_view_beyond_its_storage(saved, tmp_path):
    source = saved(torch.arange(3.0))
    with zipfile.ZipFile(source) as archive:
        data = archive.read("model/data.pkl")
        values = archive.read("model/data/0")
    size = b"K\x03\x85"  # (3,)
    assert data.count(size) == 1
    path = write_archive(tmp_path / "m.pt", {"data.pkl": data.replace(size, b"K\x63\x85"), "data/0": values})
    with pytest.raises(RuntimeError):
        torch.load(path, weights_only=True)
    refused("corrupt_checkpoint", "reaches to byte 396 of record data/0, which has 12", path)


def test_other_formats(saved, tmp_path, no_reads):
    legacy = saved({"a": torch.ones(2)}, _use_new_zipfile_serialization=False)
    refused("invalid_request", "torch.load.*torch.save", legacy)
    script = tmp_path / "script.pt"
    write_archive(script, {"data.pkl": pickled(1), "constants.pkl": pickled(())})
    refused("invalid_request", "TorchScript", script)
    other = tmp_path / "other.pt"
    for data, code, words in (
        (b"", "corrupt_checkpoint", "empty"), (b"<!DOCTYPE html>", "corrupt_checkpoint", "web"),
        (b"version https://git-lfs.github.com/spec/v1\n", "corrupt_checkpoint", "git-lfs"),
        (struct.pack("<Q", 2) + b"{}", "invalid_request", "safetensors"),
        (b"junk", "invalid_request", "no zip"), (b"PK\x03\x04", "corrupt_checkpoint", "directory"),
    ):
        other.write_bytes(data)
        refused(code, words, other)
    big = write_archive(tmp_path / "big.pt", {"data.pkl": pickled(1), "byteorder": b"big"})
    refused("invalid_request", "big-endian", big)
    odd = write_archive(tmp_path / "odd.pt", {"data.pkl": pickled(1), "byteorder": b"odd"})
    refused("corrupt_checkpoint", "byte order", odd)


def test_what_is_no_file(tmp_path):
    refused("not_found", "No such file", tmp_path / "absent.pt")
    refused("invalid_request", "not a regular file", tmp_path)
    os.mkfifo(tmp_path / "pipe")
    refused("invalid_request", "not a regular file", tmp_path / "pipe")
    with pytest.raises(ValueError, match="BytesIO is no path"):
        inrush.torch.load_pt(io.BytesIO())


def test_an_archive_without_byte_order(saved, tmp_path):
    """As torch before 2.1 wrote it: little-endian, unless the user said what it is."""
    path = tmp_path / "old.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), pickled([1]))
    assert inrush.torch.load_pt(path) == [1]
    before = torch.serialization.get_default_load_endianness()
    try:
        torch.serialization.set_default_load_endianness(torch.serialization.LoadEndianness.BIG)
        refused("invalid_request", "big-endian", path)
        torch.serialization.set_default_load_endianness(torch.serialization.LoadEndianness.NATIVE)
        assert inrush.torch.load_pt(path) == [1]
    finally:
        torch.serialization.set_default_load_endianness(before)


# Archives that lie

@pytest.fixture
def small(saved):
    return saved({"a": torch.arange(6.0), "b": torch.arange(3)})


def entries_of(data):
    """Name -> position of its entry in the central directory."""
    found, at = {}, data.find(b"PK\x01\x02")
    while at >= 0:
        length = struct.unpack_from("<H", data, at + 28)[0]
        found[data[at + 46:at + 46 + length].decode().split("/", 1)[1]] = at
        at = data.find(b"PK\x01\x02", at + 46)
    return found


def lying(path, name, field, value, size="I"):
    """Rewrites a field of a record's entry in the central directory."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<" + size, data, entries_of(data)[name] + field, value)
    path.write_bytes(data)
    return path


def header_offset(path, name):
    data = path.read_bytes()
    return struct.unpack_from("<I", data, entries_of(data)[name] + 42)[0]


@pytest.mark.parametrize("name", ["data/0", "data/1", "data.pkl"])
@pytest.mark.parametrize("offset", [2**31, 2**32 - 2, 7, 10_000])
def test_an_offset_that_leads_elsewhere(small, no_reads, name, offset):
    refused("corrupt_checkpoint", f"{name}|directory", lying(small, name, 42, offset))


def test_records_at_one_place(small, no_reads):
    lying(small, "data/1", 42, header_offset(small, "data/0"))
    refused("corrupt_checkpoint", "data/0.*overlap|overlap.*data/0|data/1.*header", small)


@pytest.mark.parametrize("size", [1 << 20, 2**32 - 2])
def test_a_size_beyond_the_file(small, no_reads, size):
    lying(small, "data/1", 20, size)
    refused("corrupt_checkpoint", r"data/1.*\[\d+, \d+\).*beyond", lying(small, "data/1", 24, size))


def test_a_size_that_reaches_into_the_next_record(small, no_reads):
    lying(small, "data/0", 20, 200)
    refused("corrupt_checkpoint", "'data/0' and 'data/1' overlap", lying(small, "data/0", 24, 200))


def test_two_sizes(small, no_reads):
    refused("corrupt_checkpoint", "data/0.*sizes 24 and 23", lying(small, "data/0", 24, 23))


@pytest.mark.parametrize("field, value", [(10, 8), (8, 1)])
def test_compressed_and_encrypted_records(small, no_reads, field, value):
    lying(small, "data/0", field, value, "H")
    refused("corrupt_checkpoint", "data/0.*compressed or encrypted", small)


def test_a_compressed_archive(small, tmp_path, no_reads):
    path = tmp_path / "compressed.pt"
    with zipfile.ZipFile(small) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    refused("corrupt_checkpoint", "compressed", path)


@pytest.mark.parametrize("field, value", [(0, 0x04034B51), (8, 8), (6, 1), (18, 5), (22, 5), (26, 5)])
def test_a_local_header_that_disagrees(small, no_reads, field, value):
    at = header_offset(small, "data/0") + field
    data = bytearray(small.read_bytes())
    struct.pack_into("<I" if field in (0, 18, 22) else "<H", data, at, value)
    small.write_bytes(data)
    refused("corrupt_checkpoint", "data/0.*not what the directory says", small)


def test_another_name_in_the_local_header(small, no_reads):
    at = header_offset(small, "data/0") + 30
    data = bytearray(small.read_bytes())
    assert data[at:at + 12] == b"model/data/0"
    data[at + 11:at + 12] = b"7"
    small.write_bytes(data)
    refused("corrupt_checkpoint", "data/0.*not what the directory says", small)


def test_padding_that_leads_out_of_the_archive(small, no_reads):
    at = header_offset(small, "data/1") + 28
    data = bytearray(small.read_bytes())
    struct.pack_into("<H", data, at, 60_000)
    small.write_bytes(data)
    refused("corrupt_checkpoint", "data/1.*beyond", small)


def test_a_record_twice(tmp_path, no_reads):
    path = tmp_path / "twice.pt"
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning):
        for _ in range(2):
            archive.writestr(zipfile.ZipInfo("archive/data.pkl"), pickled(1))
    refused("corrupt_checkpoint", "'data.pkl' twice", path)


def test_a_file_that_was_cut_anywhere(small, no_reads):
    data = small.read_bytes()
    for length in range(len(data)):
        small.write_bytes(data[:length])
        with pytest.raises(inrush.Error) as caught:
            inrush.torch.load_pt(small)
        assert str(small) in str(caught.value)


def test_a_byte_that_was_changed_anywhere(small):
    """Refused, or what torch.load() gives, which also refuses faults of records that have no use here."""
    data, accepted = small.read_bytes(), 0
    intact = torch.load(small, map_location="cpu", weights_only=True)
    for position in range(len(data)):
        if data[position] == ord("Z"):  # padding
            continue
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        small.write_bytes(changed)
        try:
            loaded = inrush.torch.load_pt(small)
        except inrush.Error as error:
            assert error.code in ("corrupt_checkpoint", "invalid_request", "out_of_memory"), error
            continue
        accepted += 1
        try:
            expected = torch.load(small, map_location="cpu", weights_only=True)
        except (RuntimeError, ValueError):
            expected = intact
        Same().check(expected, loaded)
    assert 100 < accepted < len(data)


# Files that change

@pytest.mark.parametrize("change", ["written", "replaced", "removed", "cut"])
def test_a_file_that_changes_after_its_directory_was_read(small, change, monkeypatch):
    real = _ranges._inrush.describe_checkpoint
    state = os.stat(small)

    def describe(*args):
        if change == "written":
            with open(small, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"x")
        elif change == "replaced":
            copy = small.with_suffix(".new")
            copy.write_bytes(small.read_bytes())
            os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))
            os.replace(copy, small)
        elif change == "removed":
            os.unlink(small)
        else:
            os.truncate(small, 100)
        return real(*args)

    monkeypatch.setattr(_ranges._inrush, "describe_checkpoint", describe)
    with pytest.raises(inrush.Error, match=small.name) as caught:
        inrush.torch.load_pt(small)
    assert caught.value.code == ("not_found" if change == "removed" else "corrupt_checkpoint")


# Offsets

def test_places_beyond_4_gib(tmp_path):
    """Records of a sparse file, against torch's own reader."""
    path = tmp_path / "large.pt"
    with torch.serialization.skip_data():
        torch.save({"a": torch.empty(5 << 30, dtype=torch.uint8), "b": torch.arange(3)}, path)
    if os.stat(path).st_blocks * 512 > 1 << 30:
        os.truncate(path, 0)
        pytest.fail("the file is not sparse")
    reader = torch._C.PyTorchFileReader(str(path))
    with _archive.Source(str(path)) as source:
        archive = _archive.Archive(source, _archive.Place(str(path), 0, source.nbytes))
        assert archive.records["data/0"].nbytes == 5 << 30
        for name in ("data.pkl", "data/0", "data/1", "version"):
            assert archive.records[name].offset == reader.get_record_offset(name)
        assert archive.records["data/1"].offset > 5 << 30
