"""The engine behind Python on the fake GPUs: two devices over host memory, in this process."""
import contextlib
import gc
import os
import threading

import inrush
import inrush.torch
import pytest
import torch
from conftest import random_tensor, tensors_of_every_dtype, write_checkpoint
from fake_driver import LAUNCH_FAILED, OUT_OF_MEMORY, POISON
from inrush._inrush import Request
from inrush.torch import _load_into, _memory
from resources import descriptor_count, thread_count, write_sparse

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 1 << 20
UUIDS = ["GPU-f4ce0000-0011-2233-4455-66778899aabb", "MIG-f4ce0001-0011-2233-4455-66778899aabb"]


@pytest.fixture
def model(make_checkpoint):
    tensors = tensors_of_every_dtype()
    return make_checkpoint("model", tensors, shards=3, metadata={"a": "b"}), tensors


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """(path, tensors): 32 MiB in 128 tensors."""
    tensors = {f"t{i:03}": random_tensor("BF16", [128, 1024], seed=i) for i in range(128)}
    return write_checkpoint(tmp_path_factory.mktemp("many") / "many.safetensors", tensors), tensors


def open_loader(driver, **options):
    return inrush.Loader(cuda_library=driver.path, **options)


def assert_on_device(driver, loaded, tensors):
    assert set(loaded) == set(tensors)
    for name, (_, _, data) in tensors.items():
        assert driver.bytes_of(loaded[name]) == data, name


# Devices

def test_devices(driver):
    assert open_loader(driver).devices() == [("cuda:0", UUIDS[0]), ("cuda:1", UUIDS[1]), ("cpu", "")]


def test_current_device(driver, model):
    loader = open_loader(driver)
    assert loader.current_device() == "cuda:0"  # no context is current
    with driver.current(1):
        assert loader.current_device() == "cuda:1"
        loaded = inrush.load(model[0], "cuda", loader=loader)
    assert {tensor.device for tensor in loaded.values()} == {"cuda:1"}
    assert loader.current_device() == "cuda:0"


@pytest.mark.parametrize(("device", "number"), [
    ("cuda:0", 0), ("cuda:1", 1), (1, 1), ("1", 1), (UUIDS[0], 0), (UUIDS[1], 1),
    (torch.device("cuda", 1), 1),
])
def test_every_dtype_on_every_spelling(driver, model, device, number):
    path, tensors = model
    loader = open_loader(driver)
    loaded = inrush.load(path, device, loader=loader)
    assert list(loaded) == list(inrush.open(path))
    assert loaded.metadata == {"a": "b"}
    for name, tensor in loaded.items():
        dtype, shape, data = tensors[name]
        assert (tensor.dtype, list(tensor.shape), tensor.device) == (dtype, shape, f"cuda:{number}")
        assert tensor.__dlpack_device__() == (2, number)
        assert loader.copy_to_host(tensor) == data, name
    assert loaded.report.complete
    assert loaded.report.device.startswith(f"cuda:{number}")
    assert loaded.report.pinned_peak_bytes + loaded.report.window_peak_bytes > 0


@pytest.mark.parametrize("device", [
    "cuda:2", 7, "GPU-00000000-0011-2233-4455-66778899aabb", "GPU-f4ce0000", "MIG-x",
])
def test_devices_that_are_not_there(driver, model, device):
    with pytest.raises(inrush.Error) as caught:
        inrush.load(model[0], device, loader=open_loader(driver))
    assert caught.value.code == "environment_unfit"
    assert str(device) in str(caught.value)


def test_an_unknown_uuid_is_told_the_known_ones(driver, model):
    with pytest.raises(inrush.Error) as caught:
        inrush.load(model[0], "GPU-11111111-2222-3333-4444-555555555555", loader=open_loader(driver))
    assert all(f"cuda:{i} ({uuid})" in str(caught.value) for i, uuid in enumerate(UUIDS))


def no_library(driver, monkeypatch):
    driver.path += ".absent"


def old_driver(driver, monkeypatch):
    driver.set_driver_version(11080)


def no_device(driver, monkeypatch):
    driver.set_device_count(0)


