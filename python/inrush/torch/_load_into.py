"""`inrush.torch.load_into`: a checkpoint into tensors that exist."""

from __future__ import annotations

import fnmatch
import functools
import time
from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple, Union

import torch
from inrush import _errors, _loaders, _loads
from inrush._inrush import Checkpoint, Load, Loader, Report, Tensor, TensorInfo
from inrush._loads import Only, Options, Path, Slices
from inrush._progress import Progress
from inrush.torch import _dtypes, _memory

State = Union[torch.nn.Module, Mapping[str, torch.Tensor]]

# Names in one message.
_NAMES_MAX = 10
# Of memory beside the target, for tensors that are converted on their way.
_WINDOW_BYTES = 512 << 20


class LoadedInto(NamedTuple):
    """What load_into() did, as lists of names; `reports` has one Report for each device."""

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    reports: list[Report]


def load_into(
    path: Path,
    target: State,
    *,
    strict: bool = True,
    convert: bool = False,
    only: Only = None,
    slices: Slices = None,
    progress: Progress = None,
    timeout: float | None = None,
    loader: Loader | None = None,
    transfer: str = "auto",
    page_cache: str = "auto",
) -> LoadedInto:
    """Loads a checkpoint into the tensors of a module or a state_dict, in place and without a second copy.

    target: a module (its parameters and persistent buffers) or a mapping from names to tensors. They may be
        on several devices and views of something larger, but each must be contiguous.
    strict: raise if the target has tensors that the checkpoint lacks (of those that `only` names) or the
        other way round.
    convert: where the element types differ load beside the target and convert as torch's copy_() does.
        Without it such a tensor is refused.
    timeout: seconds for all of it.
    Raises Error ("invalid_request") before the first byte if a name, shape, element type, device or layout
    does not fit, if a tensor is on the meta device, or if two targets share memory. If the load fails later
    the error's `overwritten` (and a note on any exception) lists the tensors that bytes may have reached.
    The other arguments are those of inrush.torch.load().
    """
    checkpoint = _loads.open_checkpoint(path)
    state = _tensors_of(target)
    _, parts = _loads.selected(checkpoint, only, slices)
    options = Options(only, parts, progress, timeout, transfer, page_cache)
    matching = _Matching(checkpoint, state, options)
    if strict:
        matching.refuse_differences()
    pairs = matching.pairs
    _refuse_misfits(pairs, convert)
    _refuse_shared_memory(pairs)
    return LoadedInto(
        loaded=[pair.name for pair in pairs],
        missing=matching.missing,
        unexpected=matching.unexpected,
        reports=_run(checkpoint, pairs, options, loader),
    )


class _Pair(NamedTuple):
    """A tensor of the checkpoint and the one that it goes into."""

    entry: TensorInfo
    target: torch.Tensor

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def device(self) -> str:
        """ "cpu" or "cuda:N"."""
        return str(self.target.device)

    @property
    def is_converted(self) -> bool:
        return _form(self.entry)[0] != self.target.dtype


def _form(entry: TensorInfo) -> tuple[torch.dtype, tuple[int, ...]]:
    return _dtypes.form_or_bytes(entry.dtype, entry.shape, entry.nbytes)


def _tensors_of(target: State) -> dict[str, torch.Tensor]:
    state = target.state_dict(keep_vars=True) if isinstance(target, torch.nn.Module) else target
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor):
            tensors[name] = tensor
        elif not isinstance(target, torch.nn.Module):  # a module may keep extra state of its own
            raise _errors.make_error(
                "invalid_request", f"target {name!r} is a {type(tensor).__name__}, not a tensor"
            )
    return tensors


