"""Where transformers lets another loader in, and which loads go through Inrush.

Two functions of transformers are replaced while a Patch is in force:
    PreTrainedModel._load_pretrained_model: gets a state_dict of LazyTensors instead of names of files, by the
        argument through which callers hand in their own.
    core_model_loading.spawn_materialize: says what transformers wants of each tensor, before it takes the
        first. It is given a function to call when it takes the tensor, as without worker threads.
What neither concerns goes to the original.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from inrush import _errors
from inrush._inrush import Report
from inrush.transformers._background import Options
from inrush.transformers._session import LazyTensor, Session
from inrush.transformers._sources import open_source

_log = logging.getLogger("inrush")

# Tried with the first and the last, and with 5.17.
FIRST_VERSION = (5, 10)
TRIED_VERSION = "5.24"

# Tensors that plan() declines.
_LEFT = "those for the CPU where others go to the disk, and those for devices that are neither CPU nor CUDA"

_PARAMETERS = {
    "_load_pretrained_model": ("model", "state_dict", "checkpoint_files", "load_config"),
    "spawn_materialize": ("thread_pool", "tensor", "device", "dtype", "sharding_op", "tensor_idx"),
}


class Loaded(NamedTuple):
    """What became of the weights of one from_pretrained().

    name: of the model, as from_pretrained() was given it.
    left: why they were left to transformers; None where Inrush loaded them.
    reports: of each load.
    tensor_count, nbytes: of all loads.
    seconds: of all loads together; in a part of that time transformers does its own work.
    """

    name: str
    left: str | None
    reports: list[Report]
    tensor_count: int
    nbytes: int
    seconds: float


class Patch(NamedTuple):
    options: Options
    loaded: list[Loaded]


class _Functions(NamedTuple):
    owner: Any  # of _load_pretrained_model
    load: Callable[..., Any]
    module: Any  # of spawn_materialize
    spawn: Callable[..., Any]


class _InForce:
    """The patches of the process, the last one counting, and what they replaced."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.everywhere: list[Patch] = []
        self.users = 0
        self.replaced: _Functions | None = None


_in_force = _InForce()
_of_this_call: contextvars.ContextVar[Patch | None] = contextvars.ContextVar("inrush_patch", default=None)


def _functions() -> _Functions:
    """Those to replace. Raises Error ("environment_unfit") where this transformers does not have them."""
    version = str(importlib.import_module("transformers").__version__)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    supported = f"inrush.transformers works with transformers {'.'.join(map(str, FIRST_VERSION))} and later"
    if numbers < FIRST_VERSION:
        raise _errors.make_error(
            "environment_unfit",
            f"transformers {version} is too old: {supported}; pip install -U transformers",
        )
    try:
        owner = importlib.import_module("transformers.modeling_utils").PreTrainedModel
        module = importlib.import_module("transformers.core_model_loading")
        functions = _Functions(owner, owner._load_pretrained_model, module, module.spawn_materialize)
        for function, (name, parameters) in zip((functions.load, functions.spawn), _PARAMETERS.items()):
            has = inspect.signature(function).parameters
            if lacks := [parameter for parameter in parameters if parameter not in has]:
                raise AttributeError(f"{name}() has no parameter {', '.join(lacks)}")
    except (ImportError, AttributeError) as error:
        raise _errors.make_error(
            "environment_unfit",
            f"transformers {version} loads in a way that Inrush does not know ({error}): {supported}, and "
            f"was tried up to {TRIED_VERSION}; take one of these, or load without inrush.transformers",
        ) from error
    return functions


def _current() -> Patch | None:
    last = _in_force.everywhere[-1:]  # other threads may end theirs now
    return _of_this_call.get() or (last[0] if last else None)