@pytest.mark.parametrize(("spoil", "reason"), [
    (no_library, r"libfake\.so\.1\.absent"), (old_driver, r"11\.8.*525"), (no_device, "CUDA_VISIBLE_DEVICES"),
])
def test_where_there_is_no_gpu(driver, monkeypatch, model, spoil, reason):
    path, tensors = model
    spoil(driver, monkeypatch)
    loader = open_loader(driver)
    for device in ("cuda:0", "cuda", UUIDS[0]):
        with pytest.raises(inrush.Error, match=reason) as caught:
            inrush.load(path, device, loader=loader)
        assert caught.value.code == "environment_unfit"
    assert loader.devices() == [("cpu", "")]
    arrays = inrush.load(path, "cpu", loader=loader, only="F32.*")
    assert arrays["F32.matrix"].tobytes() == tensors["F32.matrix"][2]


# Native tensors

def test_tensors_outlive_their_loader_and_free_their_slabs(driver, many):
    path, tensors = many
    loaded = inrush.load(path, "cuda:1", loader=open_loader(driver, piece_bytes="1MiB"))
    gc.collect()
    assert driver.live().allocations > 0
    for name in list(tensors)[1:]:
        del loaded[name]
    tensor = loaded.pop("t000")
    assert open_loader(driver).copy_to_host(tensor) == tensors["t000"][2]
    assert driver.live().contexts == 1  # the tensor's
    del tensor
    assert driver.live().contexts == 0


def test_host_views_are_refused(driver, model):
    tensor = inrush.load(model[0], 0, loader=open_loader(driver))["F32.matrix"]
    with pytest.raises(BufferError, match="copy_to_host"):
        memoryview(tensor)


def test_a_capsule_keeps_the_memory(driver, many):
    loaded = inrush.load(many[0], 0, loader=open_loader(driver), only="t000")
    capsule = loaded["t000"].__dlpack__(max_version=(1, 0))
    del loaded
    gc.collect()
    assert driver.live().allocations > 0
    del capsule
    assert driver.live().allocations == 0


def test_parts(driver, make_checkpoint):
    tensors = {"rows": random_tensor("BF16", [64, 6]), "columns": random_tensor("F32", [50, 40, 3])}
    path = make_checkpoint("s.safetensors", tensors)
    loader = open_loader(driver)
    loaded = inrush.load(path, 0, loader=loader, slices={"rows": (0, 3, 50), "columns": (1, 7, 20)})
    expected = inrush.torch.load(path)["columns"][:, 7:27].contiguous()
    assert loader.copy_to_host(loaded["columns"]) == expected.numpy().tobytes()
    assert loader.copy_to_host(loaded["rows"]) == tensors["rows"][2][36:636]
    assert loaded["columns"].shape == (50, 20, 3)


