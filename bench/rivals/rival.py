"""What the bench knows of a loader: how it is called, at which settings, and why it cannot run here.

Each other file of this folder lists its ways of loading as RIVALS. They import what they need when they are
called, so that the driver imports none of it and a trial only its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]
Pairs = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Rival:
    """One way of loading, by exactly one of `load`, `pairs` and `fill`; all tensors are the caller's."""

    name: str
    package: str  # its distribution, "" for what torch or the bench itself has
    settings: str  # what they are and where they are documented, for the table
    imports: tuple[str, ...] = ()  # imported, and timed, before the clock of the first load starts
    environment: dict[str, str] = field(default_factory=dict)  # set before the process starts
    load: Callable[[list[str], str], Tensors] | None = None
    pairs: Callable[[list[str], str], Pairs] | None = None  # in order of arrival: the first one is timed
    fill: Callable[[list[str], Tensors], Any] | None = None  # into tensors that exist, on their device
    slice: Callable[[list[str], str, tuple[int, int]], Tensors] | None = None  # (dimension, parts): part 0
    convert: Callable[[list[str], Path], list[str]] | None = None  # to its own format, before any clock
    unfit: Callable[[str], str | None] = lambda device: None  # for reasons beyond a missing package
    details: Callable[[], dict[str, Any]] = dict  # of the last load, for its row

    def run(self, files: list[str], device: str) -> Tensors:
        """All tensors of these files, by name. Not for a rival that fills what exists."""
        if self.load is not None:
            return self.load(files, device)
        assert self.pairs is not None, f"{self.name} fills tensors that exist"
        return dict(self.pairs(files, device))

    def version(self) -> str:
        """Of its package, or torch's; of what PYTHONPATH has, by its module. After why_not()."""
        try:
            return importlib.metadata.version(self.package or "torch")
        except importlib.metadata.PackageNotFoundError:
            return str(getattr(sys.modules.get(self.imports[0]), "__version__", "unknown"))

    def why_not(self, device: str) -> str | None:
        """None, or why it cannot run here."""
        for name in self.imports:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001  a library that is missing, or calls exit()
                return f"import {name}: {type(error).__name__}: {first_line(error)}"
        return self.unfit(device)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def needs_gpu(device: str) -> str | None:
    return None if device.startswith("cuda") else "loads to CUDA devices only, and there is none here"


def needs_gds(device: str) -> str | None:
    """Where cuFile cannot go around the host, it copies through it: a slower nogds, no rival of its own."""
    if needs_gpu(device):
        return needs_gpu(device)
    if not Path("/proc/driver/nvidia-fs/version").exists():
        return "no nvidia-fs here (no /proc/driver/nvidia-fs): cuFile would use its compatibility mode"
    return None


# For those that read bytes and leave tensors to the caller.


def entries_of(path: str) -> tuple[int, dict[str, Any]]:
    """Where the data starts, and name -> {dtype, shape, data_offsets}. The bench wrote these files."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return 8 + length, entries


def torch_dtype(name: str) -> Any:
    import torch

    return {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8}[name]


def views(data: Any, entries: dict[str, Any]) -> Tensors:
    """Tensors over a file's data, a flat uint8 tensor; those at an odd place for their type are copied."""
    tensors = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        part, dtype = data[begin:end], torch_dtype(entry["dtype"])
        if part.data_ptr() % dtype.itemsize:
            part = part.clone()
        tensors[name] = part.view(dtype).view(entry["shape"])
    return tensors
