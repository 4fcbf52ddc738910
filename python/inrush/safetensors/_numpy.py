"""NumPy as a framework of the drop-in, and JAX by way of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inrush import _arrays, _devices, _loads
from inrush._inrush import Checkpoint, Loader, TensorInfo
from inrush.safetensors import _errors, _indices
from inrush.safetensors._framework import Form, Place, refuse_uncountable
from inrush.safetensors._indices import Item


class Numpy:
    name = "numpy"

    def __init__(self) -> None:
        import numpy

        self._numpy = numpy
        self._numpy_dtypes = _arrays._numpy_dtypes()

    def place(self, device: Any, loader: Loader | None) -> Place:
        device = "cpu" if device is None else _devices.normalise(device, loader)
        if device != "cpu":
            raise _errors.make_error(
                "invalid_request",
                f'Device {device} is not supported for framework {self.name}: say device="cpu", or '
                'framework="pt"',
            )
        return Place("cpu", loader)

    def form(self, info: TensorInfo) -> Form:
        if info.dtype in _arrays.PACKED:
            with _errors.adapted():
                _arrays.refuse_packed([info], self.name)
        refuse_uncountable(info)
        dtype = self._numpy_dtypes[info.dtype]
        return Form(dtype, info.shape, dtype.itemsize, 1)

    def make(self, data: bytearray, form: Form, shape: tuple[int, ...]) -> Any:
        return self._numpy.ndarray(shape, form.dtype, buffer=data)

    def load(self, checkpoint: Checkpoint, place: Place, slices: _loads.Slices = None) -> Mapping[str, Any]:
        from inrush import _load

        return _load.load(checkpoint, framework="numpy", slices=slices, progress=False, loader=place.loader)

    def stream(self, checkpoint: Checkpoint, place: Place) -> Iterator[tuple[str, Any]]:
        return iter(self.load(checkpoint, place).items())

    def items(self, index: Any, shape: tuple[int, ...]) -> list[Item] | None:
        return _indices.strict_items(index, shape)

    def cut(self, tensor: Any, *indices: Any) -> Any:
        part = tensor
        for index in indices:
            part = part[(*index, ...)]  # an array also where it has no dimension left
        return part if part.size == tensor.size else part.copy()

    def refuse_index(self, index: Any, form: Form) -> None:
        pass  # items() did

    def moved(self, tensor: Any, place: Place) -> Any:
        return tensor

    def finish(self, tensor: Any) -> Any:
        return tensor


class Jax(Numpy):
    """JAX by way of NumPy, as the reference: jax.numpy.array() decides about elements of 64 bits."""

    name = "flax"

    def __init__(self) -> None:
        super().__init__()
        import jax.numpy

        self._array = jax.numpy.array

    def finish(self, tensor: Any) -> Any:
        return self._array(tensor)
