"""A load into new tensors, on a thread of its own, so that transformers' Python runs meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from inrush import _errors
from inrush._inrush import Checkpoint, Loader, Report
from inrush._progress import Progress, ProgressDisplay
from inrush.torch import load_into


class Options(NamedTuple):
    """Of inrush.torch.load_into(); `timeout` is for one from_pretrained()."""

    progress: Progress = None
    timeout: float | None = None
    loader: Loader | None = None
    transfer: str = "auto"
    page_cache: str = "auto"


class TargetForm(NamedTuple):
    """What a tensor is to be once it is loaded."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class BackgroundLoad:
    """Tensors for one device. Its owner waits and closes, one call at a time.

    The tensors are made on the caller's thread and its current stream: whatever that stream has still to do
    with their memory comes first.
    """

    def __init__(self, checkpoint: Checkpoint, forms: Mapping[str, TargetForm], options: Options) -> None:
        self.reports: list[Report] = []
        self.seconds = 0.0
        self._checkpoint = checkpoint
        self._options = options
        self._tensors = {name: make_tensor(form) for name, form in forms.items()}
        self._stream = stream_of(next(iter(forms.values())).device)
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="inrush-transformers", daemon=True)
        self._thread.start()

    def wait(self) -> dict[str, torch.Tensor]:
        """The tensors, once all are there; they are the caller's alone. Raises what the load raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        tensors, self._tensors = self._tensors, {}
        return tensors

    def close(self) -> None:
        """Ends the load and waits until nothing is in flight."""
        self._is_cancelled = True
        self._thread.join()
        self._tensors = {}

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            with self._stream, ProgressDisplay(self._options.progress, self._title()) as display:
                self.reports = load_into(
                    self._checkpoint,
                    self._tensors,
                    convert=True,
                    only=self._tensors.__contains__,
                    progress=lambda loaded, planned: self._look(display, loaded, planned),
                    timeout=self._options.timeout,
                    loader=self._options.loader,
                    transfer=self._options.transfer,
                    page_cache=self._options.page_cache,
                ).reports
        except BaseException as error:  # for wait(): this thread has nobody to tell
            self._error = error
        self.seconds = time.monotonic() - begin

    def _look(self, display: ProgressDisplay, loaded: int, planned: int) -> None:
        if self._is_cancelled:
            raise _errors.make_error("cancelled", "from_pretrained() ended before its load")
        if not display.is_idle:
            display(loaded, planned)

    def _title(self) -> str:
        return os.path.basename(self._checkpoint.path.rstrip("/"))


def make_tensor(form: TargetForm) -> torch.Tensor:
    """Each has a storage of its own, as after the ordinary load: what users do later (save_pretrained(),
    FSDP, accelerate) takes tensors that share a storage for tied ones."""
    return torch.empty(form.shape, dtype=form.dtype, device=form.device)


def stream_of(device: torch.device) -> Any:
    """A context in which the caller's stream is the current one, for another thread."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(device))
