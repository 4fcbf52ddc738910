"""inrush.torch.load and inrush.torch.stream on the CPU, with the real torch."""
import copy
import gc
import io
import pickle
import threading
import weakref

import inrush
import inrush.torch
import pytest
import torch
from conftest import DTYPE_BITS, random_tensor, tensors_of_every_dtype
from resources import descriptor_count, resident_bytes, thread_count, write_sparse

MIB = 1 << 20
DTYPES = {
    "BOOL": torch.bool, "F4": torch.float4_e2m1fn_x2, "U8": torch.uint8, "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "I16": torch.int16,
    "U16": torch.uint16, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32,
    "U32": torch.uint32, "F32": torch.float32, "C64": torch.complex64, "F64": torch.float64,
    "I64": torch.int64, "U64": torch.uint64,
}
INEXPRESSIBLE = {"F6_E2M3", "F6_E3M2"}


def raw(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def expressible(tensors):
    return {name: entry for name, entry in tensors.items() if entry[0] not in INEXPRESSIBLE}


def assert_equal(loaded, tensors):
    assert set(loaded) == set(tensors)
    for name, (_, _, data) in tensors.items():
        assert raw(loaded[name]) == data, name


@pytest.fixture
def model(make_checkpoint):
    """(path, tensors): all that torch has a type for, over three files."""
    tensors = expressible(tensors_of_every_dtype())
    metadata = {"format": "pt", "made_by": "a test"}
    return make_checkpoint("model", tensors, shards=3, metadata=metadata), tensors


@pytest.fixture
def many_small(make_checkpoint):
    """(path, tensors): 64 tensors of 256 KiB."""
    tensors = {f"t{i:02}": random_tensor("BF16", [128, 1024], seed=i) for i in range(64)}
    return make_checkpoint("many.safetensors", tensors), tensors


# load: what the tensors are

def test_the_table_names_every_dtype_of_the_format():
    assert set(DTYPES) | INEXPRESSIBLE == set(DTYPE_BITS)


def test_every_dtype_is_exact(model):
    path, tensors = model
    loaded = inrush.torch.load(path)
    assert_equal(loaded, tensors)
    for name, (dtype, shape, _) in tensors.items():
        tensor = loaded[name]
        expected = [*shape[:-1], shape[-1] // 2] if dtype == "F4" else shape
        assert (tensor.dtype, list(tensor.shape)) == (DTYPES[dtype], expected), name
        assert tensor.device == torch.device("cpu")
        assert tensor.is_contiguous() and not tensor.requires_grad
        assert loaded.dtypes[name] == dtype


def test_values_of_complex_and_wide_integers(make_checkpoint):
    path = make_checkpoint("c.safetensors", {
        "c": ("C64", [2], torch.tensor([1 + 2j, -3.5j]).numpy().tobytes()),
        "u": ("U64", [2], (2**64 - 1).to_bytes(8, "little") + bytes(8)),
        "h": ("U16", [1], b"\xff\xff"),
    })
    loaded = inrush.torch.load(path)
    assert loaded["c"].tolist() == [1 + 2j, -3.5j]
    assert loaded["u"].tolist() == [2**64 - 1, 0]
    assert loaded["h"].tolist() == [65535]


def test_dict_is_in_the_order_of_the_checkpoint(model):
    path, _ = model
    checkpoint = inrush.open(path)
    loaded = inrush.torch.load(path)
    assert list(loaded) == list(checkpoint)
    assert list(inrush.torch.load(path, only=["U8.*", "BOOL.*"])) == [
        name for name in checkpoint if name.startswith(("U8.", "BOOL."))
    ]


def test_report_and_metadata_come_along(model):
    path, tensors = model
    loaded = inrush.torch.load(path)
    assert loaded.metadata == {"format": "pt", "made_by": "a test"}
    assert loaded.report.complete
    assert loaded.report.tensor_count == len(tensors)
    assert loaded.report.loaded_bytes == sum(len(data) for _, _, data in tensors.values())
    assert loaded.report.device == "cpu"


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), torch.device("cpu", 0), "cpu:0"])
def test_spellings_of_the_cpu(model, device):
    path, tensors = model
    assert_equal(inrush.torch.load(path, device), tensors)


