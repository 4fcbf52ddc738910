"""InstantTensor: all files in one safe_open, as its manual advises, by each backend it names.

Source: README of the 0.2.2 wheel ("Backend selection", "Zero-copy mode"): MMAP for files in memory, URING for
cold ones (the default on disk), BUFFERED = URING_BUFFERED for what the page cache has; sizes, concurrency and
depth are chosen by it. copy=False gives views that must be used up at once: here they are
copied into tensors that exist, which is what its manual shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rivals.rival import Pairs, Rival, Tensors, needs_gpu


def _pairs(backend: str) -> Callable[[list[str], str], Pairs]:
    def pairs(files: list[str], device: str) -> Pairs:
        import instanttensor

        chosen = instanttensor.Backend[backend]
        with instanttensor.safe_open(list(files), framework="pt", device=device, backend=chosen) as handle:
            yield from handle.tensors()

    return pairs


def _fill(backend: str) -> Callable[[list[str], Tensors], Any]:
    def fill(files: list[str], targets: Tensors) -> None:
        import instanttensor
        import torch

        device = next(iter(targets.values())).device
        with instanttensor.safe_open(
            list(files), framework="pt", device=device, backend=instanttensor.Backend[backend], copy=False
        ) as handle:
            for name, tensor in handle.tensors():
                targets[name].copy_(tensor)
            torch.cuda.current_stream(device).synchronize()  # the views end with the block

    return fill


RIVALS = [
    Rival(
        f"instanttensor-{backend.lower().replace('_', '-')}", "instanttensor",
        f"safe_open of all files, backend {backend}, copy=True", ("torch", "instanttensor"),
        pairs=_pairs(backend), unfit=needs_gpu,
    )
    for backend in ("MMAP", "URING", "URING_BUFFERED")
] + [
    Rival(
        f"instanttensor-{backend.lower().replace('_', '-')}-into", "instanttensor",
        f"backend {backend}, copy=False, copied into tensors that exist", ("torch", "instanttensor"),
        fill=_fill(backend), unfit=needs_gpu,
    )
    for backend in ("MMAP", "URING", "URING_BUFFERED")
]  # fmt: skip
