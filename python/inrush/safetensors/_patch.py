"""`patch`: code that uses the package safetensors loads by Inrush for a while."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from typing import Any, Self

from inrush import _errors
from inrush.safetensors import _frameworks, _open

_log = logging.getLogger("inrush")

Namespace = dict[str, Any]


class patch(ContextDecorator):
    """In its block, or in a function that it decorates, what uses safetensors loads by Inrush.

    Replaced are safe_open, load_file, load and load_model of safetensors, safetensors.torch and
    safetensors.numpy, and every global of every imported module that holds one of them, which is what
    `from safetensors import safe_open` makes. At the end all that holds a replacement holds the original
    again, in modules imported meanwhile too. What Inrush does not do (other frameworks, other
    devices) the original does; the log says so once.

    All threads of the process see it. Blocks may be nested and may overlap in threads: the last one that ends
    restores. It cannot reach what keeps the function elsewhere than in a module: an attribute of a
    class or an object, an element of a list, a default argument, a closure, a subclass of safe_open, or a C
    extension that calls the package's.

    Raises Error ("environment_unfit") where safetensors is not installed.
    """

    def __enter__(self) -> Self:
        _state.enter()
        return self

    def __exit__(self, *_: object) -> None:
        _state.leave()


class _State:
    """How many blocks are active, and what they replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._originals: dict[int, Any] = {}  # by id of the replacement
        self._replacements: list[Any] = []  # keeps those ids theirs
        self._namespaces: list[Namespace] = []

    def enter(self) -> None:
        with self._lock:
            if self._depth == 0:
                pairs = list(_pairs())
                self._replacements = [replacement for _, replacement in pairs]
                self._originals = {id(replacement): original for original, replacement in pairs}
                self._namespaces = _swap(
                    {id(original): replacement for original, replacement in pairs}, _namespaces()
                )
            self._depth += 1

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                _swap(self._originals, [*self._namespaces, *_namespaces()])
                self._namespaces, self._originals, self._replacements = [], {}, []


_state = _State()


def _namespaces() -> Iterator[Namespace]:
    """The globals of all modules, less ours; a module may be loading on another thread."""
    for name, module in list(sys.modules.items()):
        # type(), since a lazy module would answer isinstance() and getattr() by importing itself.
        if issubclass(type(module), types.ModuleType) and name.partition(".")[0] != "inrush":
            yield types.ModuleType.__getattribute__(module, "__dict__")


def _swap(by_id: dict[int, Any], namespaces: Any) -> list[Namespace]:
    """Puts by_id[id(value)] for each value that has one; returns the namespaces where there was any."""
    changed = []
    for namespace in namespaces:
        found = [(name, by_id[id(value)]) for name, value in list(namespace.items()) if id(value) in by_id]
        namespace.update(found)
        if found:
            changed.append(namespace)
    return changed


def _pairs() -> Iterator[tuple[Any, Any]]:
    """Originals and what stands in for them, made anew for each patch so that nothing else holds them."""
    try:
        package = importlib.import_module("safetensors")
    except ImportError as error:
        raise _errors.make_error(
            "environment_unfit", f"there is no package safetensors to patch: {error}"
        ) from error
    opener = _stand_in_class(package.safe_open)
    yield package.safe_open, opener
    if hasattr(package, "_safe_open_handle"):  # private: not in every version
        yield package._safe_open_handle, _handle_of(opener)
    for framework, name, functions in (
        ("np", "numpy", ("load_file", "load")),
        ("pt", "torch", ("load_file", "load", "load_model")),
    ):
        if name not in sys.modules:
            continue  # what imports it later finds our safe_open
        theirs = importlib.import_module(f"safetensors.{name}")
        ours = importlib.import_module(f"inrush.safetensors.{name}")
        for function in functions:
            original = getattr(theirs, function)
            yield original, _stand_in(framework, original, getattr(ours, function))


def _is_ours(framework: Any, device: Any) -> bool:
    """Whether Inrush has the framework, and the device is one of its own. Nonsense is for it to refuse."""
    if framework in _frameworks.ELSEWHERE:
        return _told(f"framework {framework}")
    kind = str(device).partition(":")[0]
    return kind not in _DEVICES_ELSEWHERE or _told(f"device {device}")


_DEVICES_ELSEWHERE = frozenset({"mps", "npu", "xpu", "xla", "mlu", "musa", "hpu"})


@functools.cache
def _told(what: str) -> bool:
    _log.warning("%s is not one of Inrush: the package safetensors loads it, as without the patch", what)
    return False


def _stand_in_class(original: Any) -> Any:
    class safe_open(_open.safe_open):
        def __new__(cls, filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
            if _is_ours(framework, device):
                return super().__new__(cls)
            return original(filename, framework, device, **options)

    safe_open.__doc__ = _open.safe_open.__doc__
    return safe_open


def _handle_of(opener: Any) -> Callable[..., Any]:
    def _safe_open_handle(f: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
        f.fileno()  # as the original, which takes open files only and opens them anew by their name
        return opener(f.name, framework, device, **options)

    return _safe_open_handle


def _stand_in(framework: str, original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(ours)

    @functools.wraps(ours)
    def stand_in(*arguments: Any, **options: Any) -> Any:
        device = signature.bind(*arguments, **options).arguments.get("device", "cpu")
        return (ours if _is_ours(framework, device) else original)(*arguments, **options)

    return stand_in
