"""Inrush as a copier of the package fastsafetensors (0.5), for those who have code for its loader.

    inrush.frameworks.fastsafetensors.register()
    loader = fastsafetensors.loader.BaseSafeTensorsFileLoader(group, Device.from_str("cuda:0"), "inrush")

Where the bytes of a file go is the package's decision, and so is who owns them; Inrush brings them there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fastsafetensors.copier.base import CopierInterface
from fastsafetensors.copier.registry import register_copier_constructor
from inrush import _errors, _loaders, _loads
from inrush._inrush import Load, Request
from inrush.torch import _memory
from inrush.torch._load import engine_device

COPIER = "inrush"


def register() -> None:
    """Adds the copier "inrush" to the registry of fastsafetensors. Calling it again changes nothing."""
    register_copier_constructor(COPIER, Copier)(_constructor)


def _constructor(device: Any, **_: Any) -> Callable[[Any, Any, Any], Copier]:
    return Copier


class Copier(CopierInterface):  # type: ignore[misc]
    """One file on its way into one buffer. fastsafetensors makes it, and calls it on one thread at a time."""

    def __init__(self, metadata: Any, device: Any, framework: Any) -> None:
        self.metadata = metadata
        self._device = device
        self._framework = framework
        self._ranges: list[tuple[int, int]] | None = None
        self._names: set[str] | None = None
        self._allocation_bytes: int | None = None
        self._start = metadata.header_length  # of the file, where the buffer begins
        self._load: Load | None = None

    def set_byte_ranges(self, byte_ranges: list[tuple[int, int]] | None) -> None:
        super().set_byte_ranges(byte_ranges)  # raises for ranges outside the file
        self._ranges = byte_ranges

    def set_chunk(
        self, byte_ranges: list[tuple[int, int]], names: set[str], allocation_size: int | None = None
    ) -> None:
        self.set_byte_ranges(byte_ranges)
        self._names = names
        self._allocation_bytes = allocation_size

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        return 1  # bytes go to their place at once

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        return 0  # staging is host memory

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        nbytes = self.metadata.size_bytes - self._start
        if self._names is not None:
            self._start = min((first for first, _ in self._ranges or []), default=self._start)
            span = max((end for _, end in self._ranges or []), default=self._start) - self._start
            nbytes = self._allocation_bytes or span
        buffer = self._framework.alloc_tensor_memory(nbytes, self._device)
        try:
            self._begin(buffer)
        except BaseException:
            self._framework.free_tensor_memory(buffer, self._device)
            raise
        return buffer

    def _engine_device(self) -> str:
        """Where the package allocates: on torch's current device, whatever number it was given."""
        device = engine_device(self._device.as_str(), None)
        if device == "cpu" or not torch.cuda.is_available():
            return device
        current = engine_device("cuda", None)
        if device != current:
            raise _errors.make_error(
                "invalid_request",
                f"fastsafetensors allocates on torch's current device, {current}, and the loader is for "
                f"{device}: call torch.cuda.set_device() first",
            )
        return device

    def _begin(self, buffer: Any) -> None:
        device = self._engine_device()
        request = Request()
        request.device = device
        request.targets = self._targets(buffer.get_base_address())
        request.only = [_loads.exact_pattern(name) for name in request.targets]
        request.targets_owner = buffer
        request.targets_stream = _memory.memory_on(device).stream()
        if request.targets:
            checkpoint = _loads.open_checkpoint(self.metadata.src)
            self._load = _loaders.loader_for(device).start(checkpoint, request)

    def _targets(self, address: int) -> dict[str, tuple[int, int]]:
        """Where in the buffer each tensor goes that is wanted: address and length."""
        targets = {}
        for name, frame in self.metadata.tensors.items():
            first, end = (self.metadata.header_length + offset for offset in frame.data_offsets)
            if self._is_wanted(name, first, end):
                targets[name] = (address + first - self._start, end - first)
        return targets

    def _is_wanted(self, name: str, first: int, end: int) -> bool:
        if self._names is not None and name not in self._names:
            return False
        return self._ranges is None or any(start <= first and end <= stop for start, stop in self._ranges)

    def wait_io(self, gbuf: Any, dtype: Any = None, noalign: bool = False, owner: Any = None) -> Any:
        try:
            while self._load is not None and self._load.take():
                pass
        finally:
            self.finish_io()
        more = {} if dtype is None else {"dtype": dtype}
        return self.metadata._get_tensors(
            gbuf, self._device, self._start, names=self._names, owner=owner, **more
        )

    def finish_io(self) -> None:
        if self._load is not None:
            self._load.close()
            self._load = None
            _loaders.forward_log(_loaders.loader_for(self._engine_device()))
