"""What an index like [2:, None, -1] asks of a tensor: a box of it, and an index into that box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

from inrush.safetensors import _errors

Item = int | slice | None


class Range(NamedTuple):
    """Elements [start, start + length) of a dimension."""

    start: int
    length: int


class Box(NamedTuple):
    """A box of a tensor: a range of each dimension; `taken` says what to take of it."""

    ranges: tuple[Range, ...]
    taken: tuple[Item, ...]


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def _plain_slice(given: slice) -> slice | None:
    bounds = (given.start, given.stop, given.step)
    numbers = [None if bound is None else _integer(bound) for bound in bounds]
    if any(bound is not None and number is None for bound, number in zip(bounds, numbers, strict=True)):
        return None
    return slice(*numbers)


def plain_items(index: Any, rank: int) -> list[Item] | None:
    """An index for torch as integers, slices that go forward, and None; None where it has more in it.

    An Ellipsis, or the end of the index, stands for the dimensions that are not named; there may be too many.
    """
    items: list[Any] = []
    for item in index if isinstance(index, tuple) else (index,):
        plain = _plain_slice(item) if isinstance(item, slice) else _integer(item)
        if plain is None and item is not None and item is not Ellipsis:
            return None
        if isinstance(plain, slice) and plain.step is not None and plain.step < 1:
            return None
        items.append(item if plain is None else plain)
    named = sum(item is not None and item is not Ellipsis for item in items)
    place = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    items[place : place + 1] = [slice(None)] * (rank - named)
    return None if any(item is Ellipsis for item in items) else items


def box_of(items: Sequence[Item], shape: Sequence[int]) -> Box | None:
    """The smallest box with all that the index takes; None where the index does not fit the shape."""
    if sum(item is not None for item in items) != len(shape):
        return None
    ranges: list[Range] = []
    index: list[Item] = []
    for item in items:
        if item is None:
            index.append(None)
            continue
        extent = shape[len(ranges)]
        if isinstance(item, slice):
            range_, inner = _range_of(range(extent)[item])
            ranges.append(range_)
            index.append(inner)
        elif -extent <= item < extent:
            ranges.append(Range(item % extent, 1))
            index.append(0)
        else:
            return None
    return Box(tuple(ranges), tuple(index))


def _range_of(taken: range) -> tuple[Range, slice]:
    if not taken:
        return Range(0, 0), slice(None)
    step = taken.step if len(taken) > 1 else None
    return Range(taken[0], taken[-1] - taken[0] + 1), slice(None, None, step)


def rows_of(ranges: Sequence[Range], shape: Sequence[int]) -> tuple[Range, ...]:
    """The smallest box around this one whose elements lie side by side: whole rows of the first dimension
    of which more than one element is taken."""
    lengths = [range_.length for range_ in ranges]
    first = next((dimension for dimension, length in enumerate(lengths) if length != 1), len(lengths))
    return (*ranges[: first + 1], *(Range(0, extent) for extent in shape[first + 1 :]))


def offset_of(ranges: Sequence[Range], shape: Sequence[int]) -> int:
    """Elements in front of the first one of a box."""
    offset = 0
    for range_, extent in zip(ranges, shape, strict=True):
        offset = offset * extent + range_.start
    return offset


class Cut(NamedTuple):
    """A range of one dimension, and how many elements a load of it has to read."""

    dimension: int
    range: Range
    reads: int


def cheapest_cut(ranges: Sequence[Range], shape: Sequence[int]) -> Cut | None:
    """The cut by which a load reads and keeps least; None where all of the tensor is as cheap.

    A cut of an inner dimension reads whole rows and keeps part of each.
    """
    total = math.prod(shape)
    best, least = None, 2 * total
    is_outermost = True
    for dimension, (range_, extent) in enumerate(zip(ranges, shape, strict=True)):
        kept = total // max(extent, 1) * range_.length
        reads = kept if is_outermost else total
        if kept + reads < least:
            best, least = Cut(dimension, range_, reads), kept + reads
        is_outermost &= extent == 1
    return best


def strict_items(index: Any, shape: Sequence[int]) -> list[Item]:
    """An index for NumPy as the reference takes it: integers, slices that go forward and an Ellipsis, none of
    which ends outside of the tensor; an item for each dimension.

    More is taken than there: bounds that count from the end, ranges that take nothing.
    """
    items = [
        _strict_item(item, position, shape[position] if position < len(shape) else 0)
        for position, item in enumerate(_expanded(index, len(shape)))
    ]
    if len(items) > len(shape):
        raise _refusal(items, shape, "more slicing indexes than dimensions in tensor")
    faults = [_fault_of(item, extent) for item, extent in zip(items, shape, strict=False)]
    for dimension, asked in reversed(list(enumerate(faults))):
        if asked is not None:
            where = f"tensor dimension #{dimension} of size {shape[dimension]}"
            raise _refusal(items, shape, f"index {asked} out of bounds for {where}")
    return [*items, *[slice(None)] * (len(shape) - len(items))]


def _expanded(index: Any, rank: int) -> list[Any]:
    """The items of an index, with slices for an Ellipsis."""
    if isinstance(index, list) and index:
        raise _invalid("Non empty lists are not implemented")
    if isinstance(index, list):
        index = slice(0, 0)
    items = list(index) if isinstance(index, tuple) else [index]
    places = [position for position, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise _invalid("Only one ellipsis (...) is allowed in slice index")
    for place in places:
        items[place : place + 1] = [slice(None)] * (rank - len(items) + 1)
    return items


def _strict_item(item: Any, position: int, extent: int) -> int | slice:
    """A slice, or an integer that counts from the start."""
    if isinstance(item, slice):
        plain = _plain_slice(item)
        if plain is None:
            raise TypeError(f"{item!r}: the bounds of a slice are integers")
        if plain.step is not None and plain.step < 1:
            raise _invalid(f"Slice step must be a positive integer, got {plain.step}")
        return plain
    number = _integer(item)
    if number is None:
        raise _invalid(f"Unsupported slice index at position {position}: expected slice, int, or ellipsis")
    if number < -extent:
        raise _invalid(f"Invalid index {number} for dimension {position} of size {extent}")
    return number + extent if number < 0 else number


def _fault_of(item: int | slice, extent: int) -> int | None:
    """The first element beyond the dimension that an item names."""
    if not isinstance(item, slice):
        return item if item >= extent else None
    start, stop = item.start or 0, extent if item.stop is None else item.stop
    if start < -extent or start > max(extent - 1, 0):
        return int(start)
    return int(stop) - 1 if stop > extent or stop < -extent else None


def _invalid(message: str) -> Exception:
    return _errors.make_error("invalid_request", message)


def _refusal(items: Sequence[int | slice], shape: Sequence[int], why: str) -> Exception:
    shown = ", ".join(_shown(item) for item in items)
    return _invalid(f"Error during slicing [{shown}] with shape {list(shape)}: {why}")


def _shown(item: int | slice) -> str:
    if not isinstance(item, slice):
        return str(item)
    bounds = ["" if bound is None else str(bound) for bound in (item.start, item.stop)]
    return ":".join(bounds if item.step in (None, 1) else [*bounds, str(item.step)])
