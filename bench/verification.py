"""Compares loaded tensors with an independent read of their files, on the device that they are on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from rivals.rival import Tensors, entries_of, torch_dtype

PART_BYTES = 512 << 20
READERS = 8
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
    device = next((tensor.device for tensor in tensors.values()), "cpu")
    for path in files:
        start, entries = entries_of(path)
        for names, host, base in _read_parts(path, start, entries):
            data = host.to(device)
            for name in names:
                seen.add(name)
                if name not in tensors:
                    missing.append(name)
                    continue
                begin, end = entries[name]["data_offsets"]
                expected = data[begin - base : end - base]
                outcome = _compare_one(tensors[name], expected, entries[name], _part_of(name, part))
                wrong += [name] * (outcome == "wrong")
                reshaped += outcome == "reshaped"
    return Verdict(wrong, missing, sorted(set(tensors) - seen), reshaped)


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
    if not torch.equal(actual, expected.reshape(-1)):
        return "wrong"
    is_same = list(tensor.shape) == shape and tensor.dtype == torch_dtype(entry["dtype"])
    return "right" if is_same else "reshaped"


def _count(shape: list[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _read_parts(path: str, start: int, entries: dict[str, Any]) -> Any:
    """(names, flat uint8 tensor of their bytes, where it starts in the data), part by part of the file."""
    import torch

    ordered = sorted(entries, key=lambda name: entries[name]["data_offsets"])
    while ordered:
        base = entries[ordered[0]]["data_offsets"][0]
        count = 1
        while count < len(ordered) and entries[ordered[count]]["data_offsets"][1] - base <= PART_BYTES:
            count += 1
        names, ordered = ordered[:count], ordered[count:]
        data = torch.empty(entries[names[-1]]["data_offsets"][1] - base, dtype=torch.uint8)
        _read(path, start + base, data)
        yield names, data, base


def _read(path: str, offset: int, data: Any) -> None:
    memory = memoryview(data.numpy())
    step = max(-(-len(memory) // READERS), 1)

    def read_one(begin: int) -> None:
        done, end = begin, min(begin + step, len(memory))
        while done < end:
            count = os.preadv(descriptor, [memory[done:end]], offset + done)
            if count == 0:
                raise RuntimeError(f"{path} ends at {offset + done}")
            done += count

    descriptor = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(read_one, range(0, len(memory), step)))
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
