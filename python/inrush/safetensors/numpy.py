"""`safetensors.numpy` as a drop-in: the functions that load. Those that save are the package's own."""

from __future__ import annotations

from typing import Any

from inrush._inrush import Loader
from inrush.safetensors import _delegate
from inrush.safetensors._open import FileName, load_content, safe_open

__all__ = ["load", "load_file", "safe_open"]

__getattr__ = _delegate.to("safetensors.numpy")


def load_file(filename: FileName, *, backend: str = "mmap", loader: Loader | None = None) -> dict[str, Any]:
    """All arrays of a file by name. The arguments and errors are those of safe_open."""
    with safe_open(filename, framework="np", backend=backend, loader=loader) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """All arrays of a file whose content is `data`."""
    return load_content(data, "np")
