"""Errors of the drop-in: Inrush's own, which `except SafetensorError` catches too."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inrush import _errors


def reference_class() -> type[Exception]:
    """`safetensors.SafetensorError`; inrush.Error where the package is not installed."""
    try:
        import safetensors
    except ImportError:
        return _errors.Error
    return safetensors.SafetensorError


@functools.cache
def error_class() -> type[_errors.Error]:
    """The class of what the drop-in raises: an inrush.Error and a SafetensorError.

    Made when it is first asked for, so that importing inrush.safetensors imports nothing else.
    """
    reference = reference_class()
    if issubclass(_errors.Error, reference):
        return _errors.Error
    return type("Error", (_errors.Error, reference), {"__module__": "inrush.safetensors", **_MEMBERS})


_classes: dict[type[_errors.Error], type[_errors.Error]] = {}


def _class_for(kind: type[_errors.Error]) -> type[_errors.Error]:
    both = error_class()
    if issubclass(both, kind):
        return both
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (both, kind), {"__module__": "inrush.safetensors"})
    return _classes[kind]


def make_error(code: str, message: str, system_error: int = 0) -> _errors.Error:
    """The exception for one of the codes of inrush.Error.

    "not_found" is what it is elsewhere, a FileNotFoundError or PermissionError and no SafetensorError: code
    that catches both tells them apart.
    """
    return _adapted(_errors.make_error(code, message, system_error))


def _adapted(error: _errors.Error) -> _errors.Error:
    if error.code == "not_found" or isinstance(error, reference_class()):
        return error
    adapted = _class_for(type(error))(str(error))
    adapted.__dict__.update(error.__dict__)
    if isinstance(error, OSError) and isinstance(adapted, OSError):
        adapted.errno = error.errno
    return adapted.with_traceback(error.__traceback__)


def _reduce(self: _errors.Error) -> tuple[object, ...]:
    state = {"overwritten": self.overwritten}
    if notes := getattr(self, "__notes__", None):
        state["__notes__"] = notes
    return make_error, (self.code, str(self), self.system_error), state


_MEMBERS: dict[str, Any] = {
    "__reduce__": _reduce,
    "__doc__": "What inrush.safetensors raises: an inrush.Error that `except SafetensorError` catches too.",
}


@contextmanager
def adapted(prefix: str = "", place: tuple[str, str] = ("", "")) -> Iterator[None]:
    """Errors of the engine leave the block as errors of the drop-in.

    prefix: in front of messages about a broken file.
    place: a path that means nothing to the caller, and what messages shall say instead.
    """
    try:
        yield
    except _errors.Error as error:
        message = str(error).replace(*place) if place[0] else str(error)
        error.args = (prefix + message if error.code == "corrupt_checkpoint" else message,)
        raise _adapted(error) from None
