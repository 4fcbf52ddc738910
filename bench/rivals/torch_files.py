"""What torch has: torch.load(mmap=True) of a file of its own format, and torch.cuda.gds.

Source: the manuals of torch.load ("mmap", "weights_only") and torch.cuda.gds of torch 2.13. GdsFile reads a
whole storage at a place of the file and opens with O_DIRECT: a read by file, into tensors that are views.
"""

from __future__ import annotations

import os
from pathlib import Path

from rivals.rival import Rival, Tensors, entries_of, needs_gds, views


def _convert(files: list[str], folder: Path) -> list[str]:
    import torch
    from safetensors.torch import load_file

    written = []
    for path in files:
        target = folder / (Path(path).stem + ".pt")
        torch.save(load_file(path), target)
        written.append(str(target))
    return written


def _load(files: list[str], device: str) -> Tensors:
    import torch

    tensors: Tensors = {}
    for path in files:
        tensors.update(torch.load(path, map_location=device, mmap=True, weights_only=True))
    return tensors


def _gds(files: list[str], device: str) -> Tensors:
    import torch.cuda.gds

    tensors: Tensors = {}
    for path in files:
        start, entries = entries_of(path)
        whole = torch.empty(os.path.getsize(path), dtype=torch.uint8, device=device)
        torch.cuda.gds.GdsFile(path, os.O_RDONLY).load_storage(whole.untyped_storage(), 0)
        tensors.update(views(whole[start:], entries))
    return tensors


RIVALS = [
    Rival("torch-mmap", "", "own format: torch.load(mmap=True, map_location)", load=_load, convert=_convert),
    Rival("torch-gds", "", "torch.cuda.gds.GdsFile, one read a file", load=_gds, unfit=needs_gds),
]
