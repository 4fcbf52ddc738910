"""Models of Hugging Face transformers, with their weights loaded by Inrush.

    model = inrush.transformers.from_pretrained(AutoModelForCausalLM, "/models/llama", device_map="cuda:0")

    with inrush.transformers.patch():
        model = AutoModelForCausalLM.from_pretrained("/models/llama", device_map="cuda:0")

transformers finds the files, builds the model, decides what goes where in which element type, ties and
initialises as ever; only the bytes come another way. docs/transformers.md says what is left to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inrush._inrush import Loader
from inrush._progress import Progress
from inrush.transformers import _seam
from inrush.transformers._background import Options
from inrush.transformers._seam import Loaded

__all__ = ["Loaded", "from_pretrained", "patch"]

_log = logging.getLogger("inrush")


def from_pretrained(cls: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    """`cls.from_pretrained(path, *args, **kwargs)` of transformers, with the weights loaded by Inrush.

    cls: a model class, an Auto class, or anything else that loads by transformers' from_pretrained().
    path: a folder or a Hugging Face id; transformers resolves it.
    Loads of other threads are not affected. What is left to transformers, such as quantised models, is said
    in the log.
    Raises what transformers raises; Error ("environment_unfit") where the installed transformers is not one
        that Inrush knows, and the errors of inrush.torch.load_into() where a load fails.
    """
    seen = _seam.Patch(Options(), [])
    leave = _seam.enter(seen, everywhere=False)
    try:
        model = cls.from_pretrained(path, *args, **kwargs)
    finally:
        leave()
    if not seen.loaded:
        _log.warning("%s: %r does not load weights by transformers; Inrush had no part in it", path, cls)
    return model


@contextmanager
def patch(
    *,
    progress: Progress = None,
    timeout: float | None = None,
    loader: Loader | None = None,
    transfer: str = "auto",
    page_cache: str = "auto",
) -> Iterator[list[Loaded]]:
    """While the block runs, every from_pretrained() of transformers, in any thread, loads by Inrush.

    Gives a list that gets one Loaded for each.
    timeout: seconds for the loads of one from_pretrained().
    The other arguments are those of inrush.torch.load(). Of nested patches the inner one counts.
    Raises Error ("environment_unfit") where the installed transformers is not one that Inrush knows.
    """
    made = _seam.Patch(Options(progress, timeout, loader, transfer, page_cache), [])
    leave = _seam.enter(made, everywhere=True)
    try:
        yield made.loaded
    finally:
        leave()