class _Matching:
    """Which tensors of the checkpoint go into which of the target's, and what is left on either side."""

    def __init__(self, checkpoint: Checkpoint, state: dict[str, torch.Tensor], options: Options) -> None:
        self.checkpoint = checkpoint
        request = _loads.make_request(checkpoint, "cpu", options)
        entries = _loads.selection(checkpoint, request)
        self.pairs = [_Pair(entry, state[entry.name]) for entry in entries if entry.name in state]
        self.unexpected = [entry.name for entry in entries if entry.name not in state]
        loaded = {pair.name for pair in self.pairs}
        places = {_place(pair.target) for pair in self.pairs}
        is_wanted = _predicate(options.only)
        # Tied tensors are stored once: what shares its memory with a loaded one is loaded.
        self.missing = [
            name
            for name, tensor in state.items()
            if name not in loaded and is_wanted(name) and _place(tensor) not in places
        ]

    def refuse_differences(self) -> None:
        if not self.missing and not self.unexpected:
            return
        parts = []
        if self.missing:
            parts.append(f"it lacks {_listed(self.missing)} of the target")
        if self.unexpected:
            parts.append(f"it has {_listed(self.unexpected)} that the target lacks")
        raise _errors.make_error(
            "invalid_request",
            f"{self.checkpoint.path}: {' and '.join(parts)}; nothing was loaded. strict=False loads what is "
            "in both, only= names what is wanted",
        )