def test_every_tensor_has_a_storage_of_its_own(model):
    path, _ = model
    loaded = inrush.torch.load(path)
    places = set()
    for name, tensor in loaded.items():
        storage = tensor.untyped_storage()
        assert storage.nbytes() == tensor.nbytes, name
        assert tensor.storage_offset() == 0
        if tensor.nbytes:
            assert tensor.data_ptr() % 64 == 0, name
            places.add(storage.data_ptr())
    assert len(places) == sum(tensor.nbytes > 0 for tensor in loaded.values())


def test_writing_into_one_leaves_the_others(model):
    path, tensors = model
    loaded = inrush.torch.load(path)
    for written, tensor in loaded.items():
        tensor.reshape(-1).view(torch.uint8).fill_(0xFF)
        tensors[written] = (*tensors[written][:2], b"\xff" * tensor.nbytes)
        assert_equal(loaded, tensors)


def test_saving_one_tensor_saves_that_one(many_small):
    path, tensors = many_small
    one = inrush.torch.load(path)["t07"]
    file = io.BytesIO()
    torch.save(one, file)
    assert one.nbytes < len(file.getvalue()) < one.nbytes + 8192
    file.seek(0)
    assert raw(torch.load(file)) == tensors["t07"][2]


def test_copies_and_pickles(model):
    path, tensors = model
    loaded = inrush.torch.load(path, only=["F32.*", "BF16.*", "C64.*", "I64.*", "BOOL.*"])
    file = io.BytesIO()
    torch.save(loaded, file)
    file.seek(0)
    for again in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded)), torch.load(file)):
        assert list(again) == list(loaded)
        for name, tensor in again.items():
            assert raw(tensor) == tensors[name][2]
            assert tensor.nbytes == 0 or tensor.data_ptr() != loaded[name].data_ptr()


def test_gradients_flow(many_small):
    path, _ = many_small
    weight = inrush.torch.load(path, only="t00")["t00"].requires_grad_()
    (weight.float().nan_to_num() * 2).sum().backward()
    assert weight.grad is not None and weight.grad.shape == weight.shape
    with torch.no_grad():
        weight.zero_()
    assert not weight.any()
    assert torch.nn.Parameter(inrush.torch.load(path, only="t01")["t01"]).requires_grad


def test_memory_can_be_shared(many_small):
    path, tensors = many_small
    tensor = inrush.torch.load(path, only="t03")["t03"]
    tensor.share_memory_()
    assert tensor.is_shared()
    assert raw(tensor) == tensors["t03"][2]


def test_a_module_on_the_meta_device_takes_them(make_checkpoint):
    entries = {"weight": random_tensor("F32", [3, 5]), "bias": random_tensor("F32", [3])}
    path = make_checkpoint("linear.safetensors", entries)
    with torch.device("meta"):
        module = torch.nn.Linear(5, 3)
    module.load_state_dict(inrush.torch.load(path), assign=True)
    assert {name: raw(tensor) for name, tensor in module.state_dict().items()} == {
        name: data for name, (_, _, data) in entries.items()
    }


@pytest.mark.parametrize("surroundings", [
    lambda: torch.device("meta"), torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu"),
])
def test_inside_contexts_that_change_what_torch_makes(model, surroundings):
    path, tensors = model
    with surroundings():
        loaded = inrush.torch.load(path)
        streamed = dict(inrush.torch.stream(path))
    for found in (loaded, streamed):
        assert_equal(found, tensors)
        assert {tensor.device.type for tensor in found.values()} == {"cpu"}


def test_defaults_of_torch_change_nothing(model):
    path, tensors = model
    try:
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        loaded = inrush.torch.load(path)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert_equal(loaded, tensors)
    assert loaded["F32.matrix"].dtype == torch.float32


# load: what torch cannot express

@pytest.mark.parametrize("way", [inrush.torch.load, lambda *a, **k: dict(inrush.torch.stream(*a, **k))])
@pytest.mark.parametrize(("dtype", "shape"), [
    ("F6_E2M3", [4]), ("F6_E3M2", [2, 8]), ("F6_E3M2", [0]), ("F4", [4, 3]), ("F4", [0, 7]), ("F4", [2, 1]),
])
def test_what_torch_cannot_express_is_refused_before_any_read(make_checkpoint, way, dtype, shape):
    path = make_checkpoint("odd.safetensors", {"fine": ("F32", [4]), "odd": (dtype, shape)})
    checkpoint = inrush.open(path)
    path.unlink()
    with pytest.raises(inrush.Error, match="'odd'.*unsupported=") as caught:
        way(checkpoint)
    assert caught.value.code == "invalid_request"
    assert str(path) in str(caught.value) and dtype in str(caught.value)
    # So the refusal came first: with nothing to refuse the absent file is what comes out.
    for fitting in ({"unsupported": "uint8"}, {"only": "fine"}):
        with pytest.raises(FileNotFoundError):
            way(checkpoint, **fitting)


