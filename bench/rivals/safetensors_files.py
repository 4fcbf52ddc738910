"""safetensors. Its defaults, files by 8 threads, and the prefetch of 0.9.

Source: safetensors/__init__.pyi and torch.py of the 0.9.0rc1 wheel. prefetch() documents threads=8 and
backend="mmap" as its defaults; 2 threads and backend="pread" were no better on an H200 (facts of 2026-11-29).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from rivals.rival import Pairs, Rival, Tensors, entries_of, needs_gpu


def _load(files: list[str], device: str) -> Tensors:
    from safetensors.torch import load_file

    tensors: Tensors = {}
    for path in files:
        tensors.update(load_file(path, device=device))
    return tensors


def _load_by_threads(files: list[str], device: str) -> Tensors:
    from safetensors.torch import load_file

    tensors: Tensors = {}
    with ThreadPoolExecutor(8) as pool:
        for part in pool.map(lambda path: load_file(path, device=device), files):
            tensors.update(part)
    return tensors


def _prefetch(files: list[str], device: str) -> Pairs:
    """All files are started before the first tensor is taken: they share one pinned pool."""
    from safetensors import safe_open

    with ExitStack() as opened:
        handles = [opened.enter_context(safe_open(path, "pt", device=device)) for path in files]
        loaders = [opened.enter_context(handle.prefetch(threads=8)) for handle in handles]
        for loader in loaders:
            yield from loader


def _slice(files: list[str], device: str, part: tuple[int, int]) -> Tensors:
    from safetensors import safe_open

    dimension, parts = part
    tensors: Tensors = {}
    for path in files:
        _, entries = entries_of(path)
        with safe_open(path, "pt", device=device) as handle:
            for name, entry in entries.items():
                tensors[name] = _part(handle, name, entry["shape"], (dimension, parts))
    return tensors


def _part(handle: Any, name: str, shape: list[int], part: tuple[int, int]) -> Any:
    dimension, parts = part
    if not name.endswith("_proj.weight"):
        return handle.get_tensor(name)
    wanted = (slice(None),) * dimension + (slice(0, shape[dimension] // parts),)
    return handle.get_slice(name)[wanted]


def _no_prefetch(device: str) -> str | None:
    from safetensors import safe_open

    if not hasattr(safe_open, "prefetch"):
        return "this safetensors has no prefetch(): it came with 0.9"
    return needs_gpu(device)


_IMPORTS = ("safetensors", "safetensors.torch")
RIVALS = [
    Rival(
        "safetensors", "safetensors", "load_file, file by file, backend mmap", _IMPORTS, load=_load,
        slice=_slice,
    ),
    Rival(
        "safetensors-threads", "safetensors", "load_file, 8 files at once", _IMPORTS, load=_load_by_threads
    ),
    Rival(
        "safetensors-prefetch", "safetensors", "safe_open.prefetch, threads=8, all files at once", _IMPORTS,
        pairs=_prefetch, unfit=_no_prefetch,
    ),
]  # fmt: skip
