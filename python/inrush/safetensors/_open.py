"""`safe_open`: a handle on one file or several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Self, Union

from inrush._inrush import Loader, TensorInfo
from inrush.safetensors import _errors, _frameworks
from inrush.safetensors._slices import PySafeSlice, TensorReader
from inrush.safetensors._source import Content, File

FileName = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
FileNames = Union[FileName, "list[FileName]", "tuple[FileName, ...]"]

BACKENDS = ("mmap", "pread")


def refuse_backend(backend: str) -> None:
    """Raises for what the reference does not take either. Inrush reads in its own ways with all of them."""
    if backend not in BACKENDS:
        raise _errors.make_error(
            "invalid_request", f'backend {backend!r} is invalid (expected one of: "mmap", "pread")'
        )


class _Files:
    """What an open handle has: a reader for each file, and where each tensor is."""

    def __init__(self, names: FileNames, framework: str, device: Any, loader: Loader | None) -> None:
        self.framework = _frameworks.framework_of(framework)
        with _errors.adapted():
            place = self.framework.place(device, loader)
        paths = list(names) if isinstance(names, (list, tuple)) else [names]
        self.readers = [TensorReader(File(path), self.framework, place) for path in paths]
        self.tensors: dict[str, tuple[TensorReader, TensorInfo]] = {}
        for reader in self.readers:
            for name, info in reader.file.checkpoint.items():
                if name in self.tensors:
                    raise _errors.make_error(
                        "invalid_request",
                        f"tensor {name!r} is in {self.tensors[name][1].file} and in {info.file}: open them "
                        "one by one",
                    )
                self.tensors[name] = reader, info

    def find(self, name: str) -> tuple[TensorReader, TensorInfo]:
        found = self.tensors.get(name)
        if found is None:
            raise _errors.make_error("invalid_request", f"File does not contain tensor {name}")
        return found


class safe_open:
    """Opens a safetensors file; tensors are read as they are asked for, and are valid after it is closed.

    filename: a path, or a list of paths whose tensors have different names.
    framework: "pt" ("torch", "pytorch"), "np" ("numpy"), or "flax" ("jax"), which is NumPy and a copy.
    device: "cpu", "cuda" (that is "cuda:0", as in the reference), "cuda:1", 1, a GPU's UUID, a torch.device.
        None is "cpu".
    backend: "mmap" or "pread" are taken and mean nothing here.
    loader: an inrush.Loader; without it the one that the process keeps for the device.
    Raises Error, which `except SafetensorError` catches too; FileNotFoundError where there is no such file.
    """

    def __init__(
        self,
        filename: FileNames,
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        loader: Loader | None = None,
    ) -> None:
        refuse_backend(backend)
        self._files: _Files | None = _Files(filename, framework, device, loader)

    def _open_files(self) -> _Files:
        if self._files is None:
            raise _errors.make_error("invalid_request", "File is closed")
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files = None

    def metadata(self) -> dict[str, str] | None:
        """`__metadata__` of the file, None where it has none; of several files together, where two differ
        about a key the first one's value."""
        found = [reader.file.metadata() for reader in self._open_files().readers]
        present = [metadata for metadata in found if metadata is not None]
        if not present:
            return None
        return {key: value for metadata in reversed(present) for key, value in metadata.items()}

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._open_files().tensors)

    def offset_keys(self) -> list[str]:
        """The names of the tensors as they lie in the file; of several files, one after the other."""
        return list(self._open_files().tensors)

    def get_tensor(self, name: str) -> Any:
        """One tensor, complete."""
        reader, info = self._open_files().find(name)
        return reader.whole(info)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of offset_keys(), by one load a file."""
        files = self._open_files()
        return {name: tensor for reader in files.readers for name, tensor in reader.all().items()}

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yields (name, tensor) in order of arrival; for torch they are read while the caller works."""
        files = self._open_files()
        for reader in files.readers:
            yield from reader.stream()

    def get_slice(self, name: str) -> PySafeSlice:
        """A tensor to be indexed: `get_slice(name)[:, :8]` reads what that takes. It outlives the handle."""
        return PySafeSlice(*self._open_files().find(name))


def load_content(data: bytes, framework: str) -> dict[str, Any]:
    """All tensors of a file whose content is `data`, each in memory of its own."""
    content, made_by = Content(data), _frameworks.framework_of(framework)
    tensors: dict[str, Any] = {}
    for name, info in content.checkpoint.items():
        form = made_by.form(info)
        data_of_it = content.read(info, 0, info.nbytes)
        tensors[name] = made_by.finish(made_by.make(data_of_it, form, form.shape))
    return tensors
