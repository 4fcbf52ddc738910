"""`inrush.torch.load_async`: tensors that are there at once, and filled while the program goes on."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, Union

import torch
from inrush import _errors, _inrush, _loaders, _loads
from inrush._inrush import Loader, Report
from inrush._loads import Only, Options, Path, Slices
from inrush.torch import _dtypes
from inrush.torch._load import LoadPlan

_log = logging.getLogger("inrush")


class _CudaStream(Protocol):
    @property
    def cuda_stream(self) -> Any: ...


# A torch.cuda.Stream, an address as the driver knows it, None for torch's current stream.
Stream = Union[_CudaStream, int, None]


def load_async(
    path: Path,
    device: Any = "cpu",
    *,
    stream: Stream = None,
    only: Only = None,
    slices: Slices = None,
    unsupported: str = "error",
    timeout: float | None = None,
    loader: Loader | None = None,
    transfer: str = "auto",
    page_cache: str = "auto",
) -> AsyncTensors:
    """Starts to load a checkpoint and returns while bytes move. All memory is allocated here.

    stream: what is queued on this stream of the device after the call sees all tensors, and no wait() of the
        load blocks. For GPUs whose streams can wait for values in host memory; the load gets a deadline of
        ten minutes if `timeout` is None.
    The other arguments, and the errors of this call, are those of inrush.torch.load().
    """
    options = Options(only, slices, None, timeout, transfer, page_cache)
    plan = LoadPlan(path, device, loader, options, unsupported)
    running = _Running(plan)
    running.start(stream)
    return AsyncTensors(running)


class AsyncTensor:
    """A tensor on its way. It is out of reach until wait(), since its memory holds what was there before."""

    __slots__ = ("_running", "device", "dtype", "name", "nbytes", "shape")

    def __init__(self, running: _Running, loaded: _inrush.Tensor) -> None:
        self._running = running
        self.name = loaded.name
        self.dtype, self.shape = _dtypes.form_or_bytes(loaded.dtype, loaded.shape, loaded.nbytes)
        self.nbytes = loaded.nbytes
        self.device = loaded.device

    def wait(self, stream: Stream = None) -> torch.Tensor:
        """The tensor. What is queued on `stream` from now on sees its bytes.

        stream: a torch.cuda.Stream, what has its `cuda_stream`, or the address itself, of the tensor's
            device; None: torch's current stream there.
        Blocks until the last copy is queued; not at all where load_async() was given a stream. On the CPU it
        blocks until the bytes are there. Raises Error: what ended the load.
        """
        return self._running.wait(self.name, stream)

    def __repr__(self) -> str:
        return (
            f"<inrush.torch.AsyncTensor {self.name!r}: {self.dtype} {list(self.shape)} on {self.device}>"
        )


class AsyncTensors(Mapping[str, AsyncTensor]):
    """The tensors of a load that runs, by name, in the order of the checkpoint.

    It holds the load, and all memory of it; tensors that were handed out stay when it goes. To drop it is to
    close() it, except that streams which wait for tensors by themselves get these first. A context manager:
    the block ends with finish(), or where it raises with close(). For one thread at a time, cancel() for any.
    """

    def __init__(self, running: _Running) -> None:
        self._running = running

    def __getitem__(self, name: str) -> AsyncTensor:
        return AsyncTensor(self._running, self._running.loaded_as(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._running.loaded)

    def __len__(self) -> int:
        return len(self._running.loaded)

    def __contains__(self, name: object) -> bool:
        return name in self._running.loaded

    def wait(self, stream: Stream = None) -> dict[str, torch.Tensor]:
        """All tensors, as by AsyncTensor.wait()."""
        return self._running.wait_all(stream)

    def finish(self) -> None:
        """Blocks until every tensor is complete and the files were found unchanged. Raises Error."""
        self._running.finish()

    def cancel(self) -> None:
        """The load ends with "cancelled" soon. From any thread.

        Of tensors that were not complete all bytes become 0xFF, NaN in every floating type.
        """
        self._running.native.cancel()

    def close(self) -> None:
        """Cancels what is not complete and frees what the load holds. Tensors that were handed out stay."""
        self._running.close()

    @property
    def done(self) -> bool:
        """Whether the load has ended, well or not."""
        return self._running.native.done

    @property
    def progress(self) -> tuple[int, int]:
        """Loaded and planned bytes."""
        return self._running.native.progress

    @property
    def report(self) -> Report:
        """What the load did until now; final after finish() and close()."""
        return self._running.native.report()

    @property
    def metadata(self) -> dict[str, str]:
        """`__metadata__` of the checkpoint."""
        return self._running.plan.checkpoint.metadata

    def __enter__(self) -> AsyncTensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def __repr__(self) -> str:
        running = self._running
        return f"<inrush.torch.AsyncTensors {len(self)} on {running.plan.device}, {running.state}>"


class _Running:
    """The load itself, which AsyncTensors and each AsyncTensor hold."""

    native: _inrush.AsyncLoad
    _is_owed = False  # tensors were handed out, and nobody was told yet how the load ended

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.loaded: dict[str, _inrush.Tensor | None] = {}  # None: it was closed
        self._made: dict[str, torch.Tensor] = {}
        self._home = plan.memory.stream()  # that memory is allocated on
        self._promised: _Target | None = None  # given to load_async()
        self._recorded: set[tuple[int, int]] = set()  # storage, stream
        self._pid = os.getpid()

    def start(self, stream: Stream) -> None:
        plan = self.plan
        if stream is not None:
            self._promised = self._target(stream)
        try:
            self.native = plan.loader.load_async(
                plan.checkpoint, plan.request, "event" if self._promised is None else "value"
            )
        finally:
            _loaders.forward_log(plan.loader)
        if self._promised is not None:
            self.native.wait_all(self._promised.pointer)
        by_name = {tensor.name: tensor for tensor in self.native.tensors()}
        self.loaded = {name: by_name[name] for name in plan.checkpoint if name in by_name}

    def loaded_as(self, name: str) -> _inrush.Tensor:
        loaded = self.loaded[name]
        if loaded is None:
            raise _errors.make_error("invalid_request", f"{self.plan.checkpoint.path}: this load was closed")
        return loaded

    def wait(self, name: str, stream: Stream) -> torch.Tensor:
        target, loaded = self._target(stream), self.loaded_as(name)
        with self._telling():
            self.native.wait(loaded, target.pointer)
        return self._hand_out(loaded, target)

    def wait_all(self, stream: Stream) -> dict[str, torch.Tensor]:
        target = self._target(stream)
        with self._telling():
            self.native.wait_all(target.pointer)
        return {name: self._hand_out(self.loaded_as(name), target) for name in self.loaded}

    def finish(self) -> None:
        with self._telling():
            self.native.finish()
        self._is_owed = False

    def close(self) -> None:
        self.native.close()
        self._is_owed = False
        _loaders.forward_log(self.plan.loader)
        self.loaded = dict.fromkeys(self.loaded)
        self._made.clear()
        self.plan.memory.forget()

    @property
    def state(self) -> str:
        if any(loaded is None for loaded in self.loaded.values()):
            return "closed"
        try:
            loaded_bytes, planned_bytes = self.native.progress
            return "done" if self.native.done else f"loading, {loaded_bytes} of {planned_bytes} bytes"
        except _errors.Error:
            return "of the parent process"

    def _target(self, stream: Stream) -> _Target:
        if self._home is None:
            if stream is not None:
                raise _errors.make_error("invalid_request", f"stream={stream!r}: the CPU has no streams")
            return _Target(None, 0)
        if stream is None:
            return _Target(None, self.plan.memory.stream() or 0)
        return _Target(stream, _pointer_of(stream, self.plan.device))

    def _hand_out(self, loaded: _inrush.Tensor, target: _Target) -> torch.Tensor:
        self._is_owed = True
        tensor = self._made.get(loaded.name)
        if tensor is None:
            tensor = self._made[loaded.name] = self.plan.memory.tensor(loaded)
        if self._home is not None and loaded.nbytes:
            for used in (target, self._promised):
                if used is not None and used.pointer != self._home:
                    self._record(tensor, used)
        return tensor

    def _record(self, tensor: torch.Tensor, target: _Target) -> None:
        """Torch's allocator gives the memory to nobody before that stream has passed its use."""
        key = (tensor.untyped_storage().data_ptr(), target.pointer)
        if key not in self._recorded:
            self._recorded.add(key)
            record_stream(tensor, target.torch_stream(self.plan.device))

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except _errors.Error as error:
            if error.code != "invalid_request":
                error.report = self.native.report()
                self._is_owed = False
            raise
        finally:
            _loaders.forward_log(self.plan.loader)

    def __del__(self) -> None:
        # A stream that waits by itself was promised bytes. Were the load cancelled now, it would go on with
        # NaN and nobody would hear of it.
        if not self._is_owed or self._pid != os.getpid():
            return
        try:
            if self._promised is not None or self.native.done:
                self.native.finish()
        except _errors.Error as error:
            # As text: a record is kept by some handlers, and the error holds the load.
            _log.warning("%s (nobody called finish())", str(error))


class _Target:
    """A stream that is to see tensors: as the caller gave it, and its address."""

    def __init__(self, given: Stream, pointer: int) -> None:
        self._given = given
        self.pointer = pointer

    def torch_stream(self, device: str) -> Any:
        if isinstance(self._given, torch.cuda.Stream):
            return self._given
        if self.pointer == 0:  # an ExternalStream of 0 would be any stream of torch's pool
            return torch.cuda.default_stream(torch.device(device))
        external: Any = torch.cuda.ExternalStream  # not typed by torch
        return external(self.pointer, device=torch.device(device))


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    tensor.record_stream(stream)


def _pointer_of(stream: Any, device: str) -> int:
    """Raises Error where it is no stream, or one of another device."""
    owner = getattr(stream, "device", None)
    if owner is not None and str(owner) != device:
        raise _errors.make_error("invalid_request", f"stream={stream!r} is not one of {device}")
    try:
        pointer = -1 if isinstance(stream, bool) else operator.index(getattr(stream, "cuda_stream", stream))
    except TypeError:
        pointer = -1
    if not 0 <= pointer < 2**64:
        raise _errors.make_error(
            "invalid_request",
            f"stream={stream!r} is no stream: say a torch.cuda.Stream or the address of one",
        )
    return pointer
