"""Inrush: all defaults, and cold loads past the page cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rivals.rival import Pairs, Rival, Tensors

_reports: list[Any] = []


def _path(files: list[str]) -> str:
    """The folder, as a user names it: the bench gives each process one with its files and no others."""
    folder = Path(files[0]).parent
    assert len(files) == len(list(folder.glob("*.safetensors"))), f"{folder} has more than {len(files)} files"
    return str(folder)


def _load(files: list[str], device: str) -> Tensors:
    import inrush.torch

    tensors = inrush.torch.load(_path(files), device)
    _reports[:] = [tensors.report]
    return tensors


def _load_past_cache(files: list[str], device: str) -> Tensors:
    import inrush.torch

    tensors = inrush.torch.load(_path(files), device, page_cache="bypass")
    _reports[:] = [tensors.report]
    return tensors


def _stream(files: list[str], device: str) -> Pairs:
    import inrush.torch

    _reports.clear()
    return inrush.torch.stream(_path(files), device)


def _load_into(files: list[str], targets: Tensors) -> None:
    import inrush.torch

    _reports[:] = inrush.torch.load_into(_path(files), targets).reports


def _slice(files: list[str], device: str, part: tuple[int, int]) -> Tensors:
    import inrush
    import inrush.torch

    dimension, parts = part
    tensors = inrush.torch.load(
        _path(files), device, slices=inrush.ShardSpec({"*_proj.weight": dimension}, rank=0, world=parts)
    )
    _reports[:] = [tensors.report]
    return tensors


def _details() -> dict[str, Any]:
    if not _reports:
        return {}
    report = _reports[0]
    stages = ("open", "plan", "allocate", "first_byte", "first_tensor", "last_byte")
    return {
        "pinned_bytes": report.pinned_peak_bytes,
        "stages": {name: round(getattr(report.seconds, name), 5) for name in stages},
        "fallbacks": [str(fallback) for fallback in report.fallbacks],
        "copied_bytes": report.loaded_bytes,
    }


_IMPORTS = ("inrush", "inrush.torch")
RIVALS = [
    Rival(
        "inrush", "inrush", "inrush.torch.load, defaults", _IMPORTS, load=_load, slice=_slice,
        details=_details,
    ),
    Rival(
        "inrush-bypass", "inrush", "inrush.torch.load, page_cache=\"bypass\"", _IMPORTS,
        load=_load_past_cache, details=_details,
    ),
    Rival("inrush-stream", "inrush", "inrush.torch.stream, all kept", _IMPORTS, pairs=_stream),
    Rival("inrush-into", "inrush", "inrush.torch.load_into", _IMPORTS, fill=_load_into, details=_details),
]  # fmt: skip
