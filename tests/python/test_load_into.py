"""inrush.torch.load_into on the CPU: what it writes, and what it refuses before the first byte."""
import gc
import os
import types
import weakref

import inrush
import inrush.torch
import pytest
import torch
from conftest import random_tensor, tensors_of_every_dtype, write_checkpoint
from inrush.torch import _load_into
from resources import resident_bytes, write_sparse

MIB = 1 << 20
POISON = 0xA5
DTYPES = {
    "BOOL": torch.bool, "F4": torch.float4_e2m1fn_x2, "F6_E2M3": torch.uint8, "F6_E3M2": torch.uint8,
    "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "C64": torch.complex64, "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64,
}


def raw(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def poisoned(shape, dtype=torch.float32):
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.full((count,), POISON, dtype=torch.uint8).view(dtype).view(shape)


def is_poison(tensor):
    return set(raw(tensor)) <= {POISON}


def target_for(dtype, shape, data):
    if dtype.startswith("F6_") or (dtype == "F4" and shape[-1] % 2):
        return poisoned([len(data)], torch.uint8)
    if dtype == "F4":
        shape = [*shape[:-1], shape[-1] // 2]
    return poisoned(shape, DTYPES[dtype])


def targets_for(tensors):
    return {name: target_for(*entry) for name, entry in tensors.items()}


def assert_equal(targets, tensors):
    for name, (_, _, data) in tensors.items():
        assert raw(targets[name]) == data, name


def of_module(module, seed=1):
    """What a checkpoint of this module may hold."""
    spelling = {dtype: name for name, dtype in DTYPES.items()}
    return {
        name: random_tensor(spelling[tensor.dtype], list(tensor.shape), seed)
        for name, tensor in module.state_dict().items()
    }


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


# What it writes

def test_a_module(make_checkpoint):
    module = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    tensors = of_module(module)
    path = make_checkpoint("m", tensors, shards=2)
    before = {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    result = inrush.torch.load_into(path, module)
    assert result.loaded == list(inrush.open(path))
    assert (result.missing, result.unexpected) == ([], [])
    assert_equal(module.state_dict(), tensors)
    assert {name: tensor.data_ptr() for name, tensor in module.state_dict().items()} == before
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in module.parameters())
    [report] = result.reports
    assert report.complete and report.device == "cpu"
    assert report.loaded_bytes == sum(len(data) for _, _, data in tensors.values())


@pytest.mark.parametrize("of", [dict, lambda state: state, types.MappingProxyType])
def test_a_state_dict(make_checkpoint, of):
    module = torch.nn.Linear(4, 3)
    tensors = of_module(module)
    inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), of(module.state_dict()))
    assert_equal(module.state_dict(), tensors)


def test_every_dtype_is_exact(make_checkpoint):
    tensors = tensors_of_every_dtype() | {"odd": random_tensor("F4", [4, 3])}
    targets = targets_for(tensors)
    result = inrush.torch.load_into(make_checkpoint("m", tensors, shards=3), targets)
    assert sorted(result.loaded) == sorted(tensors)
    assert_equal(targets, tensors)


def test_what_belongs_to_no_checkpoint_stays_as_it_is(make_checkpoint):
    class Odd(torch.nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.register_buffer("cache", poisoned([5]), persistent=False)

        def get_extra_state(self):
            return "not a tensor"

        def set_extra_state(self, state):
            raise AssertionError

    module = Odd()
    tensors = of_module(torch.nn.Linear(3, 2))
    result = inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), module)
    assert (sorted(result.loaded), result.missing) == (["bias", "weight"], [])
    assert is_poison(module.cache)


def test_views_of_one_storage(make_checkpoint):
    tensors = {f"t{i}": random_tensor("F32", [2, 3], seed=i) for i in range(4)}
    base = poisoned([30])
    # Their order in memory is not that of the file, and there is a gap.
    targets = {name: base[offset:offset + 6].view(2, 3) for name, offset in zip(tensors, (18, 0, 6, 24))}
    inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets)
    assert_equal(targets, tensors)
    assert is_poison(base[12:18])


