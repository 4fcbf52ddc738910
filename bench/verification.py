"""Compares loaded tensors with an independent read of their files, on the device that they are on."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from rivals.rival import Tensors, entries_of, torch_dtype

PART_BYTES = 128 << 20
READERS = 12
TOGETHER_MIN = 64  # tensors in a part
TOGETHER_ON = ("cuda",)  # on the CPU a comparison waits for nothing, and putting together costs more
POISON = 0xA5


class Verdict(NamedTuple):
    wrong: list[str]  # names whose bytes differ
    missing: list[str]
    unexpected: list[str]
    reshaped: int  # right bytes in another shape or element type

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.missing or self.unexpected)

    def reason(self) -> str:
        parts = [f"{len(names)} {what}, such as {names[0]!r}"
                 for what, names in (("wrong", self.wrong), ("missing", self.missing),
                                     ("unexpected", self.unexpected)) if names]  # fmt: skip
        return "; ".join(parts)


def compare(files: list[str], tensors: Tensors, part: tuple[int, int] | None = None) -> Verdict:
    """Every byte of every tensor; with `part` = (dimension, parts) the first of so many parts of each
    *_proj.weight."""
    wrong, missing, reshaped, seen = [], [], 0, set()
    device = str(next((tensor.device for tensor in tensors.values()), "cpu"))
    headers = {path: entries_of(path) for path in files}
    for path, names, data, base in _read_parts(headers, device):
        entries = headers[path][1]
        seen.update(names)
        missing += [name for name in names if name not in tensors]
        present = [name for name in names if name in tensors]
        expected = {}
        for name in present:
            begin, end = entries[name]["data_offsets"]
            expected[name] = data[begin - base : end - base]
        is_many = len(present) >= TOGETHER_MIN and device.partition(":")[0] in TOGETHER_ON and not part
        if is_many and _are_equal_together([tensors[name] for name in present], expected):
            reshaped += sum(not _has_form(tensors[name], entries[name]) for name in present)
            continue
        for name in present:
            outcome = _compare_one(tensors[name], expected[name], entries[name], _part_of(name, part))
            wrong += [name] * (outcome == "wrong")
            reshaped += outcome == "reshaped"
    return Verdict(wrong, missing, sorted(set(tensors) - seen), reshaped)


def _are_equal_together(tensors: list[Any], expected: Tensors) -> bool:
    """One comparison for many small tensors, in the order of `expected`: each on its own would wait for its
    result, 40 microseconds. False says nothing: they are then compared one by one."""
    import torch

    parts = list(expected.values())
    if any(tensor.device != part.device for tensor, part in zip(tensors, parts)):
        return False
    actual = [tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors]
    return bool(torch.equal(torch.cat(actual), torch.cat(parts)))


def _has_form(tensor: Any, entry: dict[str, Any]) -> bool:
    return list(tensor.shape) == entry["shape"] and tensor.dtype == torch_dtype(entry["dtype"])


def _part_of(name: str, part: tuple[int, int] | None) -> tuple[int, int] | None:
    return part if name.endswith("_proj.weight") else None


def _compare_one(tensor: Any, expected: Any, entry: dict[str, Any], part: tuple[int, int] | None) -> str:
    import torch

    if tensor.device != expected.device:
        return "wrong"  # not where it was asked for
    shape = list(entry["shape"])
    if part is not None:
        dimension, parts = part
        itemsize = expected.numel() // max(_count(shape), 1)
        expected = expected.view(*shape, itemsize).narrow(dimension, 0, shape[dimension] // parts)
        shape[dimension] //= parts
    actual = tensor.detach().reshape(-1).view(torch.uint8)
    if not _is_equal(actual, expected.reshape(-1)):
        return "wrong"
    return "right" if _has_form(tensor, {**entry, "shape": shape}) else "reshaped"


def _is_equal(actual: Any, expected: Any) -> bool:
    import numpy
    import torch

    if actual.device.type != "cpu":
        return torch.equal(actual, expected)
    # torch's threads wait for one another: 300 microseconds for 24 KB where others use the CPUs too.
    return numpy.array_equal(actual.numpy(), expected.numpy())


def _count(shape: list[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _parts(headers: dict[str, Any]) -> list[tuple[str, list[str], int, int]]:
    """(path, names, where their bytes start in the data, and end), part by part of each file."""
    found = []
    for path, (_, entries) in headers.items():
        ordered = sorted(entries, key=lambda name: entries[name]["data_offsets"])
        start = 0
        while start < len(ordered):
            base, end = entries[ordered[start]]["data_offsets"]
            count = 1
            while start + count < len(ordered):
                next_end = entries[ordered[start + count]]["data_offsets"][1]
                if next_end - base > PART_BYTES:
                    break
                end, count = next_end, count + 1
            found.append((path, ordered[start : start + count], base, end))
            start += count
    return found


def _read_parts(headers: dict[str, Any], device: str) -> Iterator[tuple[str, list[str], Any, int]]:
    """(path, names, flat uint8 tensor of their bytes on the device, where it starts in the data). The next
    part is read while this one is compared, and its memory is used again for the one after the next."""
    parts = _parts(headers)
    largest = max((end - base for _, _, base, end in parts), default=0)
    with ThreadPoolExecutor(READERS) as pool, _Staging(largest, device) as staging:
        def start(index: int) -> list[Future[None]]:
            if index >= len(parts):
                return []
            path, _, base, end = parts[index]
            memory = memoryview(staging.memory[index % 2])[: end - base]
            step = max(-(-len(memory) // READERS), 1)
            return [pool.submit(_read, path, headers[path][0] + base + at, memory[at : at + step])
                    for at in range(0, len(memory), step)]  # fmt: skip

        reads = start(0)
        for index, (path, names, base, end) in enumerate(parts):
            for read in reads:
                read.result()
            reads = start(index + 1)
            yield path, names, staging.on_device(index % 2, end - base), base


class _Staging:
    """Two pieces of host memory, pinned for the copies to a GPU: pageable memory takes five times as long.
    Not of torch's cache, in which a loader would find it."""

    def __init__(self, size: int, device: str) -> None:
        import torch

        self._device = device
        self.memory = [mmap.mmap(-1, max(size, 1)) for _ in range(2)]
        for piece in self.memory:
            piece.madvise(mmap.MADV_HUGEPAGE)
        self._tensors = [torch.frombuffer(piece, dtype=torch.uint8) for piece in self.memory]

    def __enter__(self) -> _Staging:
        if self._device != "cpu":
            import torch

            for tensor in self._tensors:
                torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._device != "cpu":
            import torch

            torch.cuda.synchronize(self._device)
            for tensor in self._tensors:
                torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())

    def on_device(self, index: int, size: int) -> Any:
        """On the CPU the memory itself."""
        return self._tensors[index][:size].to(self._device)


def _read(path: str, offset: int, memory: memoryview) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        done = 0
        while done < len(memory):
            count = os.preadv(descriptor, [memory[done:]], offset + done)
            if count == 0:
                raise RuntimeError(f"{path} ends at {offset + done}")
            done += count
    finally:
        os.close(descriptor)


def poisoned(files: list[str], device: str) -> Tensors:
    """Tensors of the shapes that these files have, full of bytes that are not theirs."""
    import torch

    targets: Tensors = {}
    for path in files:
        for name, entry in entries_of(path)[1].items():
            tensor = torch.empty(entry["shape"], dtype=torch_dtype(entry["dtype"]), device=device)
            tensor.reshape(-1).view(torch.uint8).fill_(POISON)
            targets[name] = tensor
    return targets
