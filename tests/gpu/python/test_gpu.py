"""On a machine with a GPU: torch, CuPy and JAX with one loader in one process. `pytest tests/gpu/python`."""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import inrush
import inrush.torch
import numpy
import pytest
import torch

TRIES = 1000


def write_checkpoint(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


def random_checkpoint(path: Path, seed: int = 1) -> dict[str, tuple[str, list[int], bytes]]:
    source = random.Random(seed)
    tensors = {
        f"t{i}.{dtype}": (dtype, shape, source.randbytes(size))
        for i, (dtype, shape, size) in enumerate([
            ("BF16", [128, 257], 65792), ("F32", [7], 28), ("U8", [3], 3), ("F8_E4M3", [33, 5], 165),
            ("F16", [], 2), ("I64", [11, 3], 264), ("F8_E8M0", [9], 9), ("F8_E5M2", [4, 4], 16),
            ("F4", [2, 8], 8), ("C64", [5], 40), ("U16", [6], 12), ("U32", [6], 24), ("U64", [6], 48),
            ("F64", [0, 4], 0), ("BF16", [3 << 20], 6 << 20),
        ])
    }  # fmt: skip
    write_checkpoint(path, tensors)
    return tensors


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, dict[str, tuple[str, list[int], bytes]]]:
    path = tmp_path / "model.safetensors"
    return path, random_checkpoint(path)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, "0", torch.device("cuda"), torch.device("cuda", 0)])
def test_torch_on_every_spelling(checkpoint, device):
    path, tensors = checkpoint
    loaded = inrush.torch.load(path, device)
    assert list(loaded) == list(tensors)
    for name, (_, _, data) in tensors.items():
        assert loaded[name].device == torch.device("cuda", 0)
        assert raw(loaded[name]) == data, name
    assert loaded.report.device.startswith("cuda:0")


def test_uuid(checkpoint):
    path, tensors = checkpoint
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    assert raw(inrush.torch.load(path, uuid)["t0.BF16"]) == tensors["t0.BF16"][2]


def test_visible_by_uuid(checkpoint):
    path, _ = checkpoint
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    code = f"import inrush; print(inrush.load({str(path)!r}, 'cuda:0')['t1.F32'].device)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "cuda:0\n", done.stderr


def test_torch_cupy_and_jax_share_memory(checkpoint):
    cupy = pytest.importorskip("cupy")
    jax = pytest.importorskip("jax")
    path, tensors = checkpoint
    loaded = inrush.load(path, "cuda:0")
    one = loaded["t1.F32"]
    views = [cupy.from_dlpack(one), jax.dlpack.from_dlpack(one), torch.from_dlpack(one)]
    addresses = {views[0].data.ptr, views[1].unsafe_buffer_pointer(), views[2].data_ptr()}
    assert addresses == {one.data_ptr}
    expected = numpy.frombuffer(tensors["t1.F32"][2], "<f4")
    del loaded, one
    for view in views:
        numpy.testing.assert_array_equal(
            numpy.asarray(
                view.get() if hasattr(view, "get") else view.cpu() if isinstance(view, torch.Tensor) else view
            ),
            expected,
        )


@pytest.mark.parametrize("framework", ["cupy", "jax"])
def test_arrays_of_every_dtype(checkpoint, framework):
    pytest.importorskip(framework)
    path, tensors = checkpoint
    loaded = inrush.load(path, "cuda:0", framework=framework, unsupported="uint8")
    for name, (dtype, shape, data) in tensors.items():
        array = loaded[name]
        host = array.get() if framework == "cupy" else numpy.asarray(array)
        assert host.tobytes() == data, (name, array.dtype)
        if dtype != "F4":
            assert list(array.shape) == shape


def test_a_block_that_a_queued_kernel_still_reads(tmp_path):
    """torch hands out a freed block while a kernel that reads it is queued; the load must wait for the
    kernel.
    """
    size = 4 << 20
    paths = [tmp_path / f"{i}.safetensors" for i in range(2)]
    for i, path in enumerate(paths):
        write_checkpoint(path, {"w": ("U8", [size], bytes([i + 1]) * size)})
    reused = wrong_kernels = wrong_loads = 0
    for attempt in range(TRIES):
        old = torch.full((size,), 7, dtype=torch.uint8, device="cuda")
        address = old.untyped_storage().data_ptr()
        torch.cuda._sleep(2_000_000)  # a millisecond
        copied = old.clone()  # queued behind the sleep
        del old
        new = inrush.torch.load(paths[attempt % 2], "cuda")["w"]
        reused += new.untyped_storage().data_ptr() == address
        wrong_kernels += not bool((copied == 7).all())
        wrong_loads += not bool((new == attempt % 2 + 1).all())
        del copied, new
    print(
        f"\nfreed block: {TRIES} tries, {reused} in the freed block, "
        f"{wrong_kernels} kernels and {wrong_loads} loads wrong"
    )
    assert reused > TRIES // 2  # else the test shows nothing
    assert (wrong_kernels, wrong_loads) == (0, 0)


def test_work_on_another_stream(checkpoint):
    path, tensors = checkpoint
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(50):
            loaded = inrush.torch.load(path, "cuda")
            assert raw(loaded["t0.BF16"]) == tensors["t0.BF16"][2]