@pytest.mark.parametrize("size", [1, 7, 4096, 3 * MIB + 5])
def test_targets_at_any_address(make_checkpoint, size):
    tensors = {f"t{i}": random_tensor("U8", [size], seed=i) for i in range(5)}
    base = poisoned([5 * (size + 3) + 1], torch.uint8)
    starts = {name: 1 + i * (size + 3) for i, name in enumerate(tensors)}
    targets = {name: base[start:start + size] for name, start in starts.items()}
    inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets)
    expected = bytearray([POISON]) * base.nbytes
    for name, start in starts.items():
        expected[start:start + size] = tensors[name][2]
    assert raw(base) == bytes(expected)


def test_elements_that_are_not_aligned(make_checkpoint):
    shapes = {"a": ("F32", [3, 5]), "b": ("F64", [2]), "c": ("BF16", [7])}
    tensors = {name: random_tensor(*shape) for name, shape in shapes.items()}
    memory = bytearray([POISON]) * 200
    targets = {
        "a": torch.frombuffer(memory, dtype=torch.float32, count=15, offset=1).view(3, 5),
        "b": torch.frombuffer(memory, dtype=torch.float64, count=2, offset=67),
        "c": torch.frombuffer(memory, dtype=torch.bfloat16, count=7, offset=101),
    }
    inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets)
    expected = bytearray([POISON]) * 200
    for start, name in ((1, "a"), (67, "b"), (101, "c")):
        expected[start:start + len(tensors[name][2])] = tensors[name][2]
    assert memory == expected


def test_scalars_and_empty_ones(make_checkpoint):
    tensors = {
        "first": ("F32", [0], b""), "one": random_tensor("F64", []), "none": ("BF16", [2, 0, 3], b""),
        "flag": random_tensor("BOOL", []), "last": ("U8", [0], b""),
    }
    targets = targets_for(tensors)
    result = inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets)
    assert sorted(result.loaded) == sorted(tensors)
    assert_equal(targets, tensors)


def test_only_empty_ones(make_checkpoint):
    tensors = {"a": ("F32", [0], b""), "b": ("I64", [3, 0], b"")}
    result = inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets_for(tensors))
    assert sorted(result.loaded) == ["a", "b"]


def test_slices_go_into_targets_of_their_size(make_checkpoint):
    tensors = {"rows": random_tensor("BF16", [16, 6]), "columns": random_tensor("F32", [5, 4, 3]),
               "whole": random_tensor("I64", [3])}
    path = make_checkpoint("m.safetensors", tensors)
    whole = inrush.torch.load(path)
    targets = {"rows": poisoned([2, 6], torch.bfloat16), "columns": poisoned([5, 2, 3]),
               "whole": poisoned([3], torch.int64)}
    inrush.torch.load_into(path, targets, slices={"rows": (0, 3, 2), "columns": (1, 1, 2)})
    assert raw(targets["rows"]) == raw(whole["rows"][3:5])
    assert raw(targets["columns"]) == raw(whole["columns"][:, 1:3])
    assert raw(targets["whole"]) == raw(whole["whole"])


def test_a_checkpoint_that_is_open_and_a_loader(make_checkpoint):
    tensors = {f"t{i}": random_tensor("F32", [1024, 64], seed=i) for i in range(20)}
    checkpoint = inrush.open(make_checkpoint("m", tensors, shards=4))
    loader, told = inrush.Loader(), []
    for _ in range(3):
        targets = targets_for(tensors)
        inrush.torch.load_into(
            checkpoint, targets, loader=loader, timeout=60, transfer="staged", page_cache="keep",
            progress=lambda loaded, planned: told.append((loaded, planned)),
        )
        assert_equal(targets, tensors)
        assert told[-1] == (checkpoint.nbytes, checkpoint.nbytes)


def test_no_second_copy(tmp_path):
    size = 64 * MIB
    path = write_sparse(tmp_path / "m.safetensors", {f"t{i}": ("U8", [size]) for i in range(4)})
    targets = {f"t{i}": poisoned([size], torch.uint8) for i in range(4)}
    loader, peak = inrush.Loader(staging_bytes="16MiB"), []
    before = resident_bytes()
    inrush.torch.load_into(path, targets, loader=loader,
                           progress=lambda *_: peak.append(resident_bytes() - before))
    assert max(peak) < size // 2, f"{max(peak) / MIB:.0f} MiB"
    assert not any(bool(tensor.any()) for tensor in targets.values())


