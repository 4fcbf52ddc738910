"""Progress for people: tqdm on request and on terminals, or whatever the caller wants to be told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Union

Progress = Union[bool, None, Callable[[int, int], object]]

_SHOW_AFTER_S = 0.5  # a load that is over by then needs no bar


class ProgressDisplay:
    """Told of loaded and planned bytes; a context manager that puts the bar away."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._tell: Callable[[int, int], object] | None = progress if callable(progress) else None
        self._bar: Any = None
        if self._tell is None and _is_wanted(progress):
            self._bar = _make_bar(title, required=progress is True)

    @property
    def is_idle(self) -> bool:
        return self._tell is None and self._bar is None

    def __call__(self, loaded_bytes: int, planned_bytes: int) -> None:
        if self._tell is not None:
            self._tell(loaded_bytes, planned_bytes)
        if self._bar is not None:
            self._bar.total = planned_bytes
            self._bar.update(loaded_bytes - self._bar.n)

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _is_wanted(progress: Progress) -> bool:
    if progress is None:
        return sys.stderr is not None and sys.stderr.isatty()
    return bool(progress)


def _make_bar(title: str, *, required: bool) -> Any:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        if required:
            raise
        return None
    return tqdm(desc=title, unit="B", unit_scale=True, delay=0 if required else _SHOW_AFTER_S, leave=required)
