"""The spellings of a device that users know, brought to "cpu" or "cuda:N"."""

from __future__ import annotations

import re
from typing import Any

from inrush import _errors, _loaders
from inrush._inrush import Loader

_ORDINAL = re.compile(r"cuda:([0-9]+)|([0-9]+)")


def normalise(device: Any, loader: Loader | None) -> str:
    """ "cpu" or "cuda:N" for "cpu", "cuda" (the current device), "cuda:1", 1, "1", a GPU's UUID or a
    torch.device.

    Raises Error: "invalid_request" for what is no device, "environment_unfit" for "cuda" or a UUID that is
        not here.
    """
    if isinstance(device, bool) or device is None:
        raise _refusal(device)
    if isinstance(device, int):
        if device < 0:
            raise _refusal(device)
        return f"cuda:{device}"
    spelling = str(device)  # a torch.device prints as it is spelt
    if spelling in ("cpu", "cpu:0"):
        return "cpu"
    if spelling == "cuda":
        return (loader or _loaders.any_loader()).current_device()
    ordinal = _ORDINAL.fullmatch(spelling)
    if ordinal:
        return f"cuda:{int(ordinal[1] or ordinal[2])}"
    if spelling.startswith(("GPU-", "MIG-")):
        return _by_uuid(spelling, loader or _loaders.any_loader())
    raise _refusal(device)


def _by_uuid(uuid: str, loader: Loader) -> str:
    loader.current_device()  # says why, where there is no GPU at all
    devices = loader.devices()
    for name, known in devices:
        if known == uuid:
            return name
    seen = ", ".join(f"{name} ({known})" if known else name for name, known in devices)
    raise _errors.make_error("environment_unfit", f"no device {uuid} here; there are {seen}")


def _refusal(device: Any) -> _errors.Error:
    return _errors.make_error(
        "invalid_request",
        f"device {device!r} is not understood: "
        'say "cpu", "cuda", "cuda:1", 1, the UUID of a GPU or a torch.device',
    )
