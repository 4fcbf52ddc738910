#!/usr/bin/env python3
"""What storages, record_stream(), torch.save(), CUDA IPC and dropping half do with tensors of
inrush.torch.load, beside those that torch allocates one by one. Prints a table for docs/python.md. Needs a
GPU, torch and the wheel.

    torch_habits.py
"""

from __future__ import annotations

import io
import json
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import inrush
import inrush.torch
import torch
import torch.multiprocessing

SMALL, LARGE, COUNT = 1 << 20, 96 << 20, 64
Tensors = dict[str, torch.Tensor]


def write_checkpoint(path: Path) -> None:
    sizes = {f"small.{i}": SMALL for i in range(COUNT)} | {"large": LARGE}
    header, offset = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    block = random.Random(5).randbytes(1 << 20)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(offset >> 20):
            file.write(block)


def ours(path: Path) -> Tensors:
    return dict(inrush.torch.load(path, "cuda"))


def torchs(path: Path) -> Tensors:
    return {name: torch.from_numpy(array).cuda() for name, array in inrush.load(path).items()}


def mib(count: float) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def storages(make: Callable[[], Tensors]) -> str:
    tensors = make()
    return " and ".join(mib(tensors[name].untyped_storage().nbytes()) for name in ("small.0", "large"))


def saved(make: Callable[[], Tensors]) -> str:
    tensors, sizes = make(), []
    for what in (tensors["small.0"], tensors["small.0"].clone(), tensors):
        buffer = io.BytesIO()
        torch.save(what, buffer)
        sizes.append(mib(buffer.tell()))
    return f"{sizes[0]}; a clone {sizes[1]}; the whole dict {sizes[2]}"


def half(make: Callable[[], Tensors]) -> str:
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    tensors = make()
    full = torch.cuda.memory_allocated() - base
    for i in range(0, COUNT, 2):
        del tensors[f"small.{i}"]
    odd = torch.cuda.memory_allocated() - base
    for i in range(1, COUNT, 2):
        del tensors[f"small.{i}"]
    none = torch.cuda.memory_allocated() - base
    return f"{mib(full)}; every second small one dropped {mib(odd)}; all small ones {mib(none)}"


def recorded(make: Callable[[], Tensors]) -> str:
    """A block that another stream still reads must not be handed out again."""
    tensors, side = make(), torch.cuda.Stream()
    large = tensors.pop("large")
    address, size, expected = large.data_ptr(), large.nbytes, large.clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        copied = large.clone()
    large.record_stream(side)
    del large
    other = torch.zeros(size, dtype=torch.uint8, device="cuda")
    is_reused = other.data_ptr() == address
    torch.cuda.synchronize()
    fate = "handed out at once" if is_reused else "kept until the other stream is done"
    return f"block {fate}; bytes {'right' if torch.equal(copied, expected) else 'WRONG'}"


def _receive(inbox: torch.multiprocessing.Queue, outbox: torch.multiprocessing.Queue) -> None:
    tensor = inbox.get()
    outbox.put((int(tensor.long().sum()), tensor.untyped_storage().nbytes()))
    del tensor


def shared(make: Callable[[], Tensors]) -> str:
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(inbox, outbox))
    child.start()
    tensors = make()
    inbox.put(tensors["small.3"])
    total, size = outbox.get(timeout=120)
    child.join(30)
    is_right = total == int(tensors["small.3"].long().sum())
    return f"{'right' if is_right else 'WRONG'} in the other process, which maps {mib(size)}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_checkpoint(path)
        print(f"torch {torch.__version__}: {COUNT} tensors of {mib(SMALL)} and one of {mib(LARGE)}\n")
        print("| | inrush.torch.load | torch's own |\n|---|---|---|")
        for title, look in (
            ("`untyped_storage().nbytes()` of a small and of the large one", storages),
            ("`torch.save` of one small tensor", saved),
            ("GPU memory allocated", half),
            ("`record_stream`, then dropped", recorded),
            ("CUDA IPC of one small tensor", shared),
        ):
            print(f"| {title} | {look(lambda: ours(path))} | {look(lambda: torchs(path))} |", flush=True)


if __name__ == "__main__":
    main()
