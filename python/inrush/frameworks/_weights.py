"""What the plug-ins of LLM servers have in common: their options, and a stream of a model's weights.

A server lists the files, asks for (name, tensor) pairs and copies each tensor into its model, sliced as its
rank needs it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import inrush.torch
import torch
from inrush import _errors, _loads
from inrush._inrush import Checkpoint, Loader

_log = logging.getLogger("inrush")

Weights = Iterator[tuple[str, torch.Tensor]]


class Options(NamedTuple):
    """The keys of a server's "extra config" that are ours.

    device: where tensors are handed over: "auto", the model's device; "cpu".
    window_bytes: device memory that is filled ahead of the server.
    transfer, page_cache, timeout: as inrush.torch.stream() takes them; the timeout is for each part.
    warm: bring the checkpoint into the page cache while the server starts.
    """

    device: str = "auto"
    window_bytes: int = 512 << 20
    transfer: str = "auto"
    page_cache: str = "auto"
    timeout: float | None = None
    warm: bool = True


_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "device": ('"auto" or "cpu"', lambda value: value in ("auto", "cpu")),
    "window_bytes": ("a number of bytes above 0", lambda value: type(value) is int and value > 0),
    "transfer": ('"auto", "staged" or "gds"', lambda value: value in ("auto", "staged", "gds")),
    "page_cache": ('"auto", "keep" or "bypass"', lambda value: value in ("auto", "keep", "bypass")),
    "timeout": (
        "seconds above 0, or null",
        lambda value: value is None or (type(value) in (int, float) and value > 0),
    ),
    "warm": ("true or false", lambda value: isinstance(value, bool)),
}


def read_options(given: Mapping[str, Any], where: str, also: Collection[str] = ()) -> Options:
    """The options among these keys.

    where: what the user wrote them in, for messages.
    also: keys that are somebody else's.
    Raises Error ("invalid_request") for a key that nobody reads, and for a value that is none.
    """
    ours = {key: value for key, value in given.items() if key not in also}
    for key, value in ours.items():
        if key not in _ALLOWED:
            known = ", ".join([*_ALLOWED, *also])
            raise _errors.make_error(
                "invalid_request", f"{where}: Inrush has no option {key!r}; there are {known}"
            )
        meaning, is_allowed = _ALLOWED[key]
        if not is_allowed(value):
            raise _errors.make_error("invalid_request", f"{where}: {key} is {value!r}; say {meaning}")
    return Options(**ours)


class Part(NamedTuple):
    """Tensors that come in one load, in the order in which they are handed out."""

    checkpoint: Checkpoint
    names: list[str]

    @property
    def nbytes(self) -> int:
        return sum(self.checkpoint[name].nbytes for name in self.names)

    def among(self, wanted: Callable[[str], bool]) -> Part:
        return self._replace(names=[name for name in self.names if wanted(name)])


def parts_of(files: Collection[str], index: str) -> list[Part]:
    """The tensors of the files that a server chose; reads headers only.

    index: path of the index that belongs to them; need not exist.

    All that the index speaks of comes as one load, so that reading does not pause at the end of each file.
    Where the index says which file has a tensor, a copy in another file is left unread. What it leaves out
    comes from the file that has it, as with the servers' own readers; of several from the last one.
    """
    ordered = sorted(files, key=_natural)
    whole = _whole(ordered, index)
    placed = set(whole.names) if whole else set()
    later: dict[str, Part] = {}
    for path in reversed(ordered):
        checkpoint = _loads.open_checkpoint(path)
        names = [name for name in checkpoint if name not in placed]
        placed.update(names)
        later[path] = Part(checkpoint, names)
    parts = [*([whole] if whole else []), *(later[path] for path in ordered)]
    return [part for part in parts if part.names]


def _whole(files: list[str], index: str) -> Part | None:
    if not os.path.isfile(index):
        return None
    try:
        checkpoint = _loads.open_checkpoint(index)
    except _errors.Error as error:
        # Of a file that is damaged its own header will tell. A wrong index stops no server's own reader.
        _log.warning("the index is not followed, files are taken one by one: %s", error)
        return None
    for note in checkpoint.notes:
        _log.info("%s", note)
    chosen = {_identity(path) for path in files}
    is_chosen = {file.path: _identity(file.path) in chosen for file in checkpoint.files}
    return Part(checkpoint, [name for name, entry in checkpoint.items() if is_chosen[entry.file]])


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _natural(path: str) -> list[tuple[int, str]]:
    """model-2 before model-10."""
    words = re.split(r"([0-9]+)", os.path.basename(path))
    return [(int(word), "") if word.isdigit() else (0, word) for word in words]


def engine_device(device: torch.device) -> str:
    """Where the tensors for a model on this device are handed over."""
    # ROCm calls its devices "cuda" too.
    if device.type == "cuda" and torch.version.cuda is not None:
        return str(device)
    return "cpu"


def stream(parts: Iterable[Part], device: str, options: Options) -> Weights:
    """Yields every tensor in the order of the parts. One that is kept stays valid, and keeps its slab.

    The order is the same in each process and each time: the code of models groups neighbours by their names.
    Threads and pinned memory go with the last tensor, since a server keeps running.
    """
    # Of the environment where it says so, else of what torch knows.
    told = {"INRUSH_PROCESSES", "LOCAL_WORLD_SIZE"} & os.environ.keys()
    loader = Loader() if told else Loader(processes=_local_process_count())
    for part in parts:
        yield from _part_stream(part, device, options, loader)


def _local_process_count() -> int:
    """Processes of this machine that load at the same time."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 1
    return min(torch.distributed.get_world_size(), max(torch.cuda.device_count(), 1))


def _part_stream(part: Part, device: str, options: Options, loader: Loader) -> Weights:
    left = dict.fromkeys(part.names)  # an ordered set
    try:
        for name, tensor in _in_order(part, device, options, loader):
            del left[name]
            yield name, tensor
            del tensor
        return
    except _errors.Error as error:
        if error.code != "out_of_memory" or device == "cpu":
            raise
        # Some models keep what they are given until they have it all. As text: a log record that is kept must
        # not keep the frames, and with them GPU memory.
        _log.warning(
            "%s: no room on %s for more of it beside the model (%s); the other %d of %d tensors come by host "
            "memory, which is slower",
            part.checkpoint.path, device, str(error), len(left), len(part.names),
        )  # fmt: skip
    yield from _in_order(part._replace(names=list(left)), "cpu", options, loader)


def _in_order(part: Part, device: str, options: Options, loader: Loader) -> Weights:
    is_all = len(part.names) == len(part.checkpoint)
    arriving = inrush.torch.stream(
        part.checkpoint,
        device,
        only=None if is_all else [_loads.exact_pattern(name) for name in part.names],
        window_bytes=options.window_bytes,
        timeout=options.timeout,
        transfer=options.transfer,
        page_cache=options.page_cache,
        progress=False,
        loader=loader,
    )
    # What overtook its turn: no more than the reads that were in flight at once.
    early: dict[str, torch.Tensor] = {}
    for wanted in part.names:
        while wanted not in early:
            name, early[name] = next(arriving)
        yield wanted, early.pop(wanted)
    for _ in arriving:  # its end is where files that changed meanwhile are found out
        pass
