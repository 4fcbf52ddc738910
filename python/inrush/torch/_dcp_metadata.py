"""`.metadata` of a folder of torch.distributed.checkpoint: a pickle, read without trusting it.

torch reads it by pickle.load(), which runs whatever the file says. Here the unpickler knows the classes that
DCP writes and no others, and gives it stand-ins that hold values and do nothing, made anew for each file:
what a hostile pickle does to them reaches no class of torch. The real objects are made of their values
afterwards, each checked. It is the unpickler in Python and not the one in C, which allocates and fills what a
number in the file says, up to 64 GiB.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import pickle
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from inrush import _errors
from inrush.torch import _dcp_plan
from torch.distributed.checkpoint import metadata as dcp

_METADATA = "torch.distributed.checkpoint.metadata"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"  # of torch before 2.3
# What DCP writes, and the name that it has here.
_KNOWN = {
    (_METADATA, "Metadata"): "Metadata",
    (_METADATA, "MetadataIndex"): "MetadataIndex",
    (_METADATA, "TensorStorageMetadata"): "TensorStorageMetadata",
    (_METADATA, "BytesStorageMetadata"): "BytesStorageMetadata",
    (_METADATA, "ChunkStorageMetadata"): "ChunkStorageMetadata",
    (_METADATA, "TensorProperties"): "TensorProperties",
    (_METADATA, "_MEM_FORMAT_ENCODING"): "MemoryFormat",
    (_METADATA, "StorageMeta"): "StorageMeta",
    (_SHARDED, "TensorProperties"): "TensorProperties",
    (_SHARDED, "MEM_FORMAT_ENCODING"): "MemoryFormat",
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): "StorageInfo",
    ("torch.serialization", "_get_layout"): "Layout",
    ("pathlib", "PosixPath"): "Path",
    ("pathlib", "WindowsPath"): "Path",
    ("pathlib._local", "PosixPath"): "Path",  # Python 3.13
}
# Of the protocols 2 to 5; without extensions, buffers and persistent objects, which DCP has no use for.
_OPERATIONS = [
    getattr(pickle, name)
    for name in (
        "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 "
        "LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 "
        "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM "
        "SETITEMS EMPTY_SET ADDITEMS FROZENSET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD BINGET "
        "LONG_BINGET BINPUT LONG_BINPUT MEMOIZE"
    ).split()
]
_WEIGHT_MAX = 1_000_000  # of one tuple, all that is nested in it counted
_MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last, torch.preserve_format)


class StoredItem(NamedTuple):
    """Where an item lies: an object of torch.save() at [offset, offset + nbytes) of a file of the folder."""

    file: str
    offset: int
    nbytes: int
    transforms: tuple[str, ...]


def read_metadata(path: str, data: bytes) -> dcp.Metadata:
    """The Metadata of such a file; its storage_data has a StoredItem for each index.

    Raises Error: "invalid_request" for a class that DCP does not write, "corrupt_checkpoint" for what is no
        metadata of DCP. Classes that torch.serialization.add_safe_globals() was given are allowed too.
    """
    try:
        record = _Unpickler(path, data).load()
        return _Conversion(path).metadata(record)
    except _errors.Error:
        raise
    except Exception as error:  # of hostile input pickle raises anything
        raise _corrupt(path, f"{type(error).__name__}: {error}") from error


def _corrupt(path: str, cause: str) -> _errors.Error:
    return _errors.make_error(
        "corrupt_checkpoint", f"{path}: no metadata of torch.distributed.checkpoint: {cause}"
    )


class _Record:
    """Stands in for an object: the arguments that it was made with, and its state."""

    kind = ""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _weighed(operation: Any) -> Any:
    def load(self: Any) -> None:
        operation(self)
        self.weigh(self.stack[-1])

    return load


class _Unpickler(pickle._Unpickler):
    dispatch = {ord(operation): pickle._Unpickler.dispatch[ord(operation)] for operation in _OPERATIONS}
    for _operation in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.FROZENSET):
        dispatch[ord(_operation)] = _weighed(dispatch[ord(_operation)])

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path
        self._weights: dict[int, int] = {}  # by id
        self._weighed: list[Any] = []  # keeps those ids theirs
        self._kinds = {kind: type(kind, (_Record,), {"kind": kind}) for kind in set(_KNOWN.values())}

    def weigh(self, value: Any) -> None:
        """A tuple whose parts are shared is small and takes for ever to hash or compare: 290 bytes did."""
        weight = 1 + sum(self._weights.get(id(part), 1) for part in value)
        if weight > _WEIGHT_MAX:
            raise _corrupt(
                self._path, f"a {type(value).__name__} that unfolds to more than {_WEIGHT_MAX} values"
            )
        self._weights[id(value)] = weight
        self._weighed.append(value)

    def find_class(self, module: str, name: str) -> Any:
        kind = _KNOWN.get((module, name))
        if kind is not None:
            return self._kinds[kind]
        if (module, name) == ("torch", "Size"):
            return torch.Size
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        for allowed in torch.serialization.get_safe_globals():
            value, spelling = allowed if isinstance(allowed, tuple) else (allowed, _spelling(allowed))
            if spelling == f"{module}.{name}":
                return value
        raise _errors.make_error(
            "invalid_request",
            f"{self._path}: its pickle names {module}.{name}, which torch.distributed.checkpoint does not "
            "write there. If you trust the file, allow it by torch.serialization.add_safe_globals()",
        )


def _spelling(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


class _Conversion:
    """From stand-ins to the classes of torch."""

    def __init__(self, path: str) -> None:
        self._path = path

    def metadata(self, record: Any) -> dcp.Metadata:
        state = self._state(record, "Metadata")
        self._refuse_stand_ins(state.get("planner_data"))
        values: dict[str, Any] = {
            "state_dict_metadata": {
                self._text(name): self._entry(name, entry)
                for name, entry in self._dict(state.get("state_dict_metadata")).items()
            },
            "planner_data": state.get("planner_data"),
            "storage_data": {
                self._index(index): self._item(item)
                for index, item in self._dict(state.get("storage_data")).items()
            },
            "storage_meta": self._storage_meta(state.get("storage_meta")),
            "version": state.get("version") and self._text(state["version"]),
        }
        known = {field.name for field in dataclasses.fields(dcp.Metadata)}
        return dcp.Metadata(**{name: value for name, value in values.items() if name in known})

    def _entry(self, name: str, record: Any) -> dcp.TensorStorageMetadata | dcp.BytesStorageMetadata:
        if isinstance(record, _Record) and record.kind == "BytesStorageMetadata":
            return dcp.BytesStorageMetadata()
        state = self._state(record, "TensorStorageMetadata")
        size = self._numbers(state.get("size"))
        chunks = [self._chunk(name, size, chunk) for chunk in self._list(state.get("chunks"))]
        if not _dcp_plan.covers(size, [(chunk.offsets, chunk.sizes) for chunk in chunks]):
            # What no chunk has would keep what was in memory.
            raise _corrupt(self._path, f"the chunks of tensor {name!r} {list(size)} leave a part of it out")
        return dcp.TensorStorageMetadata(self._properties(state.get("properties")), size, chunks)

    def _chunk(self, name: str, size: torch.Size, record: Any) -> dcp.ChunkStorageMetadata:
        state = self._state(record, "ChunkStorageMetadata")
        offsets, sizes = self._numbers(state.get("offsets")), self._numbers(state.get("sizes"))
        inside = len(offsets) == len(sizes) == len(size) and all(
            offset + extent <= whole for offset, extent, whole in zip(offsets, sizes, size)
        )
        if not inside:
            raise _corrupt(
                self._path, f"chunk {list(sizes)} at {list(offsets)} leaves tensor {name!r} {list(size)}"
            )
        return dcp.ChunkStorageMetadata(offsets, sizes)

    def _properties(self, record: Any) -> dcp.TensorProperties:
        if not isinstance(record, _Record) or record.kind != "TensorProperties":
            raise _corrupt(self._path, "the properties of a tensor are something else")
        dtype, layout, requires_grad, memory_format, pin_memory = record.state
        if not isinstance(dtype, torch.dtype):
            raise _corrupt(self._path, f"an element type is a {type(dtype).__name__}")
        return dcp.TensorProperties(
            dtype=dtype,
            layout=self._layout(layout),
            requires_grad=bool(requires_grad),
            memory_format=_MEMORY_FORMATS[memory_format.args[0]],
            pin_memory=bool(pin_memory),
        )

    def _layout(self, record: Any) -> torch.layout:
        name = self._text(record.args[0]) if isinstance(record, _Record) else ""
        layout = getattr(torch, name.removeprefix("torch."), None)
        if not isinstance(layout, torch.layout):
            raise _corrupt(self._path, f"{name!r} is no layout")
        return layout

    def _index(self, record: Any) -> dcp.MetadataIndex:
        state = self._state(record, "MetadataIndex")
        offset, index = state.get("offset"), state.get("index")
        return dcp.MetadataIndex(
            self._text(state.get("fqn")),
            None if offset is None else self._numbers(offset),
            None if index is None else self._number(index),
        )

    def _item(self, record: Any) -> StoredItem:
        state = self._state(record, "StorageInfo")
        file = self._text(state.get("relative_path"))
        if not file or "\0" in file or os.path.isabs(file) or ".." in file.split("/"):
            raise _corrupt(self._path, f"an item lies in {file!r}, outside of the folder")
        transforms = self._list(state.get("transform_descriptors") or [])
        return StoredItem(
            file,
            self._number(state.get("offset")),
            self._number(state.get("length")),
            tuple(self._text(transform) for transform in transforms),
        )

    def _storage_meta(self, record: Any) -> dcp.StorageMeta:
        if record is None:
            return dcp.StorageMeta()
        state = self._state(record, "StorageMeta")
        place = state.get("checkpoint_id")
        if isinstance(place, _Record) and place.kind == "Path":
            place = os.path.join("", *map(self._text, place.args))
        return dcp.StorageMeta(
            checkpoint_id=None if place is None else self._text(place),
            save_id=None if state.get("save_id") is None else self._text(state["save_id"]),
            modules=[self._text(module) for module in self._list(state.get("modules") or [])],
        )

    # Values

    def _state(self, record: Any, kind: str) -> dict[str, Any]:
        if not isinstance(record, _Record) or record.kind != kind:
            raise _corrupt(self._path, f"a {type(record).__name__} where {kind} should be")
        return self._dict(record.state or {})

    def _dict(self, value: Any) -> dict[Any, Any]:
        return value if isinstance(value, dict) else self._refuse(value, "mapping")

    def _list(self, value: Any) -> list[Any]:
        return list(value) if isinstance(value, (list, tuple)) else self._refuse(value, "list")

    def _text(self, value: Any) -> str:
        return value if isinstance(value, str) else self._refuse(value, "text")

    def _number(self, value: Any) -> int:
        return value if type(value) is int and 0 <= value < 2**63 else self._refuse(value, "number")

    def _numbers(self, value: Any) -> torch.Size:
        numbers = [self._number(number) for number in self._list(value)]
        if math.prod(numbers) >= 2**63:
            raise _corrupt(self._path, f"{numbers} elements")
        return torch.Size(numbers)

    def _refuse(self, value: Any, wanted: str) -> Any:
        shown = f" {value[:40]!r}" if isinstance(value, str) else ""  # others may unfold to any length
        raise _corrupt(self._path, f"{type(value).__name__}{shown} where a {wanted} should be")

    def _refuse_stand_ins(self, value: Any) -> None:
        """The planner's data go to the planner as they are."""
        left, seen = [value], set()
        while left:
            entry = left.pop()
            if isinstance(entry, _Record) or (isinstance(entry, type) and issubclass(entry, _Record)):
                raise _corrupt(self._path, f"a {getattr(entry, 'kind', '')} among the planner's data")
            if id(entry) in seen or not isinstance(entry, (dict, list, tuple, set, frozenset)):
                continue
            seen.add(id(entry))
            left += [*entry.keys(), *entry.values()] if isinstance(entry, dict) else entry
