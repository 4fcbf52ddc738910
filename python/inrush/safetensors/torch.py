"""`safetensors.torch` as a drop-in: the functions that load. Those that save are the package's own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from inrush._inrush import Loader
from inrush.safetensors import _delegate
from inrush.safetensors._open import FileName, load_content, safe_open

__all__ = ["load", "load_file", "load_model", "safe_open"]

__getattr__ = _delegate.to("safetensors.torch")


def load_file(
    filename: FileName, device: Any = "cpu", *, backend: str = "mmap", loader: Loader | None = None
) -> dict[str, torch.Tensor]:
    """All tensors of a file by name. The arguments and errors are those of safe_open."""
    with safe_open(filename, framework="pt", device=device, backend=backend, loader=loader) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, torch.Tensor]:
    """All tensors of a file whose content is `data`, copied into host memory."""
    return load_content(data, "pt")


def load_model(
    model: torch.nn.Module,
    filename: FileName,
    strict: bool = True,
    device: Any = "cpu",
    *,
    backend: str = "mmap",
    loader: Loader | None = None,
) -> tuple[set[str], list[str]]:
    """Loads a file that save_model() wrote into a module, by its load_state_dict().

    Of tensors of the model that share memory the file need have only one.
    device: where the tensors of the file are put before they are copied into the model.
    strict: raise RuntimeError where names are missing or unexpected.
    Returns the names of the model that the file has nothing for, and those of the file that the model did not
    need.
    """
    tensors = load_file(filename, device=device, backend=backend, loader=loader)
    doubles = list(_doubles(model.state_dict(), tensors))
    result = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for name in doubles:
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        raise RuntimeError(_difference(model, missing, unexpected))
    return missing, unexpected


def _difference(model: torch.nn.Module, missing: set[str], unexpected: list[str]) -> str:
    lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
    for kind, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            quoted = ", ".join(f'"{name}"' for name in sorted(names))
            lines.append(f"    {kind} key(s) in state_dict: {quoted}")
    return "\n".join(lines)


def _doubles(state: Mapping[str, torch.Tensor], in_file: Mapping[str, Any]) -> Iterator[str]:
    """Of each group of names that share memory all but the one that a file keeps."""
    for group in _groups_that_share(state):
        whole = [name for name in group if _fills_its_storage(state[name])]
        if not whole:
            raise RuntimeError(
                f"{', '.join(sorted(group))} of the model share memory and none has all of it: which of "
                "them a file holds cannot be said. Load by load_file() and copy."
            )
        keep = min(whole, key=lambda name: (name not in in_file, name))
        yield from sorted(name for name in group if name != keep)


def _groups_that_share(state: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Names whose tensors overlap in memory, directly or by way of another."""
    by_storage: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for name, tensor in state.items():
        if tensor.device.type == "meta" or tensor.numel() == 0:
            continue
        storage = tensor.untyped_storage()
        start = tensor.data_ptr()
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        stop = start + (last + 1) * tensor.itemsize
        by_storage[tensor.device, storage.data_ptr()].append((start, stop, name))
    for areas in by_storage.values():
        areas.sort()
        ends = itertools.accumulate((stop for _, stop, _ in areas), max)
        group: list[str] = []
        for (start, _, name), end_before in zip(areas, itertools.chain([0], ends), strict=False):
            if start >= end_before and len(group) > 1:
                yield group
            group = [name] if start >= end_before else [*group, name]
        if len(group) > 1:
            yield group


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return tensor.data_ptr() == storage.data_ptr() and tensor.nbytes == storage.nbytes()
