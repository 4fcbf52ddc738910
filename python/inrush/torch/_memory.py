"""Where the tensors of a load live, and how one is made there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, Union

import torch
from inrush import _arrays, _errors, _inrush
from inrush.torch import _dtypes


Allocate = Callable[[int], tuple[int, object, Union[int, None]]]


class Memory(Protocol):
    @property
    def allocate(self) -> Allocate | None:
        """For Request.allocate; None: memory of the engine."""

    def stream(self) -> int | None:
        """The stream that may still use memory which torch hands out now; None where there are no streams."""

    def tensor(self, loaded: _inrush.Tensor, /) -> torch.Tensor:
        """The torch tensor of what was loaded; it keeps its memory alive."""

    def forget(self) -> None:
        """Lets go of memory that is only kept to make the next tensor sooner."""


def memory_on(device: str) -> Memory:
    return HostMemory() if device == "cpu" else DeviceMemory(torch.device(device))


class HostMemory:
    """Memory of the engine, into which reads go without a detour. Each tensor has a storage of its own."""

    allocate = None

    def stream(self) -> int | None:
        return None

    def tensor(self, loaded: _inrush.Tensor) -> torch.Tensor:
        dtype, shape = _dtypes.form_or_bytes(loaded.dtype, loaded.shape, loaded.nbytes)
        if loaded.nbytes == 0:
            _arrays.refuse_uncountable(loaded)
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(loaded, dtype=dtype).view(shape)

    def forget(self) -> None:
        pass


class _Form(NamedTuple):
    """A tensor's type and shape in torch. Models repeat theirs, so they are worked out once."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Base:
    """A slab as one array of one element type."""

    def __init__(self, slab: torch.Tensor, dtype: torch.dtype) -> None:
        self.address = slab.data_ptr()
        self.size = dtype.itemsize
        # A slab ends with its last tensor: its length need be no multiple of every element's size.
        self.tensor = slab[: slab.numel() // self.size * self.size].view(dtype)


class DeviceMemory:
    """Memory of torch's caching allocator, on the current stream of the thread that loads.

    Views of a slab share its storage, so that record_stream() and CUDA IPC mean what they mean for every
    torch tensor.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bases: dict[tuple[int, torch.dtype], _Base] = {}
        self._forms: dict[tuple[str, tuple[int, ...]], _Form] = {}

    def allocate(self, nbytes: int) -> tuple[int, object, int | None]:
        try:
            slab = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise _errors.make_error(
                "out_of_memory", f"torch has no {nbytes} bytes on {self._device}: {error}"
            ) from error
        return slab.data_ptr(), slab, self.stream()

    def stream(self) -> int | None:
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def tensor(self, loaded: _inrush.Tensor) -> torch.Tensor:
        form = self._form(loaded)
        slab = loaded.owner
        if slab is None:  # no bytes, no memory
            _arrays.refuse_uncountable(loaded)
            return torch.empty(form.shape, dtype=form.dtype, device=self._device)
        key = (id(slab), form.dtype)
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = _Base(slab, form.dtype)
        # 1.4 us a tensor this way, 8 by slicing and viewing (limits.md).
        return torch.as_strided(
            base.tensor, form.shape, form.strides, loaded.element_offset(base.address, base.size)
        )

    def _form(self, loaded: _inrush.Tensor) -> _Form:
        key = (loaded.dtype, loaded.shape)
        form = self._forms.get(key)
        if form is None:
            dtype, shape = _dtypes.form_or_bytes(loaded.dtype, loaded.shape, loaded.nbytes)
            form = self._forms[key] = _Form(dtype, shape, _strides(shape))
        return form

    def forget(self) -> None:
        self._bases.clear()


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * max(shape[i], 1)
    return tuple(strides)
