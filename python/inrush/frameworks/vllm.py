"""`vllm serve MODEL --load-format inrush`: the plug-in that vLLM finds by its entry point. docs/vllm.md.

This module imports neither torch nor vLLM; register() does.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from inrush import _errors
from inrush.frameworks import _start

LOAD_FORMAT = "inrush"

_log = logging.getLogger("inrush")
_is_registered = False


def register() -> None:
    """Adds the load format "inrush" to vLLM. vLLM calls it in each of its processes, sometimes twice.

    Where vLLM is one that the plug-in does not know, whoever asks for the format is told so, and nobody else
    is bothered.
    """
    global _is_registered
    if _is_registered:
        return
    _is_registered = True
    _start.share_log("vllm")
    if folder := model_to_warm(sys.argv):
        _start.warm(folder)
    try:
        from vllm.model_executor.model_loader import register_model_loader
    except ImportError as error:
        _log.warning("vLLM %s has no place for the load format %r: %s", _version(), LOAD_FORMAT, error)
        return
    register_model_loader(LOAD_FORMAT)(_loader_class())


def model_to_warm(arguments: Sequence[str]) -> str | None:
    """The model that this command line has vLLM load by Inrush; None where it does not say so."""
    line = _start.CommandLine(arguments)
    if (line.option(["--load-format"]) or "").lower() != LOAD_FORMAT:
        return None
    try:
        extra = json.loads(line.option(["--model-loader-extra-config"]) or "{}")
    except ValueError:
        return None  # vLLM will say what is wrong with it
    if not isinstance(extra, dict) or not _start.may_warm(extra):
        return None
    if any(argument.startswith("--model-loader-extra-config.") for argument in arguments):
        return None  # vLLM's other spelling of its keys, which may say anything
    return line.option(["--model"]) or line.after("serve")


def _version() -> str:
    import vllm

    return str(getattr(vllm, "__version__", "of an unknown version"))


def _loader_class() -> type[Any]:
    try:
        from inrush.frameworks import _vllm_loader

        problem = _vllm_loader.misfit()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        problem = str(error)  # vLLM calls register() unguarded: what is raised there would stop every server
    return _refusing(problem) if problem else _vllm_loader.Loader


def _refusing(problem: str) -> type[Any]:
    """A loader that says, when it is asked for, that this vLLM is none that it knows."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    message = (
        f'load_format="{LOAD_FORMAT}" does not know vLLM {_version()}: {problem}. It was tried with 0.32; '
        'install that or a newer inrush, or load with load_format="safetensors"'
    )

    class Refusing(BaseModelLoader):  # type: ignore[misc]
        def __init__(self, load_config: Any) -> None:
            raise _errors.make_error("environment_unfit", message)

        def download_model(self, model_config: Any) -> None:
            """Never called: there is no instance."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Never called: there is no instance."""

    return Refusing