@pytest.mark.parametrize("way", ["loads", "never starts", "is interrupted"])
def test_targets_are_let_go(make_checkpoint, way):
    tensors = {f"t{i}": random_tensor("F32", [64], seed=i) for i in range(3)}
    checkpoint = inrush.open(make_checkpoint("m.safetensors", tensors))
    targets = targets_for(tensors)
    watched = [weakref.ref(tensor) for tensor in targets.values()]

    def interrupt(loaded, planned):
        raise KeyboardInterrupt

    if way == "loads":
        inrush.torch.load_into(checkpoint, targets)
    elif way == "never starts":
        os.unlink(checkpoint.path)
        with pytest.raises(FileNotFoundError):
            inrush.torch.load_into(checkpoint, targets)
    else:
        with pytest.raises(KeyboardInterrupt):
            inrush.torch.load_into(checkpoint, targets, progress=interrupt)
    del targets
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3


# Autograd

def test_saved_tensors_of_autograd_notice(make_checkpoint):
    entries = {"w": random_tensor("I8", [3]), "other": random_tensor("F32", [3])}
    entries["w"] = ("F32", [3], torch.ones(3).numpy().tobytes())
    path = make_checkpoint("m.safetensors", entries)
    w, other = torch.nn.Parameter(torch.full((3,), 5.0)), torch.nn.Parameter(torch.zeros(3))
    squares = (w**2).sum()
    versions = w._version, other._version
    inrush.torch.load_into(path, {"w": w}, only="w")
    assert w._version > versions[0]
    assert other._version == versions[1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()
    (w**2).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_view_that_requires_grad(make_checkpoint):
    tensors = {"w": random_tensor("F32", [2, 3])}
    leaf = torch.zeros(6, requires_grad=True)
    view = leaf.view(2, 3)
    inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), {"w": view})
    assert raw(leaf) == tensors["w"][2]
    assert leaf.is_leaf and leaf.requires_grad


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize("made_in", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("loaded_in", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_inference_tensors(make_checkpoint, made_in, loaded_in, convert):
    with made_in():
        module = torch.nn.Linear(4, 3)
    tensors = of_module(module)
    if convert:
        tensors = {name: random_tensor("F64", shape) for name, (_, shape, _) in tensors.items()}
    path = make_checkpoint("m.safetensors", tensors)
    with loaded_in():
        inrush.torch.load_into(path, module, convert=convert)
    expected = inrush.torch.load(path)
    for name, tensor in module.state_dict().items():
        assert raw(tensor) == raw(expected[name].float())


@pytest.mark.parametrize("surroundings", [lambda: torch.device("meta"), lambda: torch.autocast("cpu")])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_inside_contexts_that_change_what_torch_makes(make_checkpoint, surroundings, dtype):
    path = make_checkpoint("m.safetensors", {"w": random_tensor(dtype, [3, 4])})
    target = poisoned([3, 4])
    with surroundings():
        inrush.torch.load_into(path, {"w": target}, convert=True)
    assert raw(target) == raw(inrush.torch.load(path)["w"].float())


# Tied weights

def test_tied_weights_that_are_stored_once(make_checkpoint):
    model = Tied()
    tensors = {"embedding.weight": random_tensor("F32", [7, 4])}
    result = inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), model)
    assert result == (["embedding.weight"], [], [], result.reports)
    assert raw(model.head.weight) == tensors["embedding.weight"][2]
    assert model.head.weight is model.embedding.weight


def test_tied_weights_that_are_stored_twice(make_checkpoint):
    model = Tied()
    before = raw(model.head.weight)
    tensors = {name: random_tensor("F32", [7, 4]) for name in ("embedding.weight", "head.weight")}
    path = make_checkpoint("m.safetensors", tensors)
    with pytest.raises(inrush.Error, match="share memory") as caught:
        inrush.torch.load_into(path, model)
    assert caught.value.code == "invalid_request"
    assert "'embedding.weight'" in str(caught.value) and "'head.weight'" in str(caught.value)
    assert raw(model.head.weight) == before
    result = inrush.torch.load_into(path, model, only="head.*")
    assert (result.loaded, result.missing) == (["head.weight"], [])
    assert raw(model.embedding.weight) == tensors["head.weight"][2]


