"""Where the tensors of a load live, and how one is made there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, Union

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

    def take(self, load: _inrush.Load, into: dict[str, Any], /) -> int:
        """Waits for what arrives next, makes its tensors and puts them into the dict by name. How many; 0 at
        the end."""

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

    def take(self, load: _inrush.Load, into: dict[str, Any]) -> int:
        batch = load.take()
        for loaded in batch:
            into[loaded.name] = self.tensor(loaded)
        return len(batch)

    def forget(self) -> None:
        pass


def plain_view(
    base: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """`offset` counts elements from the first of `base`."""
    # Without .data autograd would take the tensors of a slab for one: a write to a buffer between forward and
    # backward made its neighbours unfit for backward.
    return torch.as_strided(base, shape, strides, base.storage_offset() + offset).data


def fastest_view() -> Callable[..., torch.Tensor]:
    """What the code of torch's compiler makes its views by, if this torch has it and it does as plain_view():
    it takes 0.4 us a tensor, plain_view() 1.7."""
    try:
        guards: Any = torch._C._dynamo.guards  # its stub leaves it out
        view: Callable[..., torch.Tensor] = guards._reinterpret_tensor
        with torch.inference_mode(False):
            base = torch.arange(12, dtype=torch.int16, device="cpu")[3:]
            made, expected = (make(base, (2, 1, 2), (3, 2, 1), 3) for make in (view, plain_view))
            made.add_(1)
            is_same = torch.equal(made, expected) and made.stride() == expected.stride()
            return view if is_same and base._version == 0 else plain_view
    except (AttributeError, TypeError, RuntimeError):
        return plain_view


class DeviceMemory:
    """Memory of torch's caching allocator, on the current stream of the thread that loads.

    Views of a slab share its storage, so that record_stream() and CUDA IPC mean what they mean for every
    torch tensor.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._views = _inrush.Views(
            form=_form, base=_base, view=fastest_view(), empty=functools.partial(_empty, device)
        )

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
        tensor: torch.Tensor = self._views.of(loaded)
        return tensor

    def take(self, load: _inrush.Load, into: dict[str, Any]) -> int:
        return load.take_views(self._views, into)

    def forget(self) -> None:
        self._views.forget()


def _form(
    dtype: str, shape: tuple[int, ...], nbytes: int
) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    """Element type, shape and strides in torch."""
    element, shape = _dtypes.form_or_bytes(dtype, shape, nbytes)
    return element, shape, _strides(shape)


def _base(slab: torch.Tensor, element: torch.dtype) -> tuple[torch.Tensor, int, int]:
    """A slab as one array of one element type, its address and the bytes of an element."""
    nbytes = element.itemsize
    # A slab ends with its last tensor: its length need be no multiple of every element's size.
    return slab[: slab.numel() // nbytes * nbytes].view(element), slab.data_ptr(), nbytes


def _empty(device: torch.device, loaded: _inrush.Tensor) -> torch.Tensor:
    _arrays.refuse_uncountable(loaded)
    dtype, shape = _dtypes.form_or_bytes(loaded.dtype, loaded.shape, loaded.nbytes)
    return torch.empty(shape, dtype=dtype, device=device)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * max(shape[i], 1)
    return tuple(strides)
