"""Two loaders that anybody would write first."""

from __future__ import annotations

import mmap
import os
import warnings
from typing import Any

from rivals.rival import Rival, Tensors, entries_of, views


def _mmap(files: list[str], device: str) -> Tensors:
    """A mapping of each file, and a copy of each tensor out of it."""
    import torch

    warnings.filterwarnings("ignore", message=".*not writable.*")
    tensors: Tensors = {}
    for path in files:
        start, entries = entries_of(path)
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = torch.frombuffer(mapped, dtype=torch.uint8)[start:]
        for name, tensor in views(data, entries).items():
            tensors[name] = tensor.to(device, copy=True)
    return tensors


def _read(files: list[str], device: str) -> Tensors:
    """Each file as a whole into memory that is reused and pinned, and in one copy to the device."""
    import torch

    on_gpu = device != "cpu"
    sizes = [os.path.getsize(path) for path in files]
    host = torch.empty(max(sizes), dtype=torch.uint8, pin_memory=True) if on_gpu else None
    tensors: Tensors = {}
    for path, size in zip(files, sizes):
        start, entries = entries_of(path)
        data = torch.empty(size, dtype=torch.uint8) if host is None else host[:size]
        _read_whole(path, data)
        tensors.update(views((data.to(device) if on_gpu else data)[start:], entries))
    return tensors


def _read_whole(path: str, data: Any) -> None:
    memory, done = memoryview(data.numpy()), 0
    with open(path, "rb", buffering=0) as file:
        while done < len(memory):
            count = file.readinto(memory[done:])
            if not count:
                raise RuntimeError(f"{path} ends at {done} of {len(memory)} bytes")
            done += count


RIVALS = [
    Rival("naive-mmap", "", "mmap, then tensor.to(device)", load=_mmap),
    Rival("naive-read", "", "readinto, on a GPU by pinned memory and one copy a file", load=_read),
]
