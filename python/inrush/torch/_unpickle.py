"""The pickle of an archive, by torch's weights-only unpickler, with storages that were read already.

torch.load() has no way to be given storages. Its unpickler, a class that has been the same from torch 1.13
to 2.13, takes them from one function; everything that it builds of them (views, tied tensors, parameters,
sparse and quantised tensors) is built as by torch.load(). Going through tensors on the meta device would lose
which of them share a storage, and some are rebuilt from the values of others.
"""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from inrush import _errors
from torch import _weights_only_unpickler

_NOT_ALLOWED = (
    "; torch.load(weights_only=True) refuses it too. If you trust the file, allow what it names by "
    "torch.serialization.add_safe_globals(), or read it by torch.load(weights_only=False)"
)

_TypedStorage: Any = torch.storage.TypedStorage  # which has no types

StorageOf = Callable[[str, int], torch.UntypedStorage]


def refuse_unsafe(place: object, data: bytes) -> None:
    """Raises Error ("invalid_request") if a pickle names what torch's weights-only unpickler refuses.

    Runs nothing, and needs no storages: for use before they are read.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:  # the function takes nothing else
        for name, content in (("data.pkl", data), ("version", b"3\n"), ("byteorder", b"little")):
            writer.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
    archive.seek(0)
    try:
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(archive)
    except Exception as error:
        raise _refusal(place, error) from error
    if unsafe:
        raise _errors.make_error(
            "invalid_request", f"{place}: its pickle names {', '.join(sorted(unsafe))}{_NOT_ALLOWED}"
        )


def unpickle(place: object, data: bytes, device: str, storage_of: StorageOf) -> Any:
    """The object of a pickle, its tensors on `device`.

    storage_of: from the key of a storage and its bytes to the storage; what it raises goes to the caller.
    Raises Error: "invalid_request" for what the weights-only unpickler refuses, "corrupt_checkpoint" for what
        is no pickle of torch.save().
    """
    unpickler: Any = _weights_only_unpickler.Unpickler(io.BytesIO(data), encoding="utf-8")
    unpickler.persistent_load = storages = _Storages(place, storage_of)
    # Where tensors go that are rebuilt on the CPU and moved.
    state, utils = torch.serialization._serialization_tls, cast(Any, torch._utils)
    before, state.map_location = getattr(state, "map_location", None), device
    try:
        value = unpickler.load()
        storages.refuse_grown()
        utils._validate_loaded_sparse_tensors()
    except _errors.Error:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _errors.make_error("out_of_memory", f"{place}: building its tensors: {error}") from error
    except Exception as error:  # of hostile input the unpickler raises anything
        raise _refusal(place, error) from error
    finally:
        state.map_location = before
        utils._sparse_tensors_to_validate.clear()
    return value


def _refusal(place: object, error: Exception) -> _errors.Error:
    if isinstance(error, pickle.UnpicklingError):
        return _errors.make_error("invalid_request", f"{place}: its pickle: {error}{_NOT_ALLOWED}")
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _errors.make_error(
        "corrupt_checkpoint", f"{place}: its pickle is no object of torch.save(): {cause}"
    )


class _Storages:
    """What the unpickler asks for storages."""

    def __init__(self, place: object, storage_of: StorageOf) -> None:
        self._place = place
        self._storage_of = storage_of
        self._known: dict[str, torch.storage.TypedStorage] = {}
        self._given: list[tuple[torch.UntypedStorage, str, int]] = []

    def __call__(self, saved_id: Any) -> torch.storage.TypedStorage:
        try:
            kind, storage_type, key, _, count = saved_id
            dtype = torch.uint8 if storage_type is torch.UntypedStorage else storage_type.dtype
            fits = kind == "storage" and type(key) is str and type(count) is int and 0 <= count < 2**63
            nbytes = count * dtype.itemsize if fits else -1
        except (TypeError, ValueError, AttributeError):
            nbytes = -1
        if nbytes < 0:
            raise _errors.make_error(
                "corrupt_checkpoint", f"{self._place}: its pickle asks for what is no storage of torch.save()"
            )
        known = self._known.get(key)
        if known is None:
            storage = self._storage_of(key, nbytes)
            self._given.append((storage, key, nbytes))
            known = _TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
            if nbytes:  # as torch.load() does: those without bytes are not shared
                self._known[key] = known
        return known

    def refuse_grown(self) -> None:
        """A view beyond the end of its storage would enlarge it, by memory that nobody has written to."""
        for storage, key, nbytes in self._given:
            if storage.nbytes() != nbytes:
                raise _errors.make_error(
                    "corrupt_checkpoint",
                    f"{self._place}: a tensor of its pickle reaches to byte {storage.nbytes()} of record "
                    f"data/{key}, which has {nbytes}",
                )


def refuse_byte_order(place: object, records: Mapping[str, object], read: Callable[[str], bytes]) -> None:
    """Raises Error ("invalid_request") unless the numbers of the archive are those of this machine."""
    if "byteorder" in records:
        order = read("byteorder").decode("ascii", "replace")
    else:
        default = torch.serialization.get_default_load_endianness()
        native = default == torch.serialization.LoadEndianness.NATIVE
        order = sys.byteorder if native else "big" if "BIG" in str(default) else "little"
    if order not in ("little", "big"):
        raise _errors.make_error("corrupt_checkpoint", f"{place}: its byte order is {order[:20]!r}")
    if order != sys.byteorder:
        raise _errors.make_error(
            "invalid_request",
            f"{place}: its numbers are {order}-endian and this machine's are not: read it by torch.load(), "
            "which converts them",
        )
