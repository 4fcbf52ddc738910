"""How the parts of stored arrays that a planner asks for are read. Numbers only: no I/O, no torch."""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy
from inrush import Slice

_CELLS_MAX = 10_000_000


class Cut(NamedTuple):
    """A hypercube of an array that lies in rows.

    Elements [start, start + product of shape) of the array are one array of `shape`; of that the engine takes
    `part`; of what it took `rest` has to be cut in memory, one narrow() after the other.
    """

    start: int
    shape: tuple[int, ...]
    part: Slice | None
    rest: tuple[Slice, ...]

    @property
    def read_shape(self) -> tuple[int, ...]:
        """Of what the engine brings."""
        if self.part is None:
            return self.shape
        shape = list(self.shape)
        shape[self.part.dimension] = self.part.length
        return tuple(shape)


def cut(shape: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> Cut:
    """The elements [starts, starts + lengths) of an array. Nothing may be empty.

    Where only dimensions of extent 1 stand before it, a dimension is cut by reading less; one more is cut by
    the engine, the one of which least is wanted; the others in memory.
    """
    left, start = list(shape), 0
    rest = []
    for dimension, (extent, first, length) in enumerate(zip(shape, starts, lengths)):
        if length == extent:
            continue
        if math.prod(left[:dimension]) == 1:
            start += first * math.prod(shape[dimension + 1 :])
            left[dimension] = length
        else:
            rest.append(Slice(dimension, first, length))
    part = min(rest, key=lambda entry: entry.length / left[entry.dimension], default=None)
    return Cut(start, tuple(left), part, tuple(entry for entry in rest if entry is not part))


class Span(NamedTuple):
    """[start, end) of a file or of a device's memory."""

    where: Hashable
    start: int
    end: int


class Read(Protocol):
    """Something that reads from one span, writes to another, and needs memory beside until it is done."""

    @property
    def source(self) -> Span: ...
    @property
    def destination(self) -> Span: ...
    @property
    def beside_bytes(self) -> int: ...


AnyRead = TypeVar("AnyRead", bound=Read)


def rounds(reads: Iterable[AnyRead], beside_bytes_max: int) -> list[list[AnyRead]]:
    """The reads as loads, one after the other: in one load no two read or write the same byte.

    beside_bytes_max: memory beside the targets that a load may need, unless a single read needs more.
    """
    left, loads = list(reads), []
    while left:
        taken: list[AnyRead] = []
        later: list[AnyRead] = []
        sources, destinations, beside = _Spans(), _Spans(), 0
        for read in left:
            fits = not taken or beside + read.beside_bytes <= beside_bytes_max
            if fits and sources.is_free(read.source) and destinations.is_free(read.destination):
                sources.add(read.source)
                destinations.add(read.destination)
                taken.append(read)
                beside += read.beside_bytes
            else:
                later.append(read)
        loads.append(taken)
        left = later
    return loads


class _Spans:
    """Spans of which no two overlap."""

    def __init__(self) -> None:
        self._spans: dict[Hashable, list[tuple[int, int]]] = {}

    def add(self, span: Span) -> None:
        """One that is free."""
        if span.start < span.end:
            bisect.insort(self._spans.setdefault(span.where, []), (span.start, span.end))

    def is_free(self, span: Span) -> bool:
        if span.start >= span.end:
            return True
        known = self._spans.get(span.where, [])
        i = bisect.bisect_left(known, (span.start, span.end))
        after = known[i][0] if i < len(known) else span.end
        before = known[i - 1][1] if i else span.start
        return before <= span.start and span.end <= after


def covers(size: Sequence[int], boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """Whether boxes (starts, extents), which lie inside, leave no element of an array out.

    False also where they cut it into more than _CELLS_MAX cells, which no sharding does.
    """
    edges = [
        sorted({0, extent, *(n for start, length in boxes for n in (start[i], start[i] + length[i]))})
        for i, extent in enumerate(size)
    ]
    counts = [len(edge) - 1 for edge in edges]
    if math.prod(counts) > _CELLS_MAX:
        return False
    at = [{edge: number for number, edge in enumerate(line)} for line in edges]
    cells = numpy.zeros(counts, dtype=bool)
    for start, length in boxes:
        cells[tuple(slice(at[i][n], at[i][n + length[i]]) for i, n in enumerate(start))] = True
    return bool(cells.all())