def test_bytes_of_what_torch_cannot_express(make_checkpoint):
    tensors = {
        "six": random_tensor("F6_E2M3", [3, 8]), "odd": random_tensor("F4", [4, 3]),
        "even": random_tensor("F4", [4, 6]), "none": random_tensor("F6_E3M2", [0, 4]),
    }
    loaded = inrush.torch.load(make_checkpoint("odd.safetensors", tensors), unsupported="uint8")
    assert_equal(loaded, tensors)
    forms = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in loaded.items()}
    assert forms == {
        "six": (torch.uint8, [18]), "odd": (torch.uint8, [6]), "none": (torch.uint8, [0]),
        "even": (torch.float4_e2m1fn_x2, [4, 3]),
    }
    assert loaded.dtypes == {name: dtype for name, (dtype, _, _) in tensors.items()}


def test_an_unknown_word_for_unsupported(model):
    path, _ = model
    for way in (inrush.torch.load, lambda *a, **k: next(inrush.torch.stream(*a, **k))):
        with pytest.raises(ValueError, match="unsupported='bytes'") as caught:
            way(path, unsupported="bytes")
        assert caught.value.code == "invalid_request"


# load: parts, lifetime, memory

def test_slices(make_checkpoint):
    tensors = {
        "rows": random_tensor("BF16", [16, 6]), "columns": random_tensor("F32", [5, 4, 3]),
        "pairs": random_tensor("F4", [2, 8]), "whole": random_tensor("I64", [3]),
    }
    path = make_checkpoint("s.safetensors", tensors)
    whole = inrush.torch.load(path)
    slices = {"rows": (0, 3, 5), "columns": inrush.Slice(1, 1, 2), "pairs": (1, 4, 4)}
    part = inrush.torch.load(path, slices=slices)
    assert raw(part["rows"]) == raw(whole["rows"][3:8])
    assert raw(part["columns"]) == raw(whole["columns"][:, 1:3].contiguous())
    assert list(part["columns"].shape) == [5, 2, 3]
    assert raw(part["pairs"]) == raw(whole["pairs"].view(torch.uint8)[:, 2:4].contiguous())
    assert (part["pairs"].dtype, list(part["pairs"].shape)) == (torch.float4_e2m1fn_x2, [2, 2])
    assert raw(part["whole"]) == raw(whole["whole"])
    assert part.report.loaded_bytes == sum(tensor.nbytes for tensor in part.values())


def test_tensors_outlive_everything_else(many_small):
    path, tensors = many_small
    loader = inrush.Loader()
    kept = dict(list(inrush.torch.load(path, loader=loader).items())[5:9])
    path.unlink()
    loader.release_idle()
    del loader
    gc.collect()
    write_sparse(path, {"other": ("U8", [32 * MIB])})
    zeros = inrush.torch.load(path)  # takes what was freed by mistake
    assert_equal(kept, {name: tensors[name] for name in kept})
    assert not zeros["other"].any()


def test_memory_of_dropped_tensors_goes_back(tmp_path):
    """Tensors of 64 MiB or more lie alone, so each that is dropped frees its memory."""
    size = 64 * MIB
    path = write_sparse(tmp_path / "large.safetensors", {f"t{i}": ("U8", [size]) for i in range(4)})
    loaded = inrush.torch.load(path)
    full = resident_bytes()
    for count in range(1, 4):
        del loaded[f"t{count}"]
        assert resident_bytes() < full - count * size + size // 2
    assert not loaded["t0"].any()


def test_memory_stays_flat_over_many_loads(tmp_path):
    path = write_sparse(tmp_path / "large.safetensors", {f"t{i}": ("U8", [8 * MIB]) for i in range(16)})
    peaks = []
    for _ in range(12):
        loaded = inrush.torch.load(path)
        peaks.append(resident_bytes())
        del loaded
    assert peaks[-1] < peaks[1] + 32 * MIB, peaks


