"""torch as a framework of the drop-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

import inrush.torch
from inrush import _loads
from inrush._inrush import Checkpoint, Loader, TensorInfo
from inrush.safetensors import _errors, _indices
from inrush.safetensors._framework import Form, Place, refuse_uncountable
from inrush.safetensors._indices import Item
from inrush.torch import _dtypes
from inrush.torch._load import engine_device


class Torch:
    name = "pt"

    def place(self, device: Any, loader: Loader | None) -> Place:
        if device is None:
            return Place("cpu", loader)
        if device == "cuda":
            return Place("cuda:0", loader)
        return Place(engine_device(device, loader), loader)

    def form(self, info: TensorInfo) -> Form:
        if info.dtype in _dtypes.DOUBTFUL:
            with _errors.adapted():
                _dtypes.refuse_inexpressible([info], "error")
        refuse_uncountable(info)
        form = _dtypes.torch_form(info.dtype, info.shape)
        assert form is not None
        return Form(form[0], form[1], form[0].itemsize, 2 if info.dtype == "F4" else 1)

    def make(self, data: bytearray, form: Form, shape: tuple[int, ...]) -> Any:
        if not data:
            return torch.empty(shape, dtype=form.dtype, device="cpu")
        return torch.frombuffer(data, dtype=form.dtype).view(shape)

    def load(self, checkpoint: Checkpoint, place: Place, slices: _loads.Slices = None) -> Mapping[str, Any]:
        if place.device == "cpu":
            return inrush.torch.load(checkpoint, "cpu", slices=slices, progress=False, loader=place.loader)
        _, parts = _loads.selected(checkpoint, None, slices)
        entries = checkpoint.selection(None, parts)
        tensors = {entry.name: self.own(entry, place.device) for entry in entries}
        inrush.torch.load_into(checkpoint, tensors, slices=slices, progress=False, loader=place.loader)
        return tensors

    def own(self, entry: TensorInfo, device: str) -> torch.Tensor:
        """Room for a tensor in a storage of its own, as the package gives them: accelerate's save_model()
        takes tensors that share one for tied, and wrote 1 of 21 that were views of a slab."""
        dtype, shape = _dtypes.form_or_bytes(entry.dtype, entry.shape, entry.nbytes)
        return torch.empty(shape, dtype=dtype, device=device)

    def stream(self, checkpoint: Checkpoint, place: Place) -> Iterator[tuple[str, torch.Tensor]]:
        return inrush.torch.stream(checkpoint, place.device, progress=False, loader=place.loader)

    def items(self, index: Any, shape: tuple[int, ...]) -> list[Item] | None:
        if isinstance(index, list) and not index:
            index = slice(0, 0)
        return _indices.plain_items(index, len(shape))

    def cut(self, tensor: Any, *indices: Any) -> Any:
        part = tensor
        for index in indices:
            part = part[index]
        is_copy = part.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
        if is_copy or part.numel() == tensor.numel():
            return part
        if part.itemsize > 1:
            return part.clone(memory_format=torch.contiguous_format)
        # torch copies no float4.
        copied = part.view(torch.uint8).clone(memory_format=torch.contiguous_format)
        return copied.view(part.dtype)

    def refuse_index(self, index: Any, form: Form) -> None:
        torch.empty(form.shape, dtype=form.dtype, device="meta")[index]

    def moved(self, tensor: Any, place: Place) -> Any:
        return tensor if place.device == "cpu" else tensor.to(place.device)

    def finish(self, tensor: Any) -> Any:
        return tensor