def test_a_part_of_a_loaded_tensor_is_missing(make_checkpoint):
    """Only what is loaded as a whole by its twin counts as loaded."""
    base = poisoned([6])
    path = make_checkpoint("m.safetensors", {"whole": random_tensor("F32", [6])})
    result = inrush.torch.load_into(path, {"whole": base, "part": base[:3]}, strict=False)
    assert (result.loaded, result.missing) == (["whole"], ["part"])


# Names

@pytest.fixture
def three(make_checkpoint):
    """(path, tensors): a, b and c."""
    tensors = {name: random_tensor("F32", [4], seed=name) for name in "abc"}
    return make_checkpoint("three.safetensors", tensors), tensors


def test_strict_names_what_differs(three):
    path, _ = three
    targets = {name: poisoned([4]) for name in "bcde"}
    with pytest.raises(inrush.Error) as caught:
        inrush.torch.load_into(path, targets)
    assert caught.value.code == "invalid_request"
    for word in (str(path), "lacks 'd', 'e'", "has 'a'", "nothing was loaded", "strict=False"):
        assert word in str(caught.value)
    assert all(is_poison(tensor) for tensor in targets.values())


def test_not_strict_loads_what_is_in_both(three):
    path, tensors = three
    targets = {name: poisoned([4]) for name in "edcb"}
    result = inrush.torch.load_into(path, targets, strict=False)
    assert result[:3] == (["b", "c"], ["e", "d"], ["a"])
    assert_equal(targets, {name: tensors[name] for name in "bc"})
    assert is_poison(targets["d"]) and is_poison(targets["e"])


@pytest.mark.parametrize("only", ["[ab]", ["a", "b"], ["b*", "a"], lambda name: name in "ab"])
def test_only_limits_both_sides(three, only):
    path, tensors = three
    targets = {name: poisoned([4]) for name in "abd"}  # d would be missing, c unexpected
    result = inrush.torch.load_into(path, targets, only=only)
    assert result[:3] == (["a", "b"], [], [])
    assert_equal(targets, {name: tensors[name] for name in "ab"})
    assert is_poison(targets["d"])


def test_only_and_a_missing_one(three):
    path, _ = three
    targets = {name: poisoned([4]) for name in ("a", "x.1", "x.2")}
    with pytest.raises(inrush.Error, match=r"lacks 'x\.1'"):
        inrush.torch.load_into(path, targets, only=lambda name: name in ("a", "x.1"))
    assert is_poison(targets["a"])


def test_names_of_globs_are_names(make_checkpoint):
    names = ("w[0]", "w0", "*", "a?", "ab", "back\\slash")
    tensors = {name: random_tensor("U8", [4], seed=name) for name in names}
    path = make_checkpoint("m.safetensors", tensors)
    for name in tensors:
        targets = targets_for({name: tensors[name]})
        result = inrush.torch.load_into(path, targets, strict=False)
        assert result.loaded == [name]
        assert_equal(targets, {name: tensors[name]})


def test_nothing_in_common(three):
    path, _ = three
    result = inrush.torch.load_into(path, {"z": poisoned([4])}, strict=False)
    assert result[:3] == ([], ["z"], ["a", "b", "c"])
    assert inrush.torch.load_into(path, {}, strict=False).loaded == []
    with pytest.raises(inrush.Error):
        inrush.torch.load_into(path, {})


# Targets that do not fit

class Subclass(torch.Tensor):
    pass


