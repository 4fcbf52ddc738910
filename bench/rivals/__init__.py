"""The loaders that bench.py compares, one file a package. rival.py says what each file gives."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from rivals.rival import Rival

__all__ = ["Rival", "all_rivals"]


def all_rivals() -> dict[str, Rival]:
    """By name, ours first. Nothing that they need is imported."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    names.remove("rival")
    names.sort(key=lambda name: name != "ours")
    found: dict[str, Rival] = {}
    for name in names:
        for rival in importlib.import_module(f"rivals.{name}").RIVALS:
            assert rival.name not in found, f"two rivals named {rival.name}"
            found[rival.name] = rival
    return found