def test_cyclic_garbage_frees_them_too(tmp_path):
    path = write_sparse(tmp_path / "large.safetensors", {"t": ("U8", [64 * MIB])})
    before = resident_bytes()
    holder = dict(inrush.torch.load(path))
    holder["itself"] = holder
    assert resident_bytes() > before + 48 * MIB
    del holder
    gc.collect()
    assert resident_bytes() < before + 16 * MIB


def test_progress_of_a_load(many_small):
    path, tensors = many_small
    told = []
    inrush.torch.load(path, progress=lambda loaded, planned: told.append((loaded, planned)))
    total = sum(len(data) for _, _, data in tensors.values())
    assert told == sorted(told)
    assert {planned for _, planned in told} == {total}
    assert told[-1] == (total, total)


# stream

def test_stream_brings_everything_once(model):
    path, tensors = model
    streamed = []
    for name, tensor in inrush.torch.stream(path):
        assert raw(tensor) == tensors[name][2], name  # complete when it comes
        streamed.append(name)
    assert sorted(streamed) == sorted(tensors)


def test_stream_through_a_window_much_smaller_than_the_checkpoint(many_small):
    path, tensors = many_small
    kept = dict(inrush.torch.stream(path, window_bytes=MIB))
    assert_equal(kept, tensors)  # no tensor is a view of memory that is used again


def test_stream_takes_a_tensor_larger_than_its_window(make_checkpoint):
    tensors = {"large": random_tensor("U8", [3 * MIB]), "small": random_tensor("U8", [7])}
    streamed = dict(inrush.torch.stream(make_checkpoint("l.safetensors", tensors), window_bytes=MIB))
    assert_equal(streamed, tensors)


def test_stream_bounds_memory(tmp_path):
    size, count, window = 4 * MIB, 128, 32 * MIB
    path = write_sparse(tmp_path / "large.safetensors", {f"t{i}": ("U8", [size]) for i in range(count)})
    loader = inrush.Loader(staging_bytes="16MiB")
    before = resident_bytes()
    peak = 0
    for _, tensor in inrush.torch.stream(path, window_bytes=window, loader=loader):
        peak = max(peak, resident_bytes() - before)
        del tensor
    # The window, a slab in hand (a quarter of it), the staging, and what the interpreter likes to keep.
    assert peak < window + window // 4 + 16 * MIB + 24 * MIB, f"{peak / MIB:.0f} MiB"


def test_stream_to_consumers_in_other_threads(many_small):
    path, tensors = many_small
    held, wrong = [], []

    def consume(name, tensor):
        if raw(tensor) != tensors[name][2]:
            wrong.append(name)

    for name, tensor in inrush.torch.stream(path, window_bytes=MIB):
        held.append(threading.Thread(target=consume, args=(name, tensor)))
        if len(held) > 5:  # five steps after it was handed out
            held[-6].start()
    for thread in held[-5:]:
        thread.start()
    for thread in held:
        thread.join()
    assert len(held) == len(tensors)
    assert wrong == []


def test_two_streams_in_step(many_small):
    path, tensors = many_small
    loader = inrush.Loader(staging_bytes="64MiB")
    streams = [inrush.torch.stream(path, window_bytes=2 * MIB, loader=loader) for _ in range(2)]
    seen = 0
    for (name, tensor), (other_name, other) in zip(*streams, strict=True):
        assert raw(tensor) == tensors[name][2] and raw(other) == tensors[other_name][2]
        seen += 1
    assert seen == len(tensors)


def test_stream_takes_the_common_arguments(many_small):
    path, tensors = many_small
    told = []
    streamed = dict(inrush.torch.stream(
        path, torch.device("cpu"), only=["t0*"], slices={"t03": (0, 4, 2)}, timeout=60,
        progress=lambda loaded, planned: told.append((loaded, planned)),
    ))
    assert sorted(streamed) == [f"t0{i}" for i in range(10)]
    assert raw(streamed["t03"]) == tensors["t03"][2][4 * 2048:6 * 2048]
    total = sum(tensor.nbytes for tensor in streamed.values())
    assert told[-1] == (total, total)


def test_stream_that_is_never_asked_does_nothing(tmp_path):
    threads, descriptors = thread_count(), descriptor_count()
    generator = inrush.torch.stream(tmp_path / "absent")
    assert (thread_count(), descriptor_count()) == (threads, descriptors)
    with pytest.raises(FileNotFoundError):
        next(generator)


def exhaust(generator):
    for _ in generator:
        pass


def close(generator):
    next(generator)
    generator.close()
    with pytest.raises(StopIteration):
        next(generator)