def test_threads_share_a_loader_and_both_devices(driver, many):
    path, tensors = many
    loader = open_loader(driver, staging_bytes="256MiB", piece_bytes="1MiB")
    wrong = []

    def load(number):
        try:
            loaded = inrush.load(path, f"cuda:{number % 2}", loader=loader, only=f"t{number}*")
            wrong.extend(name for name in loaded if loader.copy_to_host(loaded[name]) != tensors[name][2])
            wrong.extend([] if len(loaded) > 7 else ["too few"])
        except inrush.Error as error:
            wrong.append(error)

    threads = [threading.Thread(target=load, args=(number % 2,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pinned_memory_refused(driver, many):
    path, tensors = many
    driver.set_pinned_bytes_max(0)
    loader = inrush.Loader(cuda_library=driver.path, piece_bytes="2MiB")  # no windows, however few CPUs
    loaded = inrush.load(path, 0, loader=loader)
    assert all(loader.copy_to_host(loaded[name]) == data for name, (_, _, data) in tensors.items())
    assert [(step.what, step.count > 0) for step in loaded.report.fallbacks] == [("pinned memory", True)]
    assert loaded.report.pinned_peak_bytes == 0


def test_out_of_device_memory(driver, many):
    path, tensors = many
    loader = open_loader(driver)
    driver.set_device_bytes(8 * MIB)
    with pytest.raises(MemoryError) as caught:
        inrush.load(path, 1, loader=loader)
    assert caught.value.code == "out_of_memory"
    assert "cuda:1" in str(caught.value)
    assert driver.live().allocations == 0
    driver.set_device_bytes(64 * MIB)
    assert loader.copy_to_host(inrush.load(path, 1, loader=loader)["t101"]) == tensors["t101"][2]


def test_a_copy_that_fails(driver, many):
    path, tensors = many
    loader = open_loader(driver, piece_bytes="1MiB")
    driver.fail_copy(5, LAUNCH_FAILED)
    with pytest.raises(inrush.Error) as caught:
        inrush.load(path, 0, loader=loader)
    assert caught.value.code == "device_failed"
    assert "CUDA_ERROR_LAUNCH_FAILED" in str(caught.value)
    assert not caught.value.report.complete
    # The context of that device is beyond use; the other device's is not.
    assert loader.copy_to_host(inrush.load(path, 1, loader=loader)["t000"]) == tensors["t000"][2]


# Memory of the caller

def request(device="cuda:0", **fields):
    asked = Request()
    asked.device = device
    for name, value in fields.items():
        setattr(asked, name, value)
    return asked


def take_all(loader, path, asked):
    load = loader.start(inrush.open(path), asked)
    taken = []
    while batch := load.take():
        taken += batch
    return {tensor.name: tensor for tensor in taken}


def test_memory_of_the_caller(driver, many):
    path, tensors = many
    loader = open_loader(driver)
    sizes = []

    def allocate(nbytes):
        sizes.append(nbytes)
        slab = driver.empty(nbytes)
        return slab.data_ptr(), slab, 0

    loaded = take_all(loader, path, request(allocate=allocate))
    assert sum(sizes) >= 32 * MIB
    for name, (_, _, data) in tensors.items():
        tensor = loaded[name]
        assert isinstance(tensor.owner, torch.Tensor)
        assert 0 <= tensor.data_ptr - tensor.owner.data_ptr() < tensor.owner.nbytes
        assert driver.read(tensor.data_ptr, tensor.nbytes, 0) == data, name


class Oops(Exception):
    pass


@pytest.mark.parametrize("kind", [Oops, KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("nth", [1, 3])
def test_an_allocation_that_raises(driver, many, kind, nth):
    path, tensors = many
    loader = open_loader(driver, piece_bytes="1MiB")
    calls = []

    def allocate(nbytes):
        calls.append(nbytes)
        if len(calls) == nth:
            raise kind("from the allocator")
        slab = driver.empty(nbytes)
        return slab.data_ptr(), slab, None

    asked = request(allocate=allocate, window_bytes=4 * MIB)
    with pytest.raises(kind, match="^from the allocator$") as caught:
        take_all(loader, path, asked)
    assert type(caught.value) is kind
    del caught
    assert driver.live().allocations == 0
    loaded = take_all(loader, path, asked)
    assert driver.read(loaded["t100"].data_ptr, loaded["t100"].nbytes, 0) == tensors["t100"][2]


NONSENSE = {
    "nothing": lambda driver: None,
    "a number": lambda driver: 5,
    "two": lambda driver: (4096, None),
    "text": lambda driver: ("4096", None, None),
    "negative": lambda driver: (-1, None, None),
    "too large": lambda driver: (1 << 64, None, None),
    "null": lambda driver: (0, None, None),
    "unaligned": lambda driver: (4097, None, None),
    "a stream that is text": lambda driver: (4096, None, "stream"),
}


@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_an_allocation_of_nonsense(driver, many, device, kind):
    path, tensors = many
    loader = open_loader(driver)
    with pytest.raises((inrush.Error, TypeError)) as caught:
        take_all(loader, path, request(device, allocate=lambda nbytes: NONSENSE[kind](driver)))
    if kind in ("null", "unaligned"):
        assert caught.value.code == "invalid_request"
        assert "allocate() returned" in str(caught.value)
    loaded = inrush.load(path, 0, loader=loader)
    assert loader.copy_to_host(loaded["t000"]) == tensors["t000"][2]


def test_an_allocation_of_memory_that_is_gone(driver, many):
    """The driver refuses it; here the fake counts a misuse, which is the caller's."""
    path, tensors = many
    loader = open_loader(driver)
    address = driver.allocate(64 * MIB)
    driver.free(address)
    with pytest.raises(inrush.Error) as caught:
        take_all(loader, path, request(allocate=lambda nbytes: (address, None, None)))
    assert caught.value.code == "device_failed"
    assert "no allocation of this device" in driver.last_misuse().decode()
    driver.reset()
    assert loader.copy_to_host(inrush.load(path, 0, loader=loader)["t000"]) == tensors["t000"][2]


# torch

def test_torch_load(driver, fake_torch, model):
    path, tensors = model
    loaded = inrush.torch.load(path, "cuda:1", loader=open_loader(driver), unsupported="uint8")
    assert list(loaded) == list(inrush.open(path))
    assert_on_device(driver, loaded, tensors)
    assert loaded["F32.matrix"].dtype == torch.float32
    assert loaded["F4.matrix"].shape == (3, 4)
    assert loaded["BF16.scalar"].shape == ()
    assert all(tensor.is_contiguous() for tensor in loaded.values())
    assert {device for _, device, _ in fake_torch.allocations} == {1}


def test_torch_tensors_are_aligned_views_of_slabs(driver, fake_torch, make_checkpoint):
    tensors = {f"t{i}": random_tensor(dtype, [i % 5 + 1], seed=i)
               for i, dtype in enumerate(["U8", "F64", "BF16", "F8_E4M3", "C64", "U16"] * 20)}
    path = make_checkpoint("odd.safetensors", tensors)
    loaded = inrush.torch.load(path, 0, loader=open_loader(driver))
    assert_on_device(driver, loaded, tensors)
    storages = {tensor.untyped_storage().data_ptr() for tensor in loaded.values()}
    assert len(storages) == len(fake_torch.allocations) == 1
    assert {tensor.data_ptr() % 256 for tensor in loaded.values()} == {0}


def test_torch_allocates_on_the_thread_that_loads(driver, fake_torch, many):
    loaded = []
    thread = threading.Thread(
        target=lambda: loaded.append(inrush.torch.load(many[0], 0, loader=open_loader(driver))))
    thread.start()
    ident = thread.ident
    thread.join()
    assert {thread for _, _, thread in fake_torch.allocations} == {ident}
    assert_on_device(driver, loaded[0], many[1])


def test_large_torch_tensors_lie_alone(driver, fake_torch, tmp_path):
    size = 64 * MIB
    tensors = {"a": ("U8", [size]), "b": ("U8", [100]), "c": ("BF16", [size])}
    path = write_sparse(tmp_path / "large.safetensors", tensors)
    loaded = inrush.torch.load(path, 0, loader=open_loader(driver))
    storages = {name: tensor.untyped_storage() for name, tensor in loaded.items()}
    assert storages["a"].nbytes() == size and storages["c"].nbytes() == 2 * size
    assert len({storage.data_ptr() for storage in storages.values()}) == 3
    before = driver.live().allocated_bytes
    del storages, loaded["a"]
    assert before - driver.live().allocated_bytes == size
    assert not any(driver.bytes_of(loaded["b"]))


def test_torch_tensors_keep_their_slab_and_nothing_else(driver, fake_torch, many):
    path, tensors = many
    loader = open_loader(driver, piece_bytes="1MiB")
    kept = {}
    for name, tensor in inrush.torch.stream(path, 0, loader=loader, window_bytes=8 * MIB):
        if name in ("t003", "t090"):
            kept[name] = tensor
        del tensor
    del loader
    gc.collect()
    assert 0 < driver.live().allocated_bytes <= 2 * 2 * MIB
    assert_on_device(driver, kept, {name: tensors[name] for name in kept})


def test_torch_stream_bounds_device_memory(driver, fake_torch, many):
    path, tensors = many
    window, seen, peak = 8 * MIB, 0, 0
    loader = open_loader(driver, piece_bytes="1MiB")
    for name, tensor in inrush.torch.stream(path, 0, loader=loader, window_bytes=window):
        assert driver.bytes_of(tensor) == tensors[name][2]
        peak = max(peak, driver.live().allocated_bytes)
        seen += 1
        del tensor
    assert seen == len(tensors)
    assert peak <= window + window // 4


@pytest.mark.parametrize("taken", [1, 20])
def test_a_torch_stream_that_is_closed(driver, fake_torch, many, taken):
    path, tensors = many
    threads, descriptors = thread_count(), descriptor_count()
    loader = open_loader(driver)
    stream = inrush.torch.stream(path, 0, loader=loader, window_bytes=4 * MIB)
    kept = dict(next(stream) for _ in range(taken))
    stream.close()
    assert_on_device(driver, kept, {name: tensors[name] for name in kept})
    kept.clear()
    assert driver.live().allocations == 0
    loader.release_idle()
    assert driver.live().registrations == 0
    del loader
    assert (thread_count(), descriptor_count()) == (threads, descriptors)


def test_torch_out_of_memory(driver, fake_torch, many, monkeypatch):
    path, tensors = many
    loader = open_loader(driver)
    reason = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    def empty(size, **_):
        raise reason

    with monkeypatch.context() as patch:
        patch.setattr(fake_torch, "empty", empty, raising=False)
        with pytest.raises(MemoryError, match="torch has no .* bytes on cuda:0") as caught:
            inrush.torch.load(path, 0, loader=loader)
    assert isinstance(caught.value, inrush.Error) and caught.value.code == "out_of_memory"
    assert caught.value.__cause__ is reason
    assert_on_device(driver, inrush.torch.load(path, 0, loader=loader), tensors)


def test_torch_names_the_current_device(driver, fake_torch, model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for device in ("cuda", torch.device("cuda")):
        inrush.torch.load(model[0], device, loader=open_loader(driver), unsupported="uint8")
        assert {number for _, number, _ in fake_torch.allocations} == {1}


def test_a_load_waits_for_what_is_queued_before_it(driver, fake_torch, many):
    """Memory that torch hands out may still be read by kernels that are queued on the caller's stream."""
    path, tensors = many
    loaded = []
    thread = threading.Thread(
        target=lambda: loaded.append(inrush.torch.load(path, 0, loader=open_loader(driver))))
    with driver.busy(0):
        thread.start()
        while not driver.copy_count():  # copies are queued
            assert thread.is_alive()
        thread.join(0.2)
        assert thread.is_alive() and not loaded
    thread.join(60)
    assert_on_device(driver, loaded[0], tensors)


# load_into

def device_target(driver, shape, dtype=torch.float32, device=0):
    count = torch.Size(shape).numel() * dtype.itemsize
    return driver.empty(count, device).view(dtype).view(shape)


def is_poison(driver, tensor):
    return set(driver.bytes_of(tensor)) <= {POISON}


def test_load_into_two_devices_and_the_host(driver, fake_torch, make_checkpoint):
    tensors = {f"t{i:02}": random_tensor("BF16", [33, 7], seed=i) for i in range(30)}
    path = make_checkpoint("m", tensors, shards=3)
    targets = {}
    for i, name in enumerate(tensors):
        on_host = torch.zeros(33, 7, dtype=torch.bfloat16)
        targets[name] = on_host if i % 3 == 2 else device_target(driver, [33, 7], torch.bfloat16, i % 3)
    result = inrush.torch.load_into(path, targets, loader=open_loader(driver))
    assert result.loaded == list(inrush.open(path))
    devices = sorted(report.device.split()[0].rstrip(",") for report in result.reports)
    assert devices == ["cpu", "cuda:0", "cuda:1"]
    for i, (name, (_, _, data)) in enumerate(tensors.items()):
        target = targets[name]
        assert (target.view(torch.uint8).numpy().tobytes() if i % 3 == 2 else driver.bytes_of(target)) == data
    assert not fake_torch.allocations  # no second copy


def test_load_into_views_at_any_address(driver, fake_torch, make_checkpoint):
    sizes = [1, 3, 4096, 70001, 255, MIB + 1]
    tensors = {f"t{i}": random_tensor("U8", [size], seed=i) for i, size in enumerate(sizes)}
    base = driver.empty(sum(sizes) + 3 * len(sizes))
    targets, expected, start = {}, bytearray([POISON]) * base.nbytes, 1
    for (name, (_, _, data)), size in zip(tensors.items(), sizes, strict=True):
        targets[name] = base[start:start + size]
        expected[start:start + size] = data
        start += size + 3
    inrush.torch.load_into(make_checkpoint("m.safetensors", tensors), targets, loader=open_loader(driver))
    assert driver.bytes_of(base) == bytes(expected)


def test_load_into_refuses_before_the_first_byte(driver, fake_torch, make_checkpoint):
    path = make_checkpoint("m.safetensors", {"good": ("F32", [64]), "bad": ("F32", [4])})
    targets = {"good": device_target(driver, [64]), "bad": device_target(driver, [5])}
    with pytest.raises(inrush.Error, match="'bad'"):
        inrush.torch.load_into(path, targets, loader=open_loader(driver))
    assert is_poison(driver, targets["good"]) and is_poison(driver, targets["bad"])


def test_load_into_that_fails_names_what_it_reached(driver, fake_torch, make_checkpoint):
    """The copies wait for a busy stream, so the ring is full and most of the file unread when it is cut."""
    tensors = {f"t{i:03}": random_tensor("U8", [MIB // 8], seed=i) for i in range(128)}
    path = make_checkpoint("m", tensors, shards=2)
    targets = {name: device_target(driver, [MIB // 8], torch.uint8) for name in tensors}
    cut = path / "model-00002-of-00002.safetensors"
    loader = open_loader(driver, readers=1, piece_bytes="1MiB", staging_bytes="2MiB")
    busy = contextlib.ExitStack()

    def tell(loaded, planned):
        if driver.copy_count() and os.path.getsize(cut) == whole_bytes:
            assert loaded == 0
            os.truncate(cut, whole_bytes // 2)
            busy.close()

    whole_bytes = os.path.getsize(cut)
    with busy, pytest.raises(inrush.Error) as caught:
        busy.enter_context(driver.busy(0))
        inrush.torch.load_into(path, targets, loader=loader, progress=tell)
    assert caught.value.code == "corrupt_checkpoint" and str(cut) in str(caught.value)
    changed = {name for name, tensor in targets.items() if not is_poison(driver, tensor)}
    assert changed <= set(caught.value.overwritten) < set(targets)
    assert set(list(tensors)[::2]) <= changed  # of the first shard
    [note] = caught.value.__notes__
    assert "may have been overwritten" in note


def test_load_into_that_fails_on_the_second_device(driver, fake_torch, make_checkpoint):
    tensors = {f"t{i}": random_tensor("F32", [256], seed=i) for i in range(8)}
    path = make_checkpoint("m.safetensors", tensors)
    targets = {name: device_target(driver, [256], device=i // 4) for i, name in enumerate(tensors)}
    loader = open_loader(driver)
    inrush.torch.load_into(path, dict(list(targets.items())[:4]), loader=loader, only="t[0-3]")
    driver.fail(b"cuStreamCreate", 1, OUT_OF_MEMORY)  # of the second device, which has none yet
    with pytest.raises(inrush.Error, match="cuda:1") as caught:
        inrush.torch.load_into(path, targets, loader=loader)
    assert caught.value.overwritten == ["t0", "t1", "t2", "t3"]
    assert all(is_poison(driver, targets[f"t{i}"]) for i in range(4, 8))
    for name in caught.value.overwritten:
        assert driver.bytes_of(targets[name]) == tensors[name][2]


def test_load_into_that_converts(driver, fake_torch, make_checkpoint, monkeypatch):
    """What is converted comes into memory of torch's and is copied by torch; the rest goes to its place."""
    tensors = {f"t{i}": random_tensor("F32" if i % 2 else "BF16", [40, 3], seed=i) for i in range(10)}
    path = make_checkpoint("m.safetensors", tensors)
    dtype = torch.bfloat16
    targets = {name: torch.zeros(40, 3, dtype=dtype) if i % 2 else device_target(driver, [40, 3], dtype)
               for i, name in enumerate(tensors)}
    monkeypatch.setattr(_load_into._Pair, "device", "cuda:0")
    on_device = _memory.DeviceMemory.tensor

    def on_host(self, loaded):
        tensor = on_device(self, loaded)
        return torch.frombuffer(bytearray(driver.bytes_of(tensor)), dtype=tensor.dtype).view(tensor.shape)

    monkeypatch.setattr(_memory.DeviceMemory, "tensor", on_host)
    result = inrush.torch.load_into(path, targets, loader=open_loader(driver), convert=True)
    assert len(result.reports) == 1 and len(result.loaded) == 10
    whole = inrush.torch.load(path)
    for i, (name, target) in enumerate(targets.items()):
        if i % 2:
            assert torch.equal(target.view(torch.uint8), whole[name].bfloat16().view(torch.uint8))
        else:
            assert driver.bytes_of(target) == tensors[name][2]
    assert sum(size for size, _, _ in fake_torch.allocations) >= 5 * 480
