"""The frameworks that tensors are wanted in, by the reference's spellings."""

from __future__ import annotations

import functools
from collections.abc import Callable

from inrush.safetensors import _errors
from inrush.safetensors._framework import Framework
from inrush.safetensors._numpy import Jax, Numpy


def _torch() -> Framework:
    from inrush.safetensors._torch import Torch

    return Torch()


_SPELLINGS: dict[str, Callable[[], Framework]] = {
    "pt": _torch, "torch": _torch, "pytorch": _torch, "np": Numpy, "numpy": Numpy, "jax": Jax, "flax": Jax,
}  # fmt: skip
# Of the reference, not of ours.
ELSEWHERE = ("tf", "tensorflow", "mlx", "paddle")


@functools.cache
def _made(make: Callable[[], Framework]) -> Framework:
    return make()


def framework_of(spelling: str) -> Framework:
    """The framework of one of the reference's spellings."""
    if not isinstance(spelling, str):
        raise TypeError(f'framework is {spelling!r}: say the name of one, as "pt" or "numpy"')
    if spelling not in _SPELLINGS:
        why = "not one that Inrush loads" if spelling in ELSEWHERE else "invalid"
        known = ", ".join(f'"{name}"' for name in _SPELLINGS)
        raise _errors.make_error("invalid_request", f"framework {spelling} is {why}: say one of {known}")
    return _made(_SPELLINGS[spelling])
