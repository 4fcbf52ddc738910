"""One exception class, `Error`; what it is besides depends on its code."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inrush._inrush import Report


class Error(Exception):
    """What Inrush raises. The message goes from the outermost place to the cause and says what to do.

    code: what the caller can do about it, one of "invalid_request" (change the request), "environment_unfit"
        (another device or path), "not_found", "corrupt_checkpoint" (get the file again), "storage_failed"
        (check the disk), "out_of_memory", "device_failed", "timed_out", "cancelled", "internal" (report it).
    system_error: errno of the system call that failed, or 0.
    report: what the load did until then, or None where it had not started.
    overwritten: names of the tensors of a load_into() that bytes may have reached, in whole or in part.

    "not_found" is also a FileNotFoundError or a PermissionError, "timed_out" a TimeoutError, "out_of_memory"
    a MemoryError and "invalid_request" a ValueError.
    """

    code: str = "internal"
    system_error: int = 0
    report: Report | None = None
    overwritten: list[str]

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.overwritten = []

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        # Workers send their exceptions to the parent process. A report stays where it is.
        state = {"overwritten": self.overwritten}
        if notes := getattr(self, "__notes__", None):
            state["__notes__"] = notes
        return make_error, (self.code, str(self), self.system_error), state


class MissingError(Error, FileNotFoundError):
    """code "not_found", ENOENT."""


class NoAccessError(Error, PermissionError):
    """code "not_found", EACCES or EPERM."""


class TimedOutError(Error, TimeoutError):
    """code "timed_out"."""


class NoMemoryError(Error, MemoryError):
    """code "out_of_memory"."""


class RequestError(Error, ValueError):
    """code "invalid_request"."""


_CLASSES: dict[str, type[Error]] = {
    "not_found": MissingError,
    "timed_out": TimedOutError,
    "out_of_memory": NoMemoryError,
    "invalid_request": RequestError,
}


def make_error(code: str, message: str, system_error: int = 0) -> Error:
    """The exception for one of the codes of `Error`."""
    kind = _CLASSES.get(code, Error)
    if kind is MissingError and system_error in (errno.EACCES, errno.EPERM):
        kind = NoAccessError
    error = kind(message)
    error.code = code
    error.system_error = system_error
    if system_error and isinstance(error, OSError):
        error.errno = system_error
    return error