MISFITS = {
    "shape": (lambda: poisoned([4, 3]), r"shape \[4, 3\] and the checkpoint \[3, 4\]"),
    "rank": (lambda: poisoned([12]), r"shape \[12\]"),
    "larger": (lambda: poisoned([3, 5]), r"shape \[3, 5\]"),
    "dtype": (lambda: poisoned([3, 4], torch.int32), r"torch\.int32 .* torch\.float32; convert=True"),
    "meta": (lambda: torch.empty(3, 4, device="meta"), "meta device.*to_empty"),
    "transposed": (lambda: poisoned([4, 3]).t(), r"not contiguous \(strides \[1, 3\]"),
    "narrowed": (lambda: poisoned([3, 8])[:, :4], "not contiguous"),
    "expanded": (lambda: poisoned([1, 4]).expand(3, 4), r"not contiguous \(strides \[0, 1\]"),
    "overlapping": (lambda: poisoned([6]).as_strided((3, 4), (1, 1)), "not contiguous"),
    "channels_last": (lambda: poisoned([3, 4]).as_strided((3, 4), (1, 3)), "not contiguous"),
    "subclass": (lambda: poisoned([3, 4]).as_subclass(Subclass), "a Subclass need not keep"),
    "uninitialized": (lambda: torch.nn.UninitializedParameter(), "UninitializedParameter"),
    "sparse": (lambda: torch.eye(3, 4).to_sparse(), "layout torch.sparse_coo"),
    "sparse_rows": (lambda: torch.eye(3, 4).to_sparse_csr(), "layout torch.sparse_csr"),
    "mkldnn": (lambda: torch.ones(3, 4).to_mkldnn(), "layout torch._mkldnn"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8), "plain array"),
    "negative": (lambda: torch._neg_view(poisoned([3, 4])), "lazy"),
}


@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|quantiz)")
@pytest.mark.parametrize(("kind", "convert"), [
    *((kind, False) for kind in MISFITS), *((kind, True) for kind in MISFITS if kind != "dtype"),
])
def test_a_target_that_does_not_fit(make_checkpoint, kind, convert):
    make, message = MISFITS[kind]
    tensors = {"good": ("F32", [4]), "bad": ("F32", [3, 4]), "fine": ("U8", [9])}
    path = make_checkpoint("m.safetensors", tensors)
    targets = {"good": poisoned([4]), "bad": make(), "fine": poisoned([9], torch.uint8)}
    with pytest.raises(inrush.Error, match=f"(?s)nothing was loaded.*'bad': .*({message})") as caught:
        inrush.torch.load_into(path, targets, convert=convert)
    assert caught.value.code == "invalid_request"
    assert caught.value.overwritten == []
    assert is_poison(targets["good"]) and is_poison(targets["fine"])
    if kind not in ("meta", "uninitialized", "sparse", "sparse_rows", "mkldnn", "quantized", "negative"):
        assert is_poison(targets["bad"])


@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|quantiz)")
@pytest.mark.parametrize("kind", MISFITS)
def test_odd_tensors_that_the_checkpoint_has_nothing_for(three, kind):
    path, tensors = three
    targets = {"a": poisoned([4]), "odd": MISFITS[kind][0]()}
    result = inrush.torch.load_into(path, targets, strict=False)
    assert result[:3] == (["a"], ["odd"], ["b", "c"])
    assert_equal(targets, {"a": tensors["a"]})


def test_a_lazy_conjugate(make_checkpoint):
    path = make_checkpoint("m.safetensors", {"c": ("C64", [3])})
    base = poisoned([3], torch.complex64)
    with pytest.raises(inrush.Error, match="'c': it is a lazy conjugate"):
        inrush.torch.load_into(path, {"c": base.conj()})
    assert is_poison(base)


def test_many_misfits_are_counted(make_checkpoint):
    tensors = {f"t{i:02}": ("F32", [2]) for i in range(25)}
    targets = {name: poisoned([3]) for name in tensors}
    with pytest.raises(inrush.Error, match="and 15 more") as caught:
        inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets)
    assert str(caught.value).count("shape") == 10
    assert all(is_poison(tensor) for tensor in targets.values())


@pytest.mark.parametrize("value", [None, 5, "text", [1.0], torch.nn.Linear(1, 1)])
def test_a_target_that_is_no_tensor(three, value):
    path, _ = three
    with pytest.raises(inrush.Error, match="'b' is a "):
        inrush.torch.load_into(path, {"a": poisoned([4]), "b": value, "c": poisoned([4])})


@pytest.mark.parametrize(("first", "second"), [
    ((0, 4), (0, 4)), ((0, 4), (3, 7)), ((2, 6), (0, 4)), ((0, 4), (1, 2)),
])
def test_targets_that_share_memory(make_checkpoint, first, second):
    base = poisoned([8])
    targets = {"a": base[slice(*first)], "b": base[slice(*second)], "c": poisoned([2])}
    path = make_checkpoint("m.safetensors", {name: ("F32", list(t.shape)) for name, t in targets.items()})
    with pytest.raises(inrush.Error, match="share memory.*only=") as caught:
        inrush.torch.load_into(path, targets)
    assert caught.value.code == "invalid_request"
    assert "'a'" in str(caught.value) and "'b'" in str(caught.value)
    assert is_poison(base) and is_poison(targets["c"])


