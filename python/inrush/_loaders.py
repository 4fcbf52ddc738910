"""The Loaders behind the plain functions: one for each process and device, made when it is first needed."""

from __future__ import annotations

import atexit
import logging
import os
import threading

from inrush import _inrush
from inrush._inrush import Loader

_log = logging.getLogger("inrush")
_log.addHandler(logging.NullHandler())

# How long the end of the interpreter waits for threads that are inside a load. A load ends 20 ms after it is
# told to, and leaves reads of a dead mount behind after 100.
_CLOSE_WAIT_S = 2.0


class _Kept:
    """Loaders by device, of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.loaders: dict[str, Loader] = {}


_kept = _Kept()


def _start_afresh() -> None:
    """In a forked child, where the parent's loaders are not to be used and its lock may be held for ever."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(_inrush.close, _CLOSE_WAIT_S)


def loader_for(device: str) -> Loader:
    """The loader that plain calls use for a device, "cpu" or "cuda:N"."""
    with _kept.lock:
        loader = _kept.loaders.get(device)
        if loader is None:
            loader = _kept.loaders[device] = Loader()
        return loader


def any_loader() -> Loader:
    """A loader to ask about devices."""
    with _kept.lock:
        loaders = list(_kept.loaders.values())
    return loaders[0] if loaders else loader_for("cpu")


def release() -> None:
    """Frees the pinned memory and threads that the loaders of plain calls keep between loads.

    Loads that run keep theirs, tensors stay, and the next load sets up anew.
    """
    with _kept.lock:
        loaders = list(_kept.loaders.values())
        _kept.loaders.clear()
    for loader in loaders:
        loader.release_idle()


def forward_log(loader: Loader) -> None:
    """What the engine logged goes to the logger "inrush"."""
    for level, message in loader.take_log():
        _log.log(level, message)
