"""`get_slice`: parts of a tensor, of which no more is read than it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from inrush import Slice
from inrush._inrush import TensorInfo
from inrush.safetensors import _errors, _indices
from inrush.safetensors._framework import Form, Framework, Place
from inrush.safetensors._indices import Box, Range
from inrush.safetensors._source import File

# Up to here one read into host memory beats a load (docs/safetensors.md has the figures).
DIRECT_BYTES_MAX = 1 << 20


class TensorReader(NamedTuple):
    """How the tensors of one file are read for one framework and device."""

    file: File
    framework: Framework
    place: Place

    def whole(self, info: TensorInfo) -> Any:
        form = self.framework.form(info)
        if self._is_direct(info.nbytes):
            tensor = self.framework.make(self.file.read(info, 0, info.nbytes), form, form.shape)
        else:
            tensor = self._load(info, None)
        return self._handed_out(tensor)

    def part(self, info: TensorInfo, form: Form, box: Box) -> Any:
        """What a box takes. Keeps no more memory than its elements need."""
        tensor, ranges = self._read_around(info, form, box.ranges)
        if ranges == box.ranges:
            return self._handed_out(self.framework.cut(tensor, box.taken))
        inner = tuple(
            slice(wanted.start - read.start, wanted.start - read.start + wanted.length)
            for wanted, read in zip(box.ranges, ranges, strict=True)
        )
        return self._handed_out(self.framework.cut(tensor, inner, box.taken))

    def all(self) -> dict[str, Any]:
        """All tensors, by one load."""
        checkpoint = self.file.checkpoint
        if not self.file.is_in_place():
            return {name: self.whole(info) for name, info in checkpoint.items()}
        with _errors.adapted():
            loaded = self.framework.load(checkpoint, self.place)
        return {name: self.framework.finish(tensor) for name, tensor in loaded.items()}

    def stream(self) -> Iterator[tuple[str, Any]]:
        """All tensors as they arrive."""
        checkpoint = self.file.checkpoint
        if not self.file.is_in_place():
            yield from ((name, self.whole(info)) for name, info in checkpoint.items())
            return
        with _errors.adapted():
            for name, tensor in self.framework.stream(checkpoint, self.place):
                yield name, self.framework.finish(tensor)
                del tensor

    def _handed_out(self, tensor: Any) -> Any:
        return self.framework.finish(self.framework.moved(tensor, self.place))

    def _is_direct(self, nbytes: int, saves: bool = False) -> bool:
        """Whether so many bytes are read by the descriptor instead of a load.

        saves: whether a load would read more.
        """
        if nbytes <= DIRECT_BYTES_MAX or (saves and self.place.device == "cpu"):
            return True
        return not self.file.is_in_place()

    def _read_around(
        self, info: TensorInfo, form: Form, ranges: tuple[Range, ...]
    ) -> tuple[Any, tuple[Range, ...]]:
        """Reads a box around `ranges`; says which."""
        rows = _indices.rows_of(ranges, form.shape)
        shape = tuple(range_.length for range_ in rows)
        count = math.prod(shape)
        cut = _indices.cheapest_cut(ranges, form.shape)
        saves = rows == ranges and cut is not None and count < cut.reads
        if self._is_direct(count * form.item_bytes, saves):
            offset = _indices.offset_of(rows, form.shape) * form.item_bytes if count else 0
            data = self.file.read(info, offset, count * form.item_bytes)
            return self.framework.make(data, form, shape), rows
        everything = tuple(Range(0, extent) for extent in form.shape)
        if cut is None:
            return self._load(info, None), everything
        packing = form.packing if cut.dimension == len(form.shape) - 1 else 1
        slice_ = Slice(cut.dimension, cut.range.start * packing, cut.range.length * packing)
        around = (*everything[: cut.dimension], cut.range, *everything[cut.dimension + 1 :])
        return self._load(info, slice_), around

    def _load(self, info: TensorInfo, slice_: Slice | None) -> Any:
        with _errors.adapted():
            slices = {info.name: slice_} if slice_ else None
            return self.framework.load(self.file.alone(info), self.place, slices)[info.name]


class PySafeSlice:
    """A tensor of which parts can be had by indexing; nothing is read before.

    Named as the class of the reference.
    """

    def __init__(self, reader: TensorReader, info: TensorInfo) -> None:
        self._reader = reader
        self._info = info

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor, in elements as the file counts them."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """The element type as the file spells it, "BF16"."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        """The part as a tensor of its own.

        torch: whatever torch takes as an index, with its errors. NumPy and JAX: integers, slices that go
        forward and an Ellipsis; what ends outside of the tensor is refused as the reference refuses it.
        """
        if index is Ellipsis:  # as transformers asks for whole tensors
            return self._reader.whole(self._info)
        framework = self._reader.framework
        form = framework.form(self._info)
        items = framework.items(index, form.shape)
        box = None if items is None else _indices.box_of(items, form.shape)
        if box is not None:
            return self._reader.part(self._info, form, box)
        framework.refuse_index(index, form)
        return framework.cut(self._reader.whole(self._info), index)
