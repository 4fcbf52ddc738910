"""A drop-in for the package safetensors: what loads is Inrush, what saves is the package's own.

    from inrush.safetensors import safe_open
    from inrush.safetensors.torch import load_file

    with inrush.safetensors.patch():      # code that imports safetensors itself
        model = AutoModel.from_pretrained("/models/llama")

Importing it imports neither torch nor safetensors. `load_file`, `load` and `load_model` are those of
inrush.safetensors.torch, imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from inrush.safetensors import _delegate
from inrush.safetensors import _errors as _error_classes
from inrush.safetensors._open import safe_open
from inrush.safetensors._patch import patch
from inrush.safetensors._slices import PySafeSlice

__all__ = [
    "Error", "PySafeSlice", "SafetensorError", "load", "load_file", "load_model", "patch", "safe_open",
]  # fmt: skip

_OF_TORCH = ("load", "load_file", "load_model")

_package = _delegate.to("safetensors")


def __getattr__(name: str) -> Any:
    if name == "Error":
        return _error_classes.error_class()
    if name == "SafetensorError":
        return _error_classes.reference_class()
    if name in _OF_TORCH:
        return getattr(importlib.import_module("inrush.safetensors.torch"), name)
    return _package(name)
