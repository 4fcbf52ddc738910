"""Byte ranges of files, straight into memory of torch's: what other formats than safetensors are read by."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from inrush import Slice, _inrush, _loaders, _loads
from inrush._inrush import Loader, Report
from inrush._loads import Options
from inrush.torch import _archive, _memory


class Range(NamedTuple):
    """An array of bytes in a file, and where it goes, or a slice of it."""

    name: str
    file: str
    offset: int
    shape: tuple[int, ...]
    part: Slice | None
    address: int
    owner: object  # keeps the memory at `address`

    @property
    def nbytes(self) -> int:
        """Of the array in the file."""
        return math.prod(self.shape)

    @property
    def target_bytes(self) -> int:
        if self.part is None:
            return self.nbytes
        return self.nbytes // self.shape[self.part.dimension] * self.part.length


class Job(NamedTuple):
    """What every load of ranges needs to know. `path` is the checkpoint's, for messages."""

    path: str
    device: str  # "cpu" or "cuda:N"
    options: Options
    loader: Loader | None


def load_ranges(
    job: Job, ranges: Iterable[Range], identities: Mapping[str, _archive.Identity]
) -> Report | None:
    """Reads all of them in one load; None if there is no byte to read. They may not overlap in their file.

    identities: of the files, from when the ranges were found: a file that was replaced since is refused.
    Raises Error; its report says which targets bytes may have reached.
    """
    filled = [entry for entry in ranges if entry.nbytes]
    if not filled:
        return None
    files = list(dict.fromkeys(entry.file for entry in filled))
    number = {file: i for i, file in enumerate(files)}
    checkpoint = _inrush.describe_checkpoint(
        os.fsencode(job.path),
        [os.fsencode(file) for file in files],
        [(entry.name, "U8", entry.shape, number[entry.file], entry.offset) for entry in filled],
    )
    # The engine holds the files to what they are now: as they were when the ranges were found.
    for file in files:
        _archive.refuse_changed(file, identities[file])
    slices = {entry.name: entry.part for entry in filled if entry.part is not None}
    request = _loads.make_request(checkpoint, job.device, job.options._replace(only=None, slices=slices))
    memory = _memory.memory_on(job.device)
    request.allocate = memory.allocate
    request.targets = {entry.name: (entry.address, entry.target_bytes) for entry in filled}
    request.targets_owner = [entry.owner for entry in filled]
    request.targets_stream = memory.stream()
    loader = job.loader or _loaders.loader_for(job.device)
    with _loads.running(loader, checkpoint, request, job.options.progress) as (load, batches):
        for _ in batches:
            pass
    return load.report()
