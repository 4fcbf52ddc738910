"""`inrush.warm`: a checkpoint into the page cache, ahead of the load that wants it."""

from __future__ import annotations

import logging
import os
import threading
from typing import Literal, NamedTuple, overload

from inrush import _inrush, _loads
from inrush._inrush import Checkpoint
from inrush._loads import Only, Path, Slices
from inrush._progress import Progress, ProgressDisplay

_log = logging.getLogger("inrush")


class WarmReport(NamedTuple):
    """Bytes of a warm(): of `planned_bytes` that a load would read `resident_bytes` were in the page cache,
    `read_bytes` came from storage, and `left_bytes` had no room."""

    planned_bytes: int
    resident_bytes: int
    read_bytes: int
    left_bytes: int
    seconds: float


class _Cancelled(Exception):
    pass


class Warming:
    """A warm() that runs on a thread of its own.

    It ends with the process, and never raises: what went wrong is logged, and the load that follows says it
    again.
    """

    def __init__(self, checkpoint: Checkpoint, only: Only, slices: Slices) -> None:
        self._checkpoint = checkpoint
        self._only, self._slices = _loads.selected(checkpoint, only, slices)
        self._is_cancelled = False
        self._pid = os.getpid()
        self._report: WarmReport | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="inrush-warm", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> WarmReport | None:
        """The report once it is through; None where it was cancelled, failed, or `timeout` seconds were not
        enough, and in a forked child, where the thread is not."""
        if os.getpid() == self._pid:
            self._ended.wait(timeout)
        return self._report

    def cancel(self) -> None:
        """Asks it to stop, which takes one window of 16 MiB. What came stays in the page cache."""
        self._is_cancelled = True

    def _run(self) -> None:
        try:
            self._report = WarmReport(
                *_inrush.warm(self._checkpoint, self._only, self._slices, self._look_up)
            )
            _log.info("warm %s: %s", self._checkpoint.path, self._report)
        except _Cancelled:
            pass
        except Exception as error:  # noqa: BLE001  # whatever it is, a head start that fails costs only time
            _log.warning("%s", error)
        finally:
            self._ended.set()

    def _look_up(self, _resident_bytes: int, _planned_bytes: int) -> None:
        if self._is_cancelled:
            raise _Cancelled


@overload
def warm(
    path: Path,
    *,
    background: Literal[False] = False,
    only: Only = None,
    slices: Slices = None,
    progress: Progress = None,
) -> WarmReport: ...
@overload
def warm(
    path: Path,
    *,
    background: Literal[True],
    only: Only = None,
    slices: Slices = None,
    progress: Progress = None,
) -> Warming: ...
def warm(
    path: Path,
    *,
    background: bool = False,
    only: Only = None,
    slices: Slices = None,
    progress: Progress = None,
) -> WarmReport | Warming:
    """Reads what a load with this `only` and `slices` would read into the page cache.

    By one thread that copies nothing, at the speed of the disk. It takes memory that is free or holds file
    pages not in use, never what others use; what does not fit is left out. A load that runs meanwhile takes
    from the page cache what is there.
    background: return at once, with an object that has wait(), cancel() and done.
    progress: as for inrush.load(); not in the background.
    Raises Error as inrush.open() does, "storage_failed", and "corrupt_checkpoint" where a file is cut short.
    """
    checkpoint = _loads.open_checkpoint(path)
    if background:
        return Warming(checkpoint, only, slices)
    globs, parts = _loads.selected(checkpoint, only, slices)
    with ProgressDisplay(progress, os.path.basename(checkpoint.path.rstrip("/"))) as display:
        return WarmReport(*_inrush.warm(checkpoint, globs, parts, None if display.is_idle else display))
