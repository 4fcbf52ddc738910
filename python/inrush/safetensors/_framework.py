"""What a framework has to know for its tensors to be read: how one is made from bytes, loaded, and cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from inrush import _loads
from inrush._inrush import Checkpoint, Loader, TensorInfo
from inrush.safetensors import _errors
from inrush.safetensors._indices import Item


class Form(NamedTuple):
    """A tensor as its framework has it.

    packing: elements of the file in one of the framework; 2 for F4 in torch.
    """

    dtype: Any
    shape: tuple[int, ...]
    item_bytes: int
    packing: int


class Place(NamedTuple):
    """Where tensors go: "cpu" or "cuda:N", and the loader of the caller, if any."""

    device: str
    loader: Loader | None


class Framework(Protocol):
    name: str

    def place(self, device: Any, loader: Loader | None) -> Place:
        """The place for a device: None is the CPU, "cuda" is "cuda:0", as for the reference."""

    def form(self, info: TensorInfo) -> Form:
        """Raises for what the framework cannot express."""

    def make(self, data: bytearray, form: Form, shape: tuple[int, ...]) -> Any:
        """A tensor in host memory that owns `data`; `shape` need not be all of the form's."""

    def load(
        self, checkpoint: Checkpoint, place: Place, slices: _loads.Slices = None
    ) -> Mapping[str, Any]: ...

    def stream(self, checkpoint: Checkpoint, place: Place) -> Iterator[tuple[str, Any]]: ...

    def items(self, index: Any, shape: tuple[int, ...]) -> list[Item] | None:
        """An index as integers and slices; None for what only the framework itself can tell."""

    def cut(self, tensor: Any, *indices: Any) -> Any:
        """tensor[first][second] and so on, which keeps no more memory than it has elements."""

    def refuse_index(self, index: Any, form: Form) -> None:
        """For an index of which items() gives nothing, or that leaves the tensor: raises, before any I/O,
        where the framework takes none like it."""

    def moved(self, tensor: Any, place: Place) -> Any:
        """A tensor of make() or load() at its place."""

    def finish(self, tensor: Any) -> Any:
        """What the caller gets for a tensor of moved()."""


def refuse_uncountable(info: TensorInfo) -> None:
    if info.nbytes == 0 and any(length >= 2**63 for length in info.shape):
        raise _errors.make_error(
            "invalid_request",
            f"{info.file}: tensor {info.name!r} has shape {list(info.shape)}: no framework counts as far",
        )