def test_load_into_a_module(tmp_path):
    source = random.Random(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 33), torch.nn.BatchNorm1d(33), torch.nn.Linear(33, 5)
    ).cuda()
    state = model.state_dict()
    spell = {torch.float32: "F32", torch.int64: "I64"}
    tensors = {n: (spell[t.dtype], list(t.shape), source.randbytes(t.nbytes)) for n, t in state.items()}
    path = write_checkpoint(tmp_path / "m.safetensors", tensors)
    addresses = {n: t.data_ptr() for n, t in state.items()}
    result = inrush.torch.load_into(path, model)
    assert sorted(result.loaded) == sorted(tensors)
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == addresses[name]
        assert raw(tensor) == tensors[name][2], name


def test_stream_bounds_memory(tmp_path):
    count, size = 40, 32 << 20
    block = random.Random(4).randbytes(1 << 20)
    path = write_checkpoint(
        tmp_path / "s.safetensors", {f"t{i}": ("U8", [size], block * (size >> 20)) for i in range(count)}
    )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    seen = 0
    for _, tensor in inrush.torch.stream(path, "cuda", window_bytes=256 << 20):
        seen += int(tensor[-1]) >= 0
        del tensor
    assert seen == count
    assert torch.cuda.max_memory_reserved() - before <= 512 << 20


def test_out_of_memory_leaves_all_usable(checkpoint):
    path, tensors = checkpoint
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-5)
    try:
        with pytest.raises(inrush.Error) as caught:
            inrush.torch.load(path, "cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert caught.value.code == "out_of_memory"
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert raw(inrush.torch.load(path, "cuda")["t0.BF16"]) == tensors["t0.BF16"][2]


def test_a_forked_child(checkpoint):
    """CUDA does not survive a fork: the child is told so, and the CPU works there."""
    path, _ = checkpoint
    inrush.torch.load(path, "cuda")
    code = f"""
import os, inrush, inrush.torch
inrush.load({str(path)!r}, "cuda:0")
pid = os.fork()
if pid == 0:
    try:
        inrush.load({str(path)!r}, "cuda:0")
        os._exit(3)
    except inrush.Error as error:
        print(error.code, error, flush=True)
    inrush.load({str(path)!r}, "cpu", only=["*.BF16"])
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("0\n"), done.stdout + done.stderr
    assert "spawn" in done.stdout


def test_targets_that_are_neighbours(tmp_path):
    """Runs of the file that go to neighbouring blocks are one copy, and it may cross from one block of the
    driver to the next."""
    count, size = 16, 32 << 20
    blocks = [random.Random(i).randbytes(1 << 16) * (size >> 16) for i in range(count)]
    torch.cuda.empty_cache()
    model = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    model.sort(key=lambda tensor: tensor.data_ptr())
    pairs = sum(a.data_ptr() + size == b.data_ptr() for a, b in zip(model, model[1:]))
    path = write_checkpoint(
        tmp_path / "n.safetensors", {f"t{i}": ("U8", [size], block) for i, block in enumerate(blocks)}
    )
    inrush.torch.load_into(path, {f"t{i}": tensor for i, tensor in enumerate(model)})
    print(f"\nneighbours: {pairs} of {count - 1} pairs")
    for tensor, block in zip(model, blocks):
        assert raw(tensor) == block


@pytest.mark.parametrize("way", ["torch", "safetensors"])
def test_tensors_of_a_large_model_stay_right_while_others_load(tmp_path, way):
    """17,165 tensors, kept, 20 loads of another model of the same shapes beside them, compared at the end of
    each: views of a reused buffer gave others wrong weights."""
    count, nbytes = 17_165, 4096
    sources = []
    for seed in (1, 2):
        data = random.Random(seed).randbytes(count * nbytes)
        tensors = {f"t{i}": ("U8", [nbytes], data[i * nbytes : (i + 1) * nbytes]) for i in range(count)}
        path = write_checkpoint(tmp_path / f"{seed}.safetensors", tensors)
        sources.append(
            (path, torch.frombuffer(bytearray(data), dtype=torch.uint8).view(count, nbytes).cuda())
        )
    load = (
        inrush.torch.load if way == "torch" else importlib.import_module("inrush.safetensors.torch").load_file
    )
    (path, expected), (other_path, other_expected) = sources
    kept = load(path, device="cuda:0")
    if way == "safetensors":
        assert {tensor.untyped_storage().nbytes() for tensor in kept.values()} == {nbytes}
    for _ in range(20):
        others = load(other_path, device="cuda:0")
        for loaded, right in ((others, other_expected), (kept, expected)):
            assert torch.equal(torch.stack([loaded[f"t{i}"] for i in range(count)]), right)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_each_rank_of_a_tensor_parallel_group_gets_its_part(tmp_path, world):
    path = tmp_path / "model.safetensors"
    shapes = {"q_proj": [1024, 1024], "down_proj": [1024, 4096], "experts": [8, 512, 1024], "norm": [1024]}
    source = random.Random(3)
    write_checkpoint(
        path,
        {name: ("BF16", shape, source.randbytes(2 * math.prod(shape))) for name, shape in shapes.items()},
    )
    whole = inrush.torch.load(path, "cuda:0")
    dimensions = {"q_proj": 0, "down_proj": 1, "experts": 2}
    for rank in range(world):
        part = inrush.torch.load(path, "cuda:0", slices=inrush.ShardSpec(dimensions, rank=rank, world=world))
        assert raw(part["norm"]) == raw(whole["norm"])
        for name, dimension in dimensions.items():
            right = whole[name].chunk(world, dimension)[rank].contiguous()
            assert torch.equal(part[name].view(torch.int16), right.view(torch.int16))
        assert part.report.loaded_bytes == sum(tensor.nbytes for tensor in part.values())
