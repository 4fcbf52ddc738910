"""What a plug-in does in a server's process before weights are asked for: an early start, and the log."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

_log = logging.getLogger("inrush")


class CommandLine:
    """The options of a server's command line, as far as that needs no parser of the server's own.

    `--load-format x`, `--load-format=x` and `--load_format x` are the same. Of an option that is given twice
    the last one counts.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        self._options = dict(self._pairs())

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for position, argument in enumerate(self._arguments):
            if argument.startswith("-"):
                name, given, value = argument.partition("=")
                follows = self._arguments[position + 1 : position + 2]
                yield name.replace("_", "-"), value if given else "".join(follows)

    def option(self, names: Collection[str]) -> str | None:
        """The value of the option that has one of these spellings; None where it is not given."""
        return next((self._options[name] for name in names if name in self._options), None)

    def after(self, command: str) -> str | None:
        """What stands right behind a sub-command, unless that is an option."""
        follows = self._arguments[1:3]
        if len(follows) == 2 and follows[0] == command and not follows[1].startswith("-"):
            return follows[1]
        return None


def may_warm(options: Mapping[str, Any]) -> bool:
    """Whether these options of ours allow an early start. A load that bypasses the page cache wants none."""
    return options.get("warm", True) is True and options.get("page_cache") != "bypass"


def warm(folder: str | None) -> bool:
    """Starts to bring a local checkpoint into the page cache while the server imports and starts its workers.

    Only in the process that somebody started: its children would ask for the same pages. Pages that are there
    already cost next to nothing to ask for (0.009 CPU-seconds a GB populated), so two servers that start at
    once need no lock between them.
    Returns whether it was started. Never raises: a head start that fails costs only time.
    """
    if not folder or not os.path.isdir(folder) or multiprocessing.parent_process() is not None:
        return False
    import inrush

    try:
        inrush.warm(folder, background=True)
    except Exception as error:  # noqa: BLE001
        _log.warning("%s is not read ahead: %s", folder, error)
        return False
    return True


class _Relay(logging.Handler):
    """Hands messages on to a framework's logger, whenever and however often that is set up."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._theirs = logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        # Where the root has handlers the message gets there by itself.
        if not logging.getLogger().handlers and self._theirs.isEnabledFor(record.levelno):
            self._theirs.handle(record)


def share_log(name: str) -> None:
    """Messages of the logger "inrush" appear where those of the framework's logger do.

    For frameworks that set up a logger of their own and not the root: there nobody would see a fallback.
    """
    if not any(isinstance(handler, _Relay) for handler in _log.handlers):
        _log.addHandler(_Relay(name))
