"""What every way of loading has in common: arguments, progress, log, errors."""

from __future__ import annotations

import gc
import operator
import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Union

from inrush import _errors, _inrush, _loaders
from inrush._inrush import Checkpoint, Load, Loader, Request, Tensor, TensorInfo
from inrush._progress import Progress, ProgressDisplay
from inrush._shards import ShardSpec, Slice

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", Checkpoint]
Only = Union[str, Iterable[str], Callable[[str], bool], None]


Slices = Union[Mapping[str, tuple[int, int, int]], ShardSpec, None]


class Options(NamedTuple):
    """The arguments that all ways of loading take."""

    only: Only = None
    slices: Slices = None
    progress: Progress = None
    timeout: float | None = None
    path: str = "auto"
    page_cache: str = "auto"


def open_checkpoint(path: Path, *, ignore_index: bool = False) -> Checkpoint:
    """See `inrush.open`."""
    if isinstance(path, Checkpoint):
        return path
    return _inrush.open(os.fsencode(path), ignore_index)


def exact_pattern(name: str) -> str:
    """The glob that matches this name and no other."""
    return re.sub(r"([*?\[\\])", r"\\\1", name)


def patterns(checkpoint: Checkpoint, only: Only) -> list[str] | None:
    """`only` as globs; None for all tensors."""
    if only is None:
        return None
    if isinstance(only, str):
        return [only]
    if callable(only):
        return [exact_pattern(name) for name in checkpoint if only(name)]
    names = list(only)
    for name in names:
        if not isinstance(name, str):
            raise _errors.make_error(
                "invalid_request", f"only={only!r}: {name!r} is no name or glob of a tensor"
            )
    return names


def selected(
    checkpoint: Checkpoint, only: Only, slices: Slices
) -> tuple[list[str] | None, dict[str, tuple[int, int, int]]]:
    """`only` as globs, and of each tensor that is not loaded whole (dimension, start, length)."""
    globs = patterns(checkpoint, only)
    if isinstance(slices, ShardSpec):
        return globs, dict(slices.slices(checkpoint, globs))
    return globs, _checked_slices(slices or {})


def _checked_slices(slices: Mapping[str, tuple[int, int, int]]) -> dict[str, tuple[int, int, int]]:
    checked: dict[str, tuple[int, int, int]] = {}
    for name, slice_ in slices.items():
        try:
            numbers = Slice(*map(operator.index, slice_))
        except TypeError:
            numbers = Slice(-1, -1, -1)
        if not all(0 <= number < 2**63 for number in numbers):
            raise _errors.make_error(
                "invalid_request",
                f"slices[{name!r}] is {slice_!r}: say (dimension, start, length), which count from 0",
            )
        checked[name] = numbers
    return checked


def make_request(checkpoint: Checkpoint, device: str, options: Options) -> Request:
    """The native request for the common arguments; `device` as _devices.normalise() gives it."""
    request = Request()
    request.device = device
    request.only, request.slices = selected(checkpoint, options.only, options.slices)
    request.path = options.path
    request.page_cache = options.page_cache
    if options.timeout is not None:
        if not options.timeout > 0:
            raise _errors.make_error(
                "invalid_request", f"timeout={options.timeout!r}: say more than 0 seconds, or None"
            )
        request.timeout_s = options.timeout
    return request


def selection(
    checkpoint: Checkpoint, request: Request, dtypes: Container[str] | None = None
) -> list[TensorInfo]:
    """What the request will bring, of these element types only. Reads nothing."""
    if dtypes is not None and not any(dtype in dtypes for dtype in checkpoint.dtypes):
        return []  # a microsecond a tensor saved
    entries = checkpoint.selection(request.only, request.slices)
    return [entry for entry in entries if dtypes is None or entry.dtype in dtypes]


# Tens of thousands of new tensors bring about a collection of everything, which takes 80 ms in a process that
# has imported torch and 200 with transformers: more than a load of 2 GB. In a longer load it is lost.
_PAUSE_SECONDS_MAX = 1.0
# Fewer do not bring it about, and a load of few large tensors may wait long for one of them.
_PAUSE_TENSORS_MIN = 4096


class _CollectorPause:
    """Python's garbage collector rests until the block ends or has run for a while."""

    def __init__(self, tensor_count: int) -> None:
        self._is_wanted = tensor_count >= _PAUSE_TENSORS_MIN

    def __enter__(self) -> _CollectorPause:
        self._until = time.monotonic() + _PAUSE_SECONDS_MAX
        self._is_ours = self._is_wanted and gc.isenabled()
        if self._is_ours:
            gc.disable()
        return self

    def end_when_due(self) -> None:
        if time.monotonic() >= self._until:
            self.__exit__()

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            gc.enable()
        self._is_ours = False


class Batches:
    """What arrives, batch after batch, and progress told after each."""

    def __init__(self, load: Load, display: ProgressDisplay, batch_bytes: int) -> None:
        self._load = load
        self._display = display
        self._batch_bytes = batch_bytes

    def __iter__(self) -> Iterator[list[Tensor]]:
        while batch := self._load.take(self._batch_bytes):
            yield batch
            del batch  # the consumer's alone while we wait
            self._tell()
        self._tell()

    def take_all(self, take: Callable[[], int], tensor_count: int) -> None:
        """Calls what takes a batch from the load itself and says how many tensors it had, until that is 0."""
        with _CollectorPause(tensor_count) as pause:
            while take():
                self._tell()
                pause.end_when_due()
        self._tell()

    def _tell(self) -> None:
        if not self._display.is_idle:
            self._display(*self._load.progress)


@contextmanager
def running(
    loader: Loader,
    checkpoint: Checkpoint,
    request: Request,
    progress: Progress = None,
    batch_bytes: int = 2**64 - 1,
) -> Iterator[tuple[Load, Batches]]:
    """Runs a load: gives it and what arrives, in batches that end at `batch_bytes`.

    Nothing is in flight once the block is left.
    """
    with ProgressDisplay(progress, os.path.basename(checkpoint.path.rstrip("/"))) as display:
        if not display.is_idle:
            request.on_progress = display
        load: Load | None = None
        try:
            load = loader.start(checkpoint, request)
            yield load, Batches(load, display, batch_bytes)
        except _errors.Error as error:
            if load is not None:
                load.close()
                error.report = load.report()
            raise
        finally:
            if load is not None:
                load.close()
            _loaders.forward_log(loader)