def test_one_inside_another_that_comes_long_after(make_checkpoint):
    base = poisoned([100])
    targets = {"outer": base, **{f"in{i}": base[i * 10:i * 10 + 1] for i in range(10)}}
    path = make_checkpoint("m.safetensors", {name: ("F32", list(t.shape)) for name, t in targets.items()})
    with pytest.raises(inrush.Error, match="'in0' and 'outer'"):
        inrush.torch.load_into(path, targets)


def test_empty_targets_share_what_they_like(make_checkpoint):
    base = poisoned([4])
    path = make_checkpoint("m.safetensors", {"a": ("F32", [4]), "b": ("F32", [0]), "c": ("F32", [0])})
    result = inrush.torch.load_into(path, {"a": base, "b": base[2:2], "c": base[2:2]})
    assert sorted(result.loaded) == ["a", "b", "c"]


# Converting

CONVERSIONS = [
    ("BF16", torch.float32), ("F32", torch.bfloat16), ("F64", torch.float16), ("I64", torch.float32),
    ("U8", torch.int64), ("F8_E4M3", torch.bfloat16), ("F16", torch.float64), ("F32", torch.float8_e4m3fn),
    ("C64", torch.complex128), ("BOOL", torch.float32), ("U16", torch.int32), ("F8_E8M0", torch.float32),
]


@pytest.mark.parametrize(("dtype", "target"), CONVERSIONS)
def test_converting_is_what_copy_does(make_checkpoint, dtype, target):
    path = make_checkpoint("m.safetensors", {"a": (dtype, [3, 8]), "b": (dtype, []), "c": (dtype, [0, 2])})
    targets = {"a": poisoned([3, 8], target), "b": poisoned([], target), "c": poisoned([0, 2], target)}
    addresses = {name: tensor.data_ptr() for name, tensor in targets.items()}
    result = inrush.torch.load_into(path, targets, convert=True)
    assert sorted(result.loaded) == ["a", "b", "c"]
    for name, source in inrush.torch.load(path).items():
        expected = torch.empty(source.shape, dtype=target).copy_(source)
        assert raw(targets[name]) == raw(expected), name
        assert targets[name].data_ptr() == addresses[name]


def test_converted_beside_direct(make_checkpoint):
    tensors = {f"t{i:02}": random_tensor("F32" if i % 3 else "BF16", [16, 5], seed=i) for i in range(30)}
    path = make_checkpoint("m", tensors, shards=3)
    module = torch.nn.ParameterDict({name: torch.nn.Parameter(poisoned([16, 5])) for name in tensors})
    versions = {name: parameter._version for name, parameter in module.items()}
    inrush.torch.load_into(path, module, convert=True)
    for name, source in inrush.torch.load(path).items():
        assert raw(module[name]) == raw(source.float()), name
        assert module[name]._version > versions[name]
        assert module[name].requires_grad and module[name].is_leaf


def test_converting_takes_a_window_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(_load_into, "_WINDOW_BYTES", 32 * MIB)
    count, elements = 48, 2 * MIB
    path = write_sparse(tmp_path / "m.safetensors", {f"t{i}": ("F32", [elements]) for i in range(count)})
    targets = {f"t{i}": poisoned([elements], torch.bfloat16) for i in range(count)}
    loader, peak = inrush.Loader(staging_bytes="16MiB"), []
    before = resident_bytes()
    inrush.torch.load_into(path, targets, convert=True, loader=loader,
                           progress=lambda *_: peak.append(resident_bytes() - before))
    assert not any(bool(tensor.any()) for tensor in targets.values())
    assert max(peak) < 32 * MIB + 8 * MIB + 16 * MIB + 24 * MIB, f"{max(peak) / MIB:.0f} MiB"


