"""What is in a checkpoint of torch.distributed.checkpoint: folders of its own, and folders of safetensors."""

from __future__ import annotations

import json
import math
import os
from typing import NamedTuple

import torch
from inrush import _errors, _loads
from inrush._inrush import Checkpoint, TensorInfo
from inrush.torch import _archive, _dcp_metadata, _dcp_plan, _dtypes
from torch.distributed.checkpoint import metadata as dcp

_METADATA = ".metadata"
_SAFETENSORS = ".safetensors"
_SHARDING = "DCP_SHARDING_INFO"  # HuggingFaceStorageWriter says there which part of a tensor a file has


class StoredTensor(NamedTuple):
    """Where a tensor of a safetensors file lies, and what the file was when its header was read."""

    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    identity: _archive.Identity


def read_metadata(path: str, rank: int | None) -> dcp.Metadata:
    """The Metadata of a folder (or of a safetensors file).

    Its storage_data has a StoredItem or a StoredTensor for each index.

    rank: of a folder whose ranks each wrote a metadata file of their own.
    """
    name = os.path.join(path, _METADATA if rank is None else f"__{rank}{_METADATA}")
    if os.path.exists(name):
        with _archive.Source(name) as source:
            return _dcp_metadata.read_metadata(name, source.read(0, source.nbytes))
    if rank is None and (path.endswith((_SAFETENSORS, ".json")) or _safetensors_of(path)):
        return _safetensors_metadata(path)
    raise _errors.make_error(
        "not_found",
        f"{path}: neither {os.path.basename(name)} of torch.distributed.checkpoint nor a safetensors file is "
        "there",
    )


def _safetensors_of(path: str) -> list[str]:
    try:
        return sorted(
            os.path.join(path, name)
            for name in os.listdir(path)
            if name.endswith(_SAFETENSORS) and not name.startswith(".")
        )
    except OSError as error:
        raise _errors.make_error("not_found", f"{path}: {error.strerror}", error.errno or 0) from error


class _Part(NamedTuple):
    """A tensor of one file: all of a tensor, or the part of it that starts at `starts`."""

    entry: TensorInfo
    starts: tuple[int, ...]
    stored: StoredTensor


def _safetensors_metadata(path: str) -> dcp.Metadata:
    is_folder = os.path.isdir(path)
    # Before their headers are read: a file that changes afterwards is another one.
    files = _safetensors_of(path if is_folder else os.path.dirname(path) or ".")
    identities = {file: _archive.identity_of(file) for file in files}
    checkpoints = [_loads.open_checkpoint(file) for file in files] if is_folder else []
    if not any(_SHARDING in checkpoint.metadata for checkpoint in checkpoints):
        # An index decides which files count, and of tensors that are there twice which one.
        whole = _loads.open_checkpoint(path)
        elsewhere = (file.path for file in whole.files if file.path not in identities)
        identities |= {file: _archive.identity_of(file) for file in elsewhere}
        checkpoints = [whole]
    parts: dict[str, list[_Part]] = {}
    for checkpoint in checkpoints:
        starts = _starts_of(checkpoint)
        for name, entry in checkpoint.items():
            identity = identities.get(entry.file)
            if identity is None:
                raise _errors.make_error(
                    "corrupt_checkpoint", f"{entry.file}: it went away while it was read"
                )
            dtype, shape = _dtypes.form_or_bytes(entry.dtype, entry.shape, entry.nbytes)
            stored = StoredTensor(entry.file, entry.offset, dtype, shape, identity)
            first = starts.get(name, (0,) * len(shape))
            if len(first) != len(shape):
                raise _errors.make_error(
                    "corrupt_checkpoint",
                    f"{entry.file}: tensor {name!r} {list(shape)} should begin at {list(first)}",
                )
            parts.setdefault(name, []).append(_Part(entry, first, stored))
    return dcp.Metadata(
        state_dict_metadata={name: _tensor_of(name, group) for name, group in parts.items()},
        storage_data={
            dcp.MetadataIndex(name, part.starts): part.stored
            for name, group in parts.items()
            for part in group
        },
        storage_meta=dcp.StorageMeta(),
    )


def _starts_of(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Where in their tensors the parts in this file begin."""
    text = checkpoint.metadata.get(_SHARDING)
    if text is None:
        return {}
    try:
        starts = {name: tuple(entry["saved_offsets"]) for name, entry in json.loads(text).items()}
        if not all(type(start) is int and 0 <= start < 2**62 for entry in starts.values() for start in entry):
            raise ValueError("saved_offsets are not numbers")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _errors.make_error(
            "corrupt_checkpoint",
            f"{checkpoint.path}: {_SHARDING} of its __metadata__ is not readable: {error!r}",
        ) from error
    if missing := [name for name in checkpoint if name not in starts]:
        raise _errors.make_error(
            "corrupt_checkpoint",
            f"{checkpoint.path}: {_SHARDING} of its __metadata__ does not say where {missing[0]!r} belongs",
        )
    return starts


def _tensor_of(name: str, parts: list[_Part]) -> dcp.TensorStorageMetadata:
    first = parts[0]
    for part in parts:
        if part.stored.dtype != first.stored.dtype or len(part.starts) != len(first.starts):
            raise _errors.make_error(
                "corrupt_checkpoint",
                f"tensor {name!r}: {first.entry.file} and {part.entry.file} differ about its type or rank",
            )
    if len({part.starts for part in parts}) < len(parts):
        raise _errors.make_error(
            "corrupt_checkpoint", f"tensor {name!r}: two files have the part that begins at the same place"
        )
    size = torch.Size(
        max(part.starts[i] + part.stored.shape[i] for part in parts) for i in range(len(first.starts))
    )
    there = sum(math.prod(part.stored.shape) for part in parts)
    # What no file has would keep what was in memory.
    if not _dcp_plan.covers(size, [(part.starts, part.stored.shape) for part in parts]):
        raise _errors.make_error(
            "corrupt_checkpoint",
            f"tensor {name!r} {list(size)}: the files do not have all of it, {first.entry.file} among them; "
            "is one missing?",
        )
    if there > math.prod(size):
        raise _errors.make_error(
            "corrupt_checkpoint",
            f"tensor {name!r} {list(size)}: parts of it overlap, {first.entry.file} among their files",
        )
    return dcp.TensorStorageMetadata(
        properties=dcp.TensorProperties(dtype=first.stored.dtype),
        size=size,
        chunks=[
            dcp.ChunkStorageMetadata(torch.Size(part.starts), torch.Size(part.stored.shape)) for part in parts
        ],
    )
