"""`inrush.torch.load_pt`: what torch.save() wrote."""

from __future__ import annotations

import os
from typing import Any, Union, cast

import torch
from inrush import _errors
from inrush._inrush import Loader
from inrush._loads import Options
from inrush._progress import Progress
from inrush.torch import _archive, _ranges, _unpickle
from inrush.torch._load import engine_device

_DATA = "data/"


def load_pt(
    path: Union[str, bytes, os.PathLike[str], os.PathLike[bytes]],
    device: Any = "cpu",
    *,
    progress: Progress = None,
    timeout: float | None = None,
    loader: Loader | None = None,
    transfer: str = "auto",
    page_cache: str = "auto",
) -> Any:
    """What torch.load(path, map_location=device, weights_only=True) returns, its bytes read by Inrush.

    Each storage is read once, in one load, straight into memory of torch's on `device`; views, tied tensors,
    parameters, sparse and quantised tensors come out as from torch.load().
    path: a file that torch.save() wrote, in the zip format of torch 1.6 and later.
    device: where all tensors go, "cpu", "cuda", "cuda:1", ...; the devices that they were saved from do not
        matter.
    Raises Error: "invalid_request" for a pickle that names what torch's weights-only unpickler does not allow
        (before any tensor is read), for the older format, TorchScript and the other byte order;
        "corrupt_checkpoint" where the archive is cut or contradicts itself.
    The other arguments and errors are those of inrush.torch.load().
    """
    try:
        name = os.fsdecode(path)
    except TypeError as error:
        raise _errors.make_error(
            "invalid_request",
            f"{type(path).__name__} is no path: load_pt() reads files; torch.load() takes others",
        ) from error
    options = Options(None, None, progress, timeout, transfer, page_cache)
    job = _ranges.Job(name, engine_device(device, loader), options, loader)
    with _archive.Source(name) as source:
        archive = _archive.Archive(source, _archive.Place(name, 0, source.nbytes))
        return load_archive(source, archive, job)


def load_archive(source: _archive.Source, archive: _archive.Archive, job: _ranges.Job) -> Any:
    """The object of an archive of an open file."""
    if "constants.pkl" in archive.records:
        raise _errors.make_error(
            "invalid_request", f"{archive.place}: it is a TorchScript archive: torch.jit.load() reads it"
        )
    _unpickle.refuse_byte_order(archive.place, archive.records, archive.read)
    data = archive.read("data.pkl")
    _unpickle.refuse_unsafe(archive.place, data)
    source.refuse_changed()
    storages = _Storages(archive, job)
    _ranges.load_ranges(job, storages.ranges(), {source.path: source.identity})
    return _unpickle.unpickle(archive.place, data, job.device, storages.storage_of)


class _Storages:
    """A storage of its own for each record of data, as torch.load() makes it.

    What shares no storage in the file shares no slab here: storages are resized, shared with other processes
    and saved as wholes.
    """

    def __init__(self, archive: _archive.Archive, job: _ranges.Job) -> None:
        self._place = archive.place
        self._device = job.device
        self._records = {
            name.removeprefix(_DATA): record
            for name, record in archive.records.items()
            if name.startswith(_DATA)
        }
        self._storages = {
            key: make_storage(record.nbytes, job.device)
            for key, record in self._records.items()
            if record.nbytes
        }

    def ranges(self) -> list[_ranges.Range]:
        return [
            _ranges.Range(
                record.name,
                self._place.path,
                record.offset,
                (record.nbytes,),
                None,
                storage.data_ptr(),
                storage,
            )
            for key, storage in self._storages.items()
            for record in (self._records[key],)
        ]

    def storage_of(self, key: str, nbytes: int) -> torch.UntypedStorage:
        record = self._records.get(key)
        if record is None:
            raise _errors.make_error("corrupt_checkpoint", f"{self._place}: it has no record {_DATA + key!r}")
        if record.nbytes != nbytes:
            where = f"[{record.offset}, {record.offset + record.nbytes})"
            raise _errors.make_error(
                "corrupt_checkpoint",
                f"{self._place}: record {record.name!r} at {where} should have {nbytes} bytes by the pickle",
            )
        return self._storages[key] if nbytes else make_storage(0, self._device)


def new_storage(nbytes: int, device: str) -> torch.UntypedStorage:
    make: Any = torch.UntypedStorage  # which has no types
    return cast(torch.UntypedStorage, make(nbytes, device=torch.device(device)))


def make_storage(nbytes: int, device: str) -> torch.UntypedStorage:
    """Memory that nobody has written to, of torch's allocator for the device."""
    try:
        return new_storage(nbytes, device)
    except (RuntimeError, AssertionError) as error:
        short = device == "cpu" or isinstance(error, torch.OutOfMemoryError)
        raise _errors.make_error(
            "out_of_memory" if short else "environment_unfit",
            f"torch has no {nbytes} bytes on {device}: {error}",
        ) from error