@pytest.mark.parametrize(("dtype", "shape", "form", "message"), [
    ("F6_E2M3", [2, 4], [6], "torch has no type for F6_E2M3"),
    ("F4", [2, 3], [3], "torch has no type for F4"),
    ("F4", [2, 4], [2, 2], "torch does not convert torch.float4_e2m1fn_x2 to torch.float32"),
])
def test_no_conversion_where_torch_has_none(make_checkpoint, dtype, shape, form, message):
    path = make_checkpoint("m.safetensors", {"odd": (dtype, shape), "a": ("F32", [2])})
    targets = {"odd": poisoned(form), "a": poisoned([2])}
    with pytest.raises(inrush.Error, match=f"'odd': {message}"):
        inrush.torch.load_into(path, targets, convert=True)
    assert all(is_poison(tensor) for tensor in targets.values())


# Failing later

@pytest.fixture
def slow_loader():
    """Reads random data at some 100 MB/s, so that something can happen while it loads."""
    return inrush.Loader(readers=1, piece_bytes=4096)


def many(make_checkpoint, *, shards=0):
    """A checkpoint of 32 MiB and targets for it."""
    tensors = {f"t{i:03}": random_tensor("U8", [MIB // 4], seed=i) for i in range(128)}
    return make_checkpoint("many", tensors, shards=shards), tensors, targets_for(tensors)


def at_first_bytes(action):
    """A progress function that acts once, when the first bytes have come."""
    done = []

    def tell(loaded, _):
        if loaded and not done:
            done.append(True)
            action()

    return tell


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)


def assert_told(error, targets, tensors):
    """Targets that are not listed were not reached; each other one may hold anything."""
    assert 0 < len(error.overwritten) < len(targets)
    assert set(error.overwritten) <= set(targets)
    changed = {name for name, tensor in targets.items() if not is_poison(tensor)}
    assert changed <= set(error.overwritten)
    assert any(raw(targets[name]) == tensors[name][2] for name in changed)
    [note] = error.__notes__
    assert "may have been overwritten" in note and repr(error.overwritten[0]) in note


def test_a_file_that_shrinks_during_the_load(make_checkpoint, slow_loader):
    path, tensors, targets = many(make_checkpoint)
    versions = {name: tensor._version for name, tensor in targets.items()}
    with pytest.raises(inrush.Error, match="cut short") as caught:
        inrush.torch.load_into(path, targets, loader=slow_loader, progress=at_first_bytes(lambda: cut(path)))
    assert caught.value.code == "corrupt_checkpoint"
    assert_told(caught.value, targets, tensors)
    assert not caught.value.report.complete
    assert all(targets[name]._version > versions[name] for name in caught.value.overwritten)


def test_a_later_shard_that_shrinks_during_the_load(make_checkpoint, slow_loader):
    path, tensors, targets = many(make_checkpoint, shards=2)
    second = path / "model-00002-of-00002.safetensors"
    with pytest.raises(inrush.Error) as caught:
        inrush.torch.load_into(path, targets, loader=slow_loader,
                               progress=at_first_bytes(lambda: cut(second)))
    assert caught.value.code == "corrupt_checkpoint" and str(second) in str(caught.value)
    assert_told(caught.value, targets, tensors)
    # What lies in the first shard came whole.
    for name in list(tensors)[::2]:
        assert raw(targets[name]) == tensors[name][2]


def test_a_file_that_is_written_to_during_the_load(make_checkpoint, slow_loader):
    path, tensors, targets = many(make_checkpoint, shards=2)
    first = path / "model-00001-of-00002.safetensors"
    with pytest.raises(inrush.Error, match="changed while it was read") as caught:
        inrush.torch.load_into(path, targets, loader=slow_loader,
                               progress=at_first_bytes(lambda: os.utime(first, (1, 1))))
    assert caught.value.code == "corrupt_checkpoint"
    assert_told(caught.value, targets, tensors)


def test_time_that_is_up(make_checkpoint, slow_loader):
    path, tensors, targets = many(make_checkpoint)
    with pytest.raises(TimeoutError) as caught:
        inrush.torch.load_into(path, targets, loader=slow_loader, timeout=0.03)
    assert_told(caught.value, targets, tensors)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError, SystemExit])