def enter(patch: Patch, *, everywhere: bool) -> Callable[[], None]:
    """Puts a patch in force, for the whole process or for calls from here only. Returns what ends it."""
    with _in_force.lock:
        if _in_force.users == 0:
            _replace(_functions())
        _in_force.users += 1
        if everywhere:
            _in_force.everywhere.append(patch)
    token = None if everywhere else _of_this_call.set(patch)

    def leave() -> None:
        if token is not None:
            _of_this_call.reset(token)
        with _in_force.lock:
            if everywhere:  # by identity: two of them may be equal
                at = next(i for i, other in enumerate(_in_force.everywhere) if other is patch)
                del _in_force.everywhere[at]
            _in_force.users -= 1
            if _in_force.users == 0:
                _restore()

    return leave


def _replace(functions: _Functions) -> None:
    @functools.wraps(functions.load)
    def load_pretrained_model(*args: Any, **kwargs: Any) -> Any:
        patch = _current()
        if patch is None:
            return functions.load(*args, **kwargs)
        arguments = inspect.signature(functions.load).bind(*args, **kwargs).arguments
        return _load(patch, functions.load, arguments)

    @functools.wraps(functions.spawn)
    def spawn_materialize(
        thread_pool: Any, tensor: Any, device: Any = None, dtype: Any = None, **more: Any
    ) -> Any:
        if isinstance(tensor, LazyTensor):
            session = tensor.session
            if more.get("sharding_op") is None:
                take = session.plan(tensor, device, dtype, more.get("tensor_idx") is not None)
                if take is not None:
                    return take
            tensor = session.ordinary_slice(tensor)
        return functions.spawn(thread_pool, tensor, device, dtype, **more)

    _in_force.replaced = functions
    functions.owner._load_pretrained_model = staticmethod(load_pretrained_model)
    functions.module.spawn_materialize = spawn_materialize


def _restore() -> None:
    functions = _in_force.replaced
    assert functions is not None
    functions.owner._load_pretrained_model = staticmethod(functions.load)
    functions.module.spawn_materialize = functions.spawn
    _in_force.replaced = None


def _load(patch: Patch, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    config = arguments["load_config"]
    name = str(config.pretrained_model_name_or_path)
    reason = _reason_to_leave(arguments)
    if reason is not None:
        _log.warning("%s: its weights are left to transformers: %s", name, reason)
        patch.loaded.append(Loaded(name, reason, [], 0, 0, 0.0))
        return original(**arguments)
    checkpoint = open_source(arguments["checkpoint_files"])
    session = Session(checkpoint, arguments["model"], config, patch.options)
    try:
        result = original(**{**arguments, "state_dict": session.state_dict})
    finally:
        session.close()
    count = sum(report.tensor_count for report in session.reports)
    nbytes = sum(report.loaded_bytes for report in session.reports)
    patch.loaded.append(Loaded(name, None, session.reports, count, nbytes, session.seconds))
    _log.info("%s: loaded %d tensors, %d bytes, in %.3f s", name, count, nbytes, session.seconds)
    if session.left_count:
        _log.warning("%s: %d tensors were left to transformers: %s", name, session.left_count, _LEFT)
    return result


def _reason_to_leave(arguments: dict[str, Any]) -> str | None:
    """Why this load is none of ours; None where it is."""
    config = arguments["load_config"]
    files = arguments["checkpoint_files"]
    if arguments["state_dict"] is not None or not files:
        return "the caller brought a state_dict"
    if not all(str(file).endswith(".safetensors") for file in files):
        return f"{files[0]} is not in the safetensors format"
    if config.hf_quantizer is not None:
        method = getattr(config.hf_quantizer.quantization_config, "quant_method", "an unnamed method")
        return f"the model is quantised by {getattr(method, 'value', method)}"
    if config.device_mesh is not None:
        return "each rank takes its shards of the tensors (tensor parallel)"
    if _uses_zero3():
        return "DeepSpeed ZeRO-3 partitions the tensors"
    return None


def _uses_zero3() -> bool:
    return bool(importlib.import_module("transformers.integrations").is_deepspeed_zero3_enabled())