def leave_the_loop(generator):
    for _ in generator:
        break


def raise_in_the_loop(generator):
    with pytest.raises(ZeroDivisionError):
        for _ in generator:
            _ = 1 / 0


def throw_into_it(generator):
    next(generator)
    with pytest.raises(ZeroDivisionError):
        generator.throw(ZeroDivisionError())


def drop(generator):
    next(generator)


def drop_in_a_cycle(generator):
    next(generator)
    cycle = [generator]
    cycle.append(cycle)


@pytest.mark.parametrize("way", [
    exhaust, close, leave_the_loop, raise_in_the_loop, throw_into_it, drop, drop_in_a_cycle,
])
def test_however_a_stream_ends_nothing_is_left(many_small, way):
    path, _ = many_small
    gc.collect()
    threads, descriptors = thread_count(), descriptor_count()
    loader = inrush.Loader()
    way(inrush.torch.stream(path, window_bytes=MIB, loader=loader))
    gc.collect()
    loader.release_idle()
    assert (thread_count(), descriptor_count()) == (threads, descriptors)


def test_a_stream_whose_callback_leads_back_to_it(many_small):
    class Consumer:
        def __init__(self, path):
            self.stream = inrush.torch.stream(path, window_bytes=MIB, progress=self.tell, loader=loader)
            next(self.stream)

        def tell(self, loaded, planned):
            pass

    loader = inrush.Loader()
    descriptors = descriptor_count()
    consumer = weakref.ref(Consumer(many_small[0]))
    gc.collect()
    assert consumer() is None
    loader.release_idle()
    assert descriptor_count() == descriptors


def test_what_was_taken_stays_when_a_stream_is_closed(many_small):
    path, tensors = many_small
    generator = inrush.torch.stream(path, window_bytes=2 * MIB)
    taken = dict(next(generator) for _ in range(9))
    generator.close()
    again = inrush.torch.load(path)
    assert_equal(taken, {name: tensors[name] for name in taken})
    assert_equal(again, tensors)


def test_closing_a_stream_frees_what_was_read_ahead(tmp_path):
    path = write_sparse(tmp_path / "large.safetensors", {f"t{i}": ("U8", [8 * MIB]) for i in range(32)})
    before = resident_bytes()
    for _ in range(6):
        generator = inrush.torch.stream(path, window_bytes=128 * MIB)
        next(generator)
        generator.close()
    inrush.release()
    assert resident_bytes() < before + 64 * MIB


def test_a_file_that_shrinks_under_a_stream(many_small):
    path, tensors = many_small
    taken = {}
    with pytest.raises(inrush.Error) as caught:
        for name, tensor in inrush.torch.stream(path, window_bytes=MIB):
            taken[name] = tensor
            if len(taken) == 1:
                with open(path, "r+b") as file:
                    file.truncate(path.stat().st_size // 2)
    assert caught.value.code == "corrupt_checkpoint"
    assert str(path) in str(caught.value)
    assert not caught.value.report.complete
    assert caught.value.report.loaded_bytes < caught.value.report.planned_bytes
    assert 0 < len(taken) < len(tensors)
    assert_equal(taken, {name: tensors[name] for name in taken})


def test_a_stream_whose_time_is_up(many_small):
    path, _ = many_small
    generator = inrush.torch.stream(path, window_bytes=MIB, timeout=0.2)
    next(generator)
    threading.Event().wait(0.3)
    with pytest.raises(TimeoutError) as caught:
        exhaust(generator)
    assert caught.value.code == "timed_out"
    assert not caught.value.report.complete


@pytest.mark.parametrize("only", [[], lambda name: False])
def test_nothing_wanted(many_small, only):
    path, _ = many_small
    assert dict(inrush.torch.load(path, only=only)) == {}
    assert list(inrush.torch.stream(path, only=only)) == []


def test_a_checkpoint_of_empty_tensors(make_checkpoint):
    tensors = {"none": ("F32", [0], b""), "nowhere": ("BF16", [3, 0, 2], b"")}
    path = make_checkpoint("empty.safetensors", tensors)
    for found in (inrush.torch.load(path), dict(inrush.torch.stream(path))):
        assert {name: (tensor.dtype, list(tensor.shape)) for name, tensor in found.items()} == {
            "none": (torch.float32, [0]), "nowhere": (torch.bfloat16, [3, 0, 2]),
        }
