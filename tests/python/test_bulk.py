"""Many tensors at once: views of slabs, made by the module, and the collector that rests meanwhile."""
import gc
import weakref

import inrush
import inrush.torch
import pytest
import torch
from conftest import random_tensor, tensors_of_every_dtype
from inrush import _loads
from inrush._inrush import Request, Views
from inrush.torch import _memory

VIEWS_AT_ONCE = 1024  # of Load.take_views()


class HostSlabs(_memory.DeviceMemory):
    """Slabs of torch's in memory that this test can read."""

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.slabs = []

    def allocate(self, nbytes):
        whole = torch.empty(nbytes + 256, dtype=torch.uint8, device="cpu")
        start = -whole.data_ptr() % 256
        slab = whole[start:start + nbytes]
        self.slabs.append(weakref.ref(slab))
        return slab.data_ptr(), slab, None


def start(path, memory, **fields):
    request = Request()
    request.allocate = memory.allocate if memory else None
    for name, value in fields.items():
        setattr(request, name, value)
    return inrush.Loader().start(inrush.open(path), request)


def take_all(load, memory):
    loaded = {}
    while memory.take(load, loaded):
        pass
    load.close()
    return loaded


def raw(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(params=["fast", "plain"])
def memory(request, monkeypatch):
    """By both functions that views are made by."""
    if request.param == "plain":
        monkeypatch.setattr(_memory, "fastest_view", lambda: _memory.plain_view)
    else:
        assert _memory.fastest_view() is not _memory.plain_view
    return HostSlabs()


# What the views are

def test_every_dtype_is_exact(memory, make_checkpoint):
    tensors = tensors_of_every_dtype()
    loaded = take_all(start(make_checkpoint("model", tensors, shards=3), memory), memory)
    expected = inrush.torch.load(make_checkpoint("model", tensors, shards=3), unsupported="uint8")
    assert set(loaded) == set(tensors)
    for name, (_, _, data) in tensors.items():
        tensor, other = loaded[name], expected[name]
        assert raw(tensor) == data, name
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        assert tensor.stride() == other.stride(), name
        assert type(tensor) is torch.Tensor and not tensor.requires_grad


def test_a_slab_that_is_no_multiple_of_an_element(memory, make_checkpoint):
    tensors = {name: random_tensor(dtype, shape) for name, dtype, shape in [
        ("a", "F64", [3]), ("b", "C64", [5, 1]), ("z", "U8", [7]),
    ]}
    loaded = take_all(start(make_checkpoint("odd.safetensors", tensors), memory), memory)
    [slab] = {tensor.untyped_storage().nbytes() - 256 for tensor in loaded.values()}
    assert slab % 8
    assert {name: raw(tensor) for name, tensor in loaded.items()} == {
        name: data for name, (_, _, data) in tensors.items()
    }


def test_tensors_without_bytes(memory, make_checkpoint):
    path = make_checkpoint("empty.safetensors", {
        "none": ("F32", [0, 3]), "six": ("F6_E2M3", [0, 4]), "pairs": ("F4", [0, 6]), "one": ("F16", [2]),
    })
    loaded = take_all(start(path, memory), memory)
    assert {name: (tensor.dtype, list(tensor.shape)) for name, tensor in loaded.items()} == {
        "none": (torch.float32, [0, 3]), "six": (torch.uint8, [0]), "pairs": (torch.float4_e2m1fn_x2, [0, 3]),
        "one": (torch.float16, [2]),
    }


def test_a_dimension_that_torch_cannot_count(memory, make_checkpoint):
    path = make_checkpoint("wide.safetensors", {"wide": ("U8", [0, 2**63]), "one": ("F16", [2])})
    with pytest.raises(inrush.Error, match="'wide'") as caught:
        take_all(start(path, memory), memory)
    assert caught.value.code == "invalid_request"


def test_parts_of_tensors(memory, make_checkpoint):
    path = make_checkpoint("parts.safetensors", {f"t{i}": random_tensor("F32", [8, 6], i) for i in range(4)})
    whole = inrush.torch.load(path)
    loaded = take_all(start(path, memory, slices={"t1": (0, 2, 3), "t2": (1, 1, 4)}), memory)
    assert raw(loaded["t1"]) == raw(whole["t1"][2:5])
    assert raw(loaded["t2"]) == raw(whole["t2"][:, 1:5].contiguous())
    assert loaded["t2"].stride() == (4, 1)


def test_views_share_the_storage_of_their_slab_and_keep_it(memory, make_checkpoint):
    tensors = {f"t{i}": random_tensor("BF16", [64], seed=i) for i in range(20)}
    loaded = take_all(start(make_checkpoint("m.safetensors", tensors), memory), memory)
    assert len({tensor.untyped_storage().data_ptr() for tensor in loaded.values()}) == 1
    kept = loaded.pop("t7")
    memory.forget()
    del loaded
    gc.collect()
    assert raw(kept) == tensors["t7"][2]


def test_what_is_forgotten_frees_the_slab(memory, make_checkpoint):
    path = make_checkpoint("m.safetensors", {"a": ("BF16", [64])})
    loaded = take_all(start(path, memory), memory)
    del loaded
    [slab] = memory.slabs
    assert slab() is not None  # for the next view of it
    memory.forget()
    assert slab() is None


def test_autograd_takes_no_two_tensors_for_one(memory, make_checkpoint):
    """Buffers are written between forward and backward, and a result may be written into a loaded tensor."""
    tensors = {name: ("F32", [4, 4]) for name in ("weight", "buffer", "target", "other")}
    loaded = take_all(start(make_checkpoint("m.safetensors", tensors), memory), memory)
    weight = torch.nn.Parameter(loaded["weight"].zero_())
    inputs = torch.ones(4, 4, requires_grad=True)
    result = inputs @ weight
    loaded["buffer"].fill_(1)
    loaded["target"].copy_(inputs * 2)
    result.sum().backward()
    assert torch.equal(weight.grad, torch.full((4, 4), 4.0))
    assert loaded["target"].requires_grad and not loaded["other"].requires_grad
    assert weight.data_ptr() == loaded["weight"].data_ptr()


@pytest.mark.parametrize("surroundings", [torch.inference_mode, torch.no_grad, lambda: torch.device("meta")])
def test_inside_contexts_of_torch(memory, make_checkpoint, surroundings):
    tensors = {f"t{i}": random_tensor("F16", [3, 2], seed=i) for i in range(3)}
    path = make_checkpoint("m.safetensors", tensors)
    with surroundings():
        loaded = take_all(start(path, memory), memory)
    assert {name: raw(tensor) for name, tensor in loaded.items()} == {
        name: data for name, (_, _, data) in tensors.items()
    }


OTHER_VIEWS = {
    "counts from the storage": lambda base, *place: torch.as_strided(base, *place).data,
    "autograd knows it": lambda base, shape, strides, offset: torch.as_strided(
        base, shape, strides, base.storage_offset() + offset),
    "has no shape": lambda base, shape, strides, offset: base[offset:offset + 4],
    "has other strides": lambda *place: _memory.plain_view(*place).clone(),
    "takes other arguments": lambda base: base,
    "is of another type": lambda *place: _memory.plain_view(*place).view(torch.float16),
}


@pytest.mark.parametrize("kind", [*OTHER_VIEWS, "is gone"])
def test_a_torch_whose_fast_view_is_another(monkeypatch, kind):
    guards = torch._C._dynamo.guards
    assert _memory.fastest_view() is guards._reinterpret_tensor
    if kind in OTHER_VIEWS:
        monkeypatch.setattr(guards, "_reinterpret_tensor", OTHER_VIEWS[kind])
    else:
        monkeypatch.delattr(guards, "_reinterpret_tensor")
    assert _memory.fastest_view() is _memory.plain_view


# Taking them

def test_many_come_in_takes_of_a_thousand_and_in_order(memory, make_checkpoint):
    names = [f"layer.{i}.gewicht-\u00e9" for i in range(2500)]
    tensors = {name: ("U8", [i % 3 + 1], bytes([i % 251]) * (i % 3 + 1)) for i, name in enumerate(names)}
    load = start(make_checkpoint("many.safetensors", tensors), memory)
    loaded, counts = dict.fromkeys(names), []
    while count := memory.take(load, loaded):
        counts.append(count)
    assert sum(counts) == 2500 and max(counts) <= VIEWS_AT_ONCE
    assert load.done and load.report().complete
    assert list(loaded) == names
    assert all(raw(loaded[name]) == data for name, (_, _, data) in tensors.items())
    assert memory.take(load, loaded) == 0


def test_forms_and_bases_are_asked_for_once(make_checkpoint):
    forms, bases = [], []

    def form(*asked):
        forms.append(asked)
        return _memory._form(*asked)

    def base(slab, element):
        bases.append(element)
        return _memory._base(slab, element)

    memory = HostSlabs()
    memory._views = Views(form=form, base=base, view=_memory.plain_view, empty=len)
    tensors = {f"t{i}": ("F32" if i % 2 else "I32", [2, i % 4]) for i in range(200) if i % 4}
    take_all(start(make_checkpoint("m.safetensors", tensors), memory), memory)
    assert sorted(forms) == [("F32", (2, 1), 8), ("F32", (2, 3), 24), ("I32", (2, 2), 16)]
    assert sorted(map(str, bases)) == ["torch.float32", "torch.int32"]


class Oops(Exception):
    pass


@pytest.mark.parametrize("kind", [Oops, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("place", ["form", "base", "view", "empty"])
def test_a_function_that_raises(make_checkpoint, kind, place):
    def fail(*_):
        raise kind("from a function")

    functions = {"form": _memory._form, "base": _memory._base, "view": _memory.plain_view, "empty": len}
    memory = HostSlabs()
    memory._views = Views(**(functions | {place: fail}))
    path = make_checkpoint("m.safetensors", {"a": ("F32", [4]), "none": ("F32", [0]), "b": ("F32", [4])})
    load = start(path, memory, only=["none"] if place == "empty" else ["a", "b"])
    with pytest.raises(kind, match="^from a function$"):
        take_all(load, memory)
    load.close()
    memory.forget()
    assert all(slab() is None for slab in memory.slabs)


@pytest.mark.parametrize("nonsense", [None, (1, 2), (torch.uint8, [4], (1,))])
def test_a_form_of_nonsense(make_checkpoint, nonsense):
    memory = HostSlabs()
    memory._views = Views(form=lambda *_: nonsense, base=_memory._base, view=_memory.plain_view, empty=len)
    load = start(make_checkpoint("m.safetensors", {"a": ("F32", [4])}), memory)
    with pytest.raises((TypeError, RuntimeError)):
        take_all(load, memory)


def test_a_base_whose_elements_have_no_bytes(make_checkpoint):
    memory = HostSlabs()
    memory._views = Views(
        form=_memory._form, base=lambda *_: (None, 0, 0), view=_memory.plain_view, empty=len)
    load = start(make_checkpoint("m.safetensors", {"a": ("F32", [4])}), memory)
    with pytest.raises(ValueError, match="elements without bytes"):
        take_all(load, memory)


def test_memory_of_the_engine_is_refused(make_checkpoint):
    load = start(make_checkpoint("m.safetensors", {"a": ("F32", [4])}), None)
    with pytest.raises(inrush.Error, match="memory of this load") as caught:
        take_all(load, HostSlabs())
    assert caught.value.code == "invalid_request"


def test_a_function_that_forgets(make_checkpoint):
    """What is being made keeps what it is made of."""
    memory = HostSlabs()

    def view(*place):
        memory.forget()
        return _memory.plain_view(*place)

    memory._views = Views(form=_memory._form, base=_memory._base, view=view, empty=len)
    tensors = {f"t{i}": random_tensor("F32", [4], seed=i) for i in range(5)}
    loaded = take_all(start(make_checkpoint("m.safetensors", tensors), memory), memory)
    assert {name: raw(tensor) for name, tensor in loaded.items()} == {
        name: data for name, (_, _, data) in tensors.items()
    }


def test_a_cycle_through_views_is_found():
    class Holder:
        def form(self, *_):
            pass

    holder = Holder()
    holder.views = Views(form=holder.form, base=len, view=len, empty=len)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


# The collector

@pytest.fixture
def collections():
    """Numbers of the generations that were collected."""
    seen = []

    def tell(phase, info):
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(tell)
    yield seen
    gc.callbacks.remove(tell)


@pytest.fixture
def thousands(make_checkpoint):
    return make_checkpoint("many.safetensors", {f"t{i}": ("U8", [1], b"1") for i in range(5000)})


def test_the_collector_rests_while_tensors_are_made(thousands, collections):
    checkpoint = inrush.open(thousands)
    gc.collect()
    collections.clear()
    loaded = inrush.torch.load(checkpoint, progress=False)
    assert gc.isenabled() and len(loaded) == 5000
    assert len(collections) <= 1  # 7 otherwise


def test_a_collector_that_is_off_stays_off(thousands):
    gc.disable()
    try:
        inrush.torch.load(thousands)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_is_on_after_an_error(thousands, monkeypatch):
    def fail(self, loaded):
        assert not gc.isenabled()
        raise Oops

    monkeypatch.setattr(_memory.HostMemory, "tensor", fail)
    with pytest.raises(Oops):
        inrush.torch.load(thousands)
    assert gc.isenabled()


def test_the_collector_rests_for_no_long_load(thousands, monkeypatch):
    states = []
    monkeypatch.setattr(_loads, "_PAUSE_SECONDS_MAX", 0.0)
    plain = _memory.HostMemory.take

    def take(self, load, into):
        states.append(gc.isenabled())
        return plain(self, load, into)

    monkeypatch.setattr(_memory.HostMemory, "take", take)
    inrush.torch.load(thousands)
    assert states[0] is False and set(states[1:]) == {True}
    assert gc.isenabled()
