"""What the drop-in leaves to the package that it stands in for: saving, and what else has a name there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def to(module: str) -> Callable[[str], Any]:
    """A module's __getattr__ that looks names up in `module`, without which there are none."""

    def get(name: str) -> Any:
        error = AttributeError(f"module 'inrush.{module}' has no attribute {name!r}")
        if name.startswith("__"):
            raise error
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as cause:
            raise error from cause

    return get