def _predicate(only: Only) -> Callable[[str], bool]:
    if only is None:
        return lambda name: True
    if callable(only):
        return only
    patterns = [only] if isinstance(only, str) else list(only)
    return lambda name: any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMES_MAX])
    return shown if len(names) <= _NAMES_MAX else f"{shown} and {len(names) - _NAMES_MAX} more"


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same memory, seen in the same way."""
    if tensor.device.type not in ("cpu", "cuda") or not _is_plain(tensor) or tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.shape, tensor.dtype)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Others may have no shape or no memory to ask for."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def _refuse_misfits(pairs: list[_Pair], convert: bool) -> None:
    problems = [f"{pair.name!r}: {problem}" for pair in pairs if (problem := _misfit(pair, convert))]
    if problems:
        more = f"\n  and {len(problems) - _NAMES_MAX} more" if len(problems) > _NAMES_MAX else ""
        raise _errors.make_error(
            "invalid_request",
            "nothing was loaded, since these targets do not fit:\n  "
            + "\n  ".join(problems[:_NAMES_MAX])
            + more,
        )


def _misfit(pair: _Pair, convert: bool) -> str | None:
    target = pair.target
    if target.device.type == "meta":
        return "it is on the meta device, which has no memory: materialise it first (module.to_empty)"
    if target.device.type not in ("cpu", "cuda"):
        return f"Inrush does not load to {target.device}"
    if type(target) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(target).__name__} need not keep its values where Inrush would write them"
    if target.layout != torch.strided or target.is_quantized:
        return f"its layout {target.layout} is not a plain array"
    dtype, shape = _form(pair.entry)
    if tuple(target.shape) != shape:
        return f"it has shape {list(target.shape)} and the checkpoint {list(shape)}"
    if target.dtype != dtype:
        if _dtypes.torch_form(pair.entry.dtype, pair.entry.shape) is None:
            return f"torch has no type for {pair.entry.dtype} {list(pair.entry.shape)}"
        if not convert:
            return f"it is {target.dtype} and the checkpoint {dtype}; convert=True converts it"
        if not _is_convertible(dtype, target.dtype):
            return f"torch does not convert {dtype} to {target.dtype}"
    if not target.is_contiguous():
        return f"it is not contiguous (strides {list(target.stride())} of shape {list(target.shape)})"
    if target.is_conj() or target.is_neg():
        return "it is a lazy conjugate or negative"
    return None


@functools.cache
def _is_convertible(source: torch.dtype, target: torch.dtype) -> bool:
    try:
        torch.empty(1, dtype=target, device="cpu").copy_(torch.empty(1, dtype=source, device="cpu"))
    except RuntimeError:
        return False
    return True


def _refuse_shared_memory(pairs: list[_Pair]) -> None:
    """Which of two tensors would stay in shared memory would be a matter of chance."""
    ranges = sorted(
        (pair.device, pair.target.data_ptr(), pair.target.data_ptr() + pair.target.nbytes, pair.name)
        for pair in pairs
        if pair.target.nbytes
    )
    last = ("", 0, 0, "")
    for device, start, end, name in ranges:
        if device == last[0] and start < last[2]:
            raise _errors.make_error(
                "invalid_request",
                f"nothing was loaded: targets {last[3]!r} and {name!r} share memory and the checkpoint has "
                "both; leave one of them out by only=",
            )
        if device != last[0] or end > last[2]:
            last = (device, start, end, name)


def _run(checkpoint: Checkpoint, pairs: list[_Pair], options: Options, loader: Loader | None) -> list[Report]:
    by_device: dict[str, list[_Pair]] = {}
    for pair in pairs:
        by_device.setdefault(pair.device, []).append(pair)
    reports: list[Report] = []
    written: list[str] = []
    begin = time.monotonic()
    for device, group in by_device.items():
        left = options.timeout
        if left is not None and reports:  # the time is for all devices together
            left = max(left - (time.monotonic() - begin), 1e-9)
        run = _DeviceRun(checkpoint, device, group, options._replace(timeout=left))
        try:
            reports.append(run.run(loader or _loaders.loader_for(device)))
        except BaseException as error:
            _tell_overwritten(error, written + run.overwritten())
            raise
        written += [pair.name for pair in group]
    return reports


def _tell_overwritten(error: BaseException, names: list[str]) -> None:
    if isinstance(error, _errors.Error):
        error.overwritten = names
    if names:
        error.add_note(
            f"of the target, these tensors may have been overwritten in whole or in part: {_listed(names)}"
        )
    else:
        error.add_note("no tensor of the target was overwritten")


class _DeviceRun:
    """The part of a load_into() that goes to one device."""

    def __init__(self, checkpoint: Checkpoint, device: str, pairs: list[_Pair], options: Options) -> None:
        self._checkpoint = checkpoint
        self._pairs = {pair.name: pair for pair in pairs}
        self._progress = options.progress
        self._converted: list[str] = []
        self._load: Load | None = None
        self._memory = _memory.memory_on(device)
        names = set(self._pairs)
        _, parts = _loads.selected(checkpoint, None, options.slices)
        slices = {name: part for name, part in parts.items() if name in names}
        request = _loads.make_request(
            checkpoint, device, options._replace(only=names.__contains__, slices=slices)
        )
        direct = [pair for pair in pairs if not pair.is_converted]
        self._direct = [pair.name for pair in direct if pair.target.nbytes]
        request.targets = {pair.name: (pair.target.data_ptr(), pair.target.nbytes) for pair in direct}
        request.targets_owner = [pair.target for pair in direct]
        request.allocate = self._memory.allocate
        request.targets_stream = self._memory.stream()
        self._batch_bytes = 2**64 - 1
        if len(direct) < len(pairs):
            request.window_bytes = _WINDOW_BYTES
            self._batch_bytes = 1  # what was taken counts against no window
        self._request = request

    def run(self, loader: Loader) -> Report:
        running = _loads.running(loader, self._checkpoint, self._request, self._progress, self._batch_bytes)
        try:
            with running as (load, batches):
                self._load = load
                for loaded in chain.from_iterable(batches):
                    self._take(loaded)
                    del loaded
        finally:
            if self._load is not None:
                self._tell_autograd()
        return load.report()

    def _tell_autograd(self) -> None:
        """What it saved of the old values is no longer there."""
        for pair in self._pairs.values():
            if not pair.target.is_inference():
                torch.autograd.graph.increment_version(pair.target)

    def _take(self, loaded: Tensor) -> None:
        pair = self._pairs[loaded.name]
        if not pair.is_converted:
            return
        self._converted.append(pair.name)
        # Tensors of inference mode may be written in it only, and others then need not be.
        with torch.inference_mode(pair.target.is_inference()), torch.no_grad():
            pair.target.copy_(self._memory.tensor(loaded))
        self._memory.forget()

    def overwritten(self) -> list[str]:
        """Once run() has raised: what bytes may have reached. A load that did not start wrote nothing."""
        if self._load is None:
            return []
        report = self._load.report()
        # Where the engine was through, it was Python that failed, and the engine names no target.
        return self._converted + (self._direct if report.complete else report.overwritten_targets)