def test_what_comes_out_of_python_gets_a_note(make_checkpoint, slow_loader, kind):
    path, tensors, targets = many(make_checkpoint)

    def fail():
        raise kind

    with pytest.raises(kind) as caught:
        inrush.torch.load_into(path, targets, loader=slow_loader, progress=at_first_bytes(fail))
    [note] = caught.value.__notes__
    assert "may have been overwritten in whole or in part: 't000'" in note
    # Nothing is in flight any more.
    before = {name: raw(tensor) for name, tensor in targets.items()}
    inrush.torch.load(path)
    assert {name: raw(tensor) for name, tensor in targets.items()} == before


def test_a_file_that_is_gone_before_the_first_byte(make_checkpoint):
    path, _, targets = many(make_checkpoint)
    checkpoint = inrush.open(path)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        inrush.torch.load_into(checkpoint, targets)
    assert caught.value.overwritten == []
    assert caught.value.__notes__ == ["no tensor of the target was overwritten"]
    assert all(is_poison(tensor) for tensor in targets.values())
    assert {tensor._version for tensor in targets.values()} == {poisoned([1])._version}


def test_a_file_that_changed_before_the_first_byte(make_checkpoint):
    path, _, targets = many(make_checkpoint)
    checkpoint = inrush.open(path)
    cut(path)
    with pytest.raises(inrush.Error, match="changed since") as caught:
        inrush.torch.load_into(checkpoint, targets)
    assert caught.value.overwritten == []
    assert all(is_poison(tensor) for tensor in targets.values())


@pytest.mark.parametrize("tensors", [
    {"direct": ("F32", [8]), "converted": ("F32", [8]), "none": ("F32", [0])},
    {"direct": ("F32", [8]), "converted": ("BF16", [8]), "none": ("F32", [0])},
])
def test_a_failure_of_python_when_the_engine_is_through(make_checkpoint, tensors):
    targets = {name: poisoned(shape) for name, (_, shape) in tensors.items()}

    def fail_at_the_end(loaded, planned):
        if loaded == planned:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets, convert=True,
                               progress=fail_at_the_end)
    [note] = caught.value.__notes__
    changed = {name for name, tensor in targets.items() if not is_poison(tensor)}
    assert "direct" in changed and all(repr(name) in note for name in changed)


def test_converting_from_a_file_that_shrinks(tmp_path, monkeypatch):
    monkeypatch.setattr(_load_into, "_WINDOW_BYTES", MIB)
    tensors = {f"t{i}": random_tensor("F32", [64 << 10], seed=i) for i in range(64)}
    tensors |= {f"d{i}": random_tensor("BF16", [4096], seed=i) for i in range(8)}
    path = write_checkpoint(tmp_path / "m.safetensors", tensors)
    targets = {name: poisoned(shape, torch.bfloat16) for name, (_, shape, _) in tensors.items()}
    with pytest.raises(inrush.Error) as caught:
        inrush.torch.load_into(path, targets, convert=True, progress=at_first_bytes(lambda: cut(path)))
    assert caught.value.code == "corrupt_checkpoint"
    changed = {name for name, tensor in targets.items() if not is_poison(tensor)}
    assert changed and changed <= set(caught.value.overwritten)
    assert len(changed) < len(targets)


def test_after_a_failure_the_same_targets_load(make_checkpoint, slow_loader):
    path, tensors, targets = many(make_checkpoint)
    with pytest.raises(TimeoutError):
        inrush.torch.load_into(path, targets, loader=slow_loader, timeout=0.03)
    inrush.torch.load_into(path, targets, loader=slow_loader)
    assert_equal(targets, tensors)


def test_the_timeout_is_for_all_devices_together(make_checkpoint, monkeypatch):
    path = make_checkpoint("m.safetensors", {"cpu": ("U8", [3]), "other": ("U8", [3])})
    given = []

    class Run(_load_into._DeviceRun):
        def __init__(self, checkpoint, device, pairs, options):
            given.append(options.timeout)
            super().__init__(checkpoint, "cpu", pairs, options)

    monkeypatch.setattr(_load_into._Pair, "device", property(lambda pair: pair.name))
    monkeypatch.setattr(_load_into, "_DeviceRun", Run)
    model = {name: torch.zeros(3, dtype=torch.uint8) for name in ("cpu", "other")}
    inrush.torch.load_into(path, model, timeout=60)
    assert given[0] == 60
    assert 0 < given[1] < 60
