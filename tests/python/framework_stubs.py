"""The stand-ins of tests/python/stubs in this process, and what the tests of both servers need."""
import contextlib
import importlib
import sys
from pathlib import Path

import torch

STUBS = Path(__file__).resolve().parent / "stubs"


def forget_modules(*prefixes):
    """So that the next import runs them again, against what is on the path then."""
    for name in list(sys.modules):
        if any(name == prefix or name.startswith((f"{prefix}.", f"{prefix}_")) for prefix in prefixes):
            del sys.modules[name]
            parent, _, own_name = name.rpartition(".")
            vars(sys.modules.get(parent, sys)).pop(own_name, None)  # else `from parent import name` finds it


@contextlib.contextmanager
def stubs_on_path(*modules):
    """`modules`: what must be imported afresh, the server and the plug-in for it."""
    forget_modules(*modules)
    sys.path.insert(0, str(STUBS))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(STUBS))
        forget_modules(*modules)


def raw(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def bytes_of(weights):
    """Name -> bytes of (name, tensor) pairs, all of them kept until the last one is there."""
    kept = list(weights)
    assert len(dict(kept)) == len(kept), "a name came twice"
    return {name: raw(tensor) for name, tensor in kept}


def bytes_in(tensors):
    return {name: data for name, (_, _, data) in tensors.items()}
