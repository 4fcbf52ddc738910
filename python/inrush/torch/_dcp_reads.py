"""The reads of one plan of torch.distributed.checkpoint: from where items lie to their tensors."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import NamedTuple, Union

import torch
from inrush import _errors
from inrush._inrush import Loader
from inrush._loads import Options
from inrush.torch import _archive, _dcp_plan, _load_pt, _ranges, _unpickle
from inrush.torch._dcp_folder import StoredTensor
from inrush.torch._dcp_metadata import StoredItem
from inrush.torch._dcp_plan import Span
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

# Of memory beside the targets, for parts that cannot be read straight into them.
_BESIDE_BYTES = 512 << 20

Stored = Union[StoredItem, StoredTensor]


class _Array(NamedTuple):
    """A stored tensor that lies in rows."""

    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class TensorRead(NamedTuple):
    """One item: where it lies, and the tensor that it goes into."""

    item: ReadItem
    target: torch.Tensor
    array: _Array
    cut: _dcp_plan.Cut

    @property
    def name(self) -> str:
        return _printable(self.item.dest_index.fqn)

    @property
    def device(self) -> str:
        """Where the engine puts it, "cpu" or "cuda:N"."""
        return str(self.target.device) if self.target.device.type in ("cpu", "cuda") else "cpu"

    @property
    def is_direct(self) -> bool:
        """Whether the engine writes into the target; else into memory beside it."""
        target = self.target
        return (
            not self.cut.rest
            and target.dtype == self.array.dtype
            and _is_plain(target)
            and target.device.type in ("cpu", "cuda")
        )

    @property
    def offset(self) -> int:
        return self.array.offset + self.cut.start * self.array.dtype.itemsize

    @property
    def source(self) -> Span:
        nbytes = math.prod(self.cut.shape) * self.array.dtype.itemsize
        return Span(self.array.file, self.offset, self.offset + nbytes)

    @property
    def destination(self) -> Span:
        """From the first to the last byte of the target."""
        target = self.target
        if target.device.type not in ("cpu", "cuda") or type(target) not in (
            torch.Tensor,
            torch.nn.Parameter,
        ):
            return Span("elsewhere", 0, 0)
        reach = sum((extent - 1) * stride for extent, stride in zip(target.shape, target.stride()))
        return Span(self.device, target.data_ptr(), target.data_ptr() + (reach + 1) * target.dtype.itemsize)

    @property
    def beside_bytes(self) -> int:
        return 0 if self.is_direct else math.prod(self.cut.read_shape) * self.array.dtype.itemsize


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements are one array in memory, as they are."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


class Reading:
    """The reads of one plan of one rank."""

    def __init__(self, path: str, options: Options, loader: Loader | None) -> None:
        self._path = path
        self._options = options
        self._loader = loader
        self._end = None if options.timeout is None else time.monotonic() + options.timeout
        self._source: _archive.Source | None = None
        self._identities: dict[str, _archive.Identity] = {}

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._source is not None:
            self._source.close()

    def open(self, name: str, stored: StoredItem) -> tuple[_archive.Source, _archive.Place]:
        """The file and the place of an item in it. The file stays open until the next one."""
        path = os.path.join(self._path, stored.file)
        if self._source is None or self._source.path != path:
            if self._source is not None:
                self._source.close()
                self._source = None
            self._source = _archive.Source(path)
            _archive.refuse_changed(path, self._identities.setdefault(path, self._source.identity))
        if stored.offset + stored.nbytes > self._source.nbytes:
            raise _errors.make_error(
                "corrupt_checkpoint",
                f"{path}: item {_printable(name)!r} at [{stored.offset}, {stored.offset + stored.nbytes}) "
                f"leaves the file of {self._source.nbytes} bytes: it is cut, or not of this checkpoint",
            )
        return self._source, _archive.Place(path, stored.offset, stored.nbytes)

    def load(self, pairs: Sequence[tuple[ReadItem, Stored]], planner: LoadPlanner) -> None:
        """Reads tensors, each into what the planner gives for it, and tells the planner."""
        loaded: list[tuple[ReadItem, torch.Tensor]] = []
        reads: list[TensorRead] = []
        for item, stored in sorted(pairs, key=lambda pair: pair[1][:2]):  # by file and offset
            target = planner.resolve_tensor(item).detach()
            loaded.append((item, target))
            _refuse_size(item, tuple(target.shape))
            if target.numel() == 0:
                continue
            array = self._array(item, stored)
            if isinstance(array, _Array):
                cut = _dcp_plan.cut(array.shape, *_checked_part(item, array))
                reads.append(TensorRead(item, target, array, cut))
            else:
                self._load_object(item, array, target)
        for load in _dcp_plan.rounds(reads, _BESIDE_BYTES):
            for device in dict.fromkeys(read.device for read in load):
                self._load_round(device, [read for read in load if read.device == device])
        for item, target in loaded:
            planner.commit_tensor(item, target)

    def _array(self, item: ReadItem, stored: Stored) -> _Array | StoredItem:
        """Where its elements lie; as it was for a tensor that is not an array of its elements in order."""
        if isinstance(stored, StoredTensor):
            self._identities.setdefault(stored.file, stored.identity)
            return _Array(stored.file, stored.offset, stored.dtype, stored.shape)
        source, place = self.open(item.storage_index.fqn, stored)
        return _array_in(_archive.Archive(source, place)) or stored

    def _load_object(self, item: ReadItem, stored: StoredItem, target: torch.Tensor) -> None:
        """By way of the whole stored tensor, on the CPU."""
        source, place = self.open(item.storage_index.fqn, stored)
        archive = _archive.Archive(source, place)
        tensor = _load_pt.load_archive(source, archive, self._job("cpu"))
        if not isinstance(tensor, torch.Tensor):
            raise _errors.make_error(
                "corrupt_checkpoint", f"{place}: {_printable(item.storage_index.fqn)!r} should be a tensor"
            )
        array = _Array(place.path, place.start, tensor.dtype, tuple(tensor.shape))
        for dimension, (start, length) in enumerate(zip(*_checked_part(item, array))):
            tensor = tensor.narrow(dimension, start, length)
        _copy(target, tensor)

    def _job(self, device: str) -> _ranges.Job:
        options = self._options
        if self._end is not None:
            options = options._replace(timeout=max(self._end - time.monotonic(), 1e-9))
        return _ranges.Job(self._path, device, options, self._loader)

    def _load_round(self, device: str, reads: list[TensorRead]) -> None:
        memories = [_memory_for(read) for read in reads]
        names = _distinct([read.name for read in reads])
        ranges = [
            _ranges.Range(
                name,
                read.array.file,
                read.offset,
                (*read.cut.shape, read.array.dtype.itemsize),
                read.cut.part,
                memory.data_ptr(),
                memory,
            )
            for name, read, memory in zip(names, reads, memories)
        ]
        try:
            _ranges.load_ranges(self._job(device), ranges, self._identities)
        finally:
            for read in reads:
                if read.is_direct and not read.target.is_inference():
                    torch.autograd.graph.increment_version(read.target)
        for read, memory in zip(reads, memories):
            if not read.is_direct:
                for part in read.cut.rest:
                    memory = memory.narrow(*part)
                _copy(read.target, memory)


def _array_in(archive: _archive.Archive) -> _Array | None:
    keys: list[str] = []

    def storage_of(key: str, nbytes: int) -> torch.UntypedStorage:
        keys.append(key)
        return _load_pt.new_storage(nbytes, "meta")

    _unpickle.refuse_byte_order(archive.place, archive.records, archive.read)
    try:
        tensor = _unpickle.unpickle(archive.place, archive.read("data.pkl"), "meta", storage_of)
    except _errors.Error:
        return (
            None  # what torch cannot build without values; or a fault, which is told as one when it has them
        )
    if not isinstance(tensor, torch.Tensor) or not _is_plain(tensor) or len(keys) != 1:
        return None
    record = archive.records.get(f"data/{keys[0]}")
    begin = int(tensor.storage_offset()) * tensor.dtype.itemsize
    if record is None or begin + tensor.nbytes > record.nbytes:
        raise _errors.make_error(
            "corrupt_checkpoint",
            f"{archive.place}: its tensor is at [{begin}, {begin + tensor.nbytes}) of record data/{keys[0]}, "
            "which " + ("is not there" if record is None else f"has {record.nbytes} bytes"),
        )
    return _Array(archive.place.path, record.offset + begin, tensor.dtype, tuple(tensor.shape))


def _refuse_size(item: ReadItem, shape: tuple[int, ...]) -> None:
    if shape != tuple(item.lengths):
        raise _errors.make_error(
            "invalid_request",
            f"tensor {_printable(item.dest_index.fqn)!r}: the planner gave {list(shape)} for a part of "
            f"{list(item.lengths)}",
        )


def _checked_part(item: ReadItem, array: _Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    starts, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    inside = len(starts) == len(lengths) == len(array.shape) and all(
        0 <= start and start + length <= extent for start, length, extent in zip(starts, lengths, array.shape)
    )
    if not inside:
        raise _errors.make_error(
            "corrupt_checkpoint",
            f"{array.file}: {_printable(item.storage_index.fqn)!r} at {array.offset} has shape "
            f"{list(array.shape)}, and {list(lengths)} at {list(starts)} of it are wanted",
        )
    return starts, lengths


def _memory_for(read: TensorRead) -> torch.Tensor:
    if read.is_direct:
        return read.target
    try:
        return torch.empty(read.cut.read_shape, dtype=read.array.dtype, device=read.device)
    except RuntimeError as error:
        raise _errors.make_error(
            "out_of_memory", f"torch has no {read.beside_bytes} bytes on {read.device}: {error}"
        ) from error


def _copy(target: torch.Tensor, values: torch.Tensor) -> None:
    # Tensors of inference mode may be written in it only, and others then need not be.
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(values)


def _distinct(names: list[str]) -> list[str]:
    """Each once, since the parts of a tensor have its name; numbered where they need it."""
    seen: dict[str, int] = {}
    result = []
    taken = set(names)
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        spelling = name
        while count > 1 and spelling in taken:
            spelling = f"{name}#{count}"
            count += 1
        taken.add(spelling)
        seen[name] = max(seen[name], count - 1)
        result.append(spelling)
    return result
