"""`inrush.torch.load` and `inrush.torch.stream`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from inrush import _devices, _errors, _loaders, _loads
from inrush._inrush import Checkpoint, Loader, Request
from inrush._load import Tensors
from inrush._loads import Only, Options, Path, Slices
from inrush._progress import Progress
from inrush.torch import _dtypes, _memory

# Of what stream() fills ahead. Four slabs of 128 MiB keep an H200's link busy while the consumer copies.
_WINDOW_BYTES = 512 << 20


def engine_device(device: Any, loader: Loader | None) -> str:
    """ "cpu" or "cuda:N"; "cuda" is torch's current device."""
    if str(device) != "cuda":
        return _devices.normalise(device, loader)
    try:
        return f"cuda:{torch.cuda.current_device()}"
    except (AssertionError, RuntimeError) as error:  # a torch without CUDA, a machine without a driver
        raise _errors.make_error("environment_unfit", f'device "cuda": {error}') from error


class LoadPlan:
    """A load as it was asked for, checked as far as that needs no I/O."""

    def __init__(
        self, path: Path, device: Any, loader: Loader | None, options: Options, unsupported: str
    ) -> None:
        self.device = engine_device(device, loader)
        self.loader = loader or _loaders.loader_for(self.device)
        self.checkpoint: Checkpoint = _loads.open_checkpoint(path)
        self.request: Request = _loads.make_request(self.checkpoint, self.device, options)
        _dtypes.refuse_inexpressible(
            _loads.selection(self.checkpoint, self.request, _dtypes.DOUBTFUL), unsupported
        )
        self.memory = _memory.memory_on(self.device)
        self.request.allocate = self.memory.allocate


def load(
    path: Path,
    device: Any = "cpu",
    *,
    only: Only = None,
    slices: Slices = None,
    unsupported: str = "error",
    progress: Progress = None,
    timeout: float | None = None,
    loader: Loader | None = None,
    transfer: str = "auto",
    page_cache: str = "auto",
) -> Tensors:
    """Loads a checkpoint into torch tensors: a dict by name with `.report`, `.metadata` and `.dtypes`.

    device: "cpu", "cuda" (torch's current device), "cuda:1", 1, a GPU's UUID, a torch.device.
    unsupported: "uint8" gives what torch cannot express (F6, F4 with an odd last dimension) as a flat tensor
        of its bytes; "error" refuses it before anything is read.
    The other arguments and the errors are those of inrush.load().
    """
    plan = LoadPlan(
        path, device, loader, Options(only, slices, progress, timeout, transfer, page_cache), unsupported
    )
    with _loads.running(plan.loader, plan.checkpoint, plan.request, progress) as (running, batches):
        tensors = Tensors(plan.checkpoint, plan.request)
        batches.take_all(lambda: plan.memory.take(running, tensors), len(tensors))
        tensors.report = running.report()
    return tensors


def stream(
    path: Path,
    device: Any = "cpu",
    *,
    only: Only = None,
    slices: Slices = None,
    unsupported: str = "error",
    progress: Progress = None,
    timeout: float | None = None,
    loader: Loader | None = None,
    window_bytes: int = _WINDOW_BYTES,
    transfer: str = "auto",
    page_cache: str = "auto",
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) in order of arrival, each complete and ready for work on the current CUDA stream.

    window_bytes: device memory that is filled ahead of the consumer. One that copies each tensor and drops it
        needs the window, the slab in hand (an eighth to a quarter of the window, or one large tensor) and no
        more. A tensor that is kept keeps its slab, that is its neighbours' memory too.
    Arguments are checked by the first next(). Closing or dropping the iterator ends the load.
    The other arguments and the errors are those of load().
    """
    plan = LoadPlan(
        path, device, loader, Options(only, slices, progress, timeout, transfer, page_cache), unsupported
    )
    plan.request.window_bytes = window_bytes
    with _loads.running(plan.loader, plan.checkpoint, plan.request, progress, batch_bytes=1) as (_, batches):
        slab = None
        for loaded in chain.from_iterable(batches):
            if loaded.owner is not slab:  # what was kept of the last one would hold its memory
                plan.memory.forget()
                slab = loaded.owner
            name, tensor = loaded.name, plan.memory.tensor(loaded)
            del loaded
            yield name, tensor
            del tensor
