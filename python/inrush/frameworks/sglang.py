"""SGLang: the plug-in that it finds by its entry point, and `Loader` for `sgl.Engine`. docs/sglang.md.

This module imports neither torch nor SGLang; register() and `Loader` do.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inrush.frameworks import _start
from inrush.frameworks._sglang_options import KEY, WHERE

_log = logging.getLogger("inrush")
_TARGET = "sglang.srt.model_loader.loader.get_model_loader"
_is_registered = False


def __getattr__(name: str) -> Any:
    if name == "Loader":
        from inrush.frameworks._sglang_loader import Loader

        return Loader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Has SGLang ask us for the loader. SGLang calls it in each of its processes."""
    global _is_registered
    if _is_registered:
        return
    _is_registered = True
    if folder := model_to_warm(sys.argv):
        _start.warm(folder)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, choose_loader, HookType.AROUND)


def choose_loader(original: Callable[..., Any], load_config: Any, model_config: Any = None) -> Any:
    """Around SGLang's get_model_loader(): ours where it is asked for and SGLang would take its default."""
    given = load_config.model_loader_extra_config or {}
    if not isinstance(given, Mapping) or KEY not in given:
        return original(load_config, model_config)
    theirs = copy.copy(load_config)
    theirs.model_loader_extra_config = {key: value for key, value in given.items() if key != KEY}
    chosen = original(theirs, model_config)
    if given[KEY] is False:
        return chosen
    from sglang.srt.model_loader.loader import DefaultModelLoader

    if type(chosen) is DefaultModelLoader:
        from inrush.frameworks._sglang_loader import Loader

        return Loader(load_config)
    _log.warning(
        "SGLang loads this model by its %s, which reads by itself: %s has no effect",
        type(chosen).__name__, WHERE,
    )  # fmt: skip
    return chosen


def model_to_warm(arguments: Sequence[str]) -> str | None:
    """The model that this command line has SGLang load by Inrush; None where it does not say so."""
    line = _start.CommandLine(arguments)
    try:
        extra = json.loads(line.option(["--model-loader-extra-config"]) or "{}")
    except ValueError:
        return None  # SGLang will say what is wrong with it
    asked = extra.get(KEY, False) if isinstance(extra, dict) else False
    if asked is not True and not (isinstance(asked, dict) and _start.may_warm(asked)):
        return None
    return line.option(["--model-path", "--model"]) or line.after("serve")
