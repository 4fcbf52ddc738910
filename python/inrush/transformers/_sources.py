"""The checkpoint that holds what transformers would take from the files that it found."""

from __future__ import annotations

import os

from inrush import _inrush, _loads
from inrush._inrush import Checkpoint
from inrush.torch import _archive


def open_source(files: list[str]) -> Checkpoint:
    """One checkpoint of all files, so that one load brings all, whatever an index says: transformers takes
    every tensor of every file, and of two of one name that of the last file.

    Raises Error where a file is missing or malformed.
    """
    identities = {file: _archive.identity_of(file) for file in files}
    single = [_loads.open_checkpoint(file) for file in files]
    if len(single) == 1:
        return single[0]
    entries = {
        name: (name, entry.dtype, entry.shape, number, entry.offset)
        for number, checkpoint in enumerate(single)
        for name, entry in checkpoint.items()
    }
    paths = [os.fsencode(file) for file in files]
    joined = _inrush.describe_checkpoint(os.path.dirname(paths[0]), paths, list(entries.values()))
    # The engine holds the files to what they are now: as they were when their headers were read.
    for file, identity in identities.items():
        _archive.refuse_changed(file, identity)
    return joined
