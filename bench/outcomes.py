"""The file of trials (JSON lines), and what can be said about pairs of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

PAIRS_MIN = 5
UNAVAILABLE = "unavailable"  # a loader that cannot run here: asked again by the next call
WHOLE_CASE = "(all)"  # stands for the loader where a case was left out as a whole
CONFIDENCE = 0.95


class Results:
    """Trials, one a line. What a killed run left half written is left out, and its trial is run again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            text = path.read_text()
            self.rows = _last_refusals([row for row in map(_parsed, text.splitlines()) if row is not None])
            if text and not text.endswith("\n"):  # so that the next line is one of its own
                path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row; of those that say a loader cannot run the last one stays in `rows`."""
        self.rows = [old for old in self.rows if old["key"] != row["key"] or old["outcome"] != UNAVAILABLE]
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def has(self, key: list[Any]) -> bool:
        """Whether this trial was run, however it ended."""
        return any(row["key"] == key and row["outcome"] != UNAVAILABLE for row in self.rows)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _last_refusals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the rows of UNAVAILABLE that a later row of the same trial has made obsolete."""
    last = {json.dumps(row["key"]): index for index, row in enumerate(rows)}
    return [row for index, row in enumerate(rows)
            if row["outcome"] != UNAVAILABLE or last[json.dumps(row["key"])] == index]  # fmt: skip


class Interval(NamedTuple):
    """A median, and two values of the sample that hold the median of all such pairs with this confidence."""

    middle: float
    low: float
    high: float
    confidence: float
    pairs: int

    @property
    def is_claim(self) -> bool:
        return self.pairs >= PAIRS_MIN


def interval(values: list[float]) -> Interval:
    """The sign test turned round: the narrowest pair of order statistics of at least CONFIDENCE, or the two
    extremes with what they have (5 values: 0.9375). Nothing is assumed about how the values are distributed.
    """
    if not values:
        raise ValueError("no values")
    ordered, count = sorted(values), len(values)
    chosen, confidence = 0, _confidence(count, 0)
    while chosen + 1 < (count + 1) // 2 and _confidence(count, chosen + 1) >= CONFIDENCE:
        chosen += 1
        confidence = _confidence(count, chosen)
    return Interval(median(ordered), ordered[chosen], ordered[count - 1 - chosen], confidence, count)


def _confidence(count: int, dropped: int) -> float:
    """That the true median lies between the order statistics left when so many are dropped at each end."""
    tail: float = sum(math.comb(count, below) for below in range(dropped + 1)) / 2**count
    return max(1 - 2 * tail, 0.0)


def by_case(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of one case, size and device together, in the order in which they came."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps(row["key"][:3]), []).append(row)
    for group in groups.values():
        if any(row["rival"] != WHOLE_CASE for row in group):
            group[:] = [row for row in group if row["rival"] != WHOLE_CASE]
    return list(groups.values())


def seconds_of(row: dict[str, Any], which: str) -> float | None:
    if row["outcome"] != "ok":
        return None
    if which == "both":
        return sum(load["seconds"] for load in row["loads"])
    return next((load["seconds"] for load in row["loads"] if load["which"] == which), None)


def ratios(rows: list[dict[str, Any]], ours: str, rival: str, which: str) -> list[float]:
    """The rival's seconds over ours, round by round: above 1 we were faster."""
    mine = {row["round"]: seconds_of(row, which) for row in rows if row["rival"] == ours}
    found = []
    for row in rows:
        theirs, our_seconds = seconds_of(row, which), mine.get(row["round"])
        if row["rival"] == rival and theirs is not None and our_seconds:
            found.append(theirs / our_seconds)
    return found


def differences(rows: list[dict[str, Any]], ours: str, other: str) -> list[float]:
    """Our seconds less the other's, of processes of one round that had the same checkpoint."""
    theirs = {row["round"]: row for row in rows if row["rival"] == other}
    found = []
    for row in rows:
        if row["rival"] == ours and row["round"] in theirs:
            for which in ("first", "second"):
                mine, their = seconds_of(row, which), seconds_of(theirs[row["round"]], which)
                found += [mine - their] if mine is not None and their is not None else []
    return found


def load_median(rows: list[dict[str, Any]], which: str, field: str) -> float | None:
    """Over the trials of one rival that went well."""
    values = [load[field] for row in rows if row["outcome"] == "ok"
              for load in row["loads"] if load["which"] == which and load.get(field) is not None]  # fmt: skip
    return median(values) if values else None


def limit_rate(state: str, limits: dict[str, Any], device: str) -> tuple[float, str] | None:
    """Bytes per second that bound such a load, and what bounds it; None where it could not be measured."""
    memory_name = "page_cache" if device == "cpu" else "pinned"
    memory, storage = limits.get(memory_name), limits.get("storage")
    shown = {"page_cache": "page cache reads", "pinned": "pinned copies"}[memory_name]
    if state in ("warm", "tmpfs"):
        return (memory, shown) if memory else None
    if not storage:
        return None
    if state == "restart":  # a cold load and then a warm one, of the bytes of both
        return (2 / (1 / storage + 1 / memory), f"storage, then {shown}") if memory else None
    if state == "cold":
        return (min(storage, memory), "storage") if memory else (storage, "storage")
    rate = min(2 * storage, memory) if memory else 2 * storage  # half of it comes from storage, both at once
    return rate, "storage for half of it"
