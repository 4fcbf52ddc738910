"""The loads behind one from_pretrained(): what goes where, and tensors for transformers to take.

transformers says for each tensor of the checkpoint on which device and in which element type it wants it, and
takes the first one only when it has said all. So nothing is loaded one by one:
    what certainly goes where the whole model goes  one load, begun when transformers starts to say
    other tensors                                   one load a device, begun when it has said all
    parts, from which transformers builds others    loads of _PARTS_BYTES in the order in which it takes them,
                                                    one ahead, so that parts and what is built of them are
                                                    never there all at once
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from inrush import _loads
from inrush._inrush import Checkpoint, Report, TensorInfo
from inrush.torch import _dtypes, load
from inrush.transformers._background import BackgroundLoad, Options, TargetForm

_log = logging.getLogger("inrush")

_PARTS_BYTES = 512 << 20


class LazyTensor:
    """Stands for one tensor of the checkpoint in the state_dict that transformers gets, as the slices of
    safetensors' safe_open() do."""

    __slots__ = ("entry", "session")

    def __init__(self, session: Session, entry: TensorInfo) -> None:
        self.session = session
        self.entry = entry

    def get_shape(self) -> list[int]:
        return list(self.entry.shape)

    def get_dtype(self) -> str:
        """The name of the file format."""
        return self.entry.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Loads this tensor alone, onto the CPU."""
        return self.session.load_alone(self.entry.name)[index]


class _Wanted:
    """A tensor as transformers wants it, and the tensor once it is loaded and not yet taken."""

    __slots__ = ("form", "group", "lazy", "tensor")

    def __init__(self, lazy: LazyTensor, device: torch.device, dtype: torch.dtype | None) -> None:
        entry = lazy.entry
        stored, shape = _dtypes.form_or_bytes(entry.dtype, entry.shape, entry.nbytes)
        self.lazy = lazy
        self.form = TargetForm(shape, dtype or stored, device)
        self.group: _Group | None = None
        self.tensor: torch.Tensor | None = None

    @property
    def name(self) -> str:
        return self.lazy.entry.name


class _Group:
    """What one load brings, by name: tensors for one device."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.members: dict[str, _Wanted] = {}
        self.next: _Group | None = None  # to be begun while this one is taken
        self.load: BackgroundLoad | None = None
        self.is_here = False
        self._bytes_left = bytes_max

    def has_room_for(self, wanted: _Wanted) -> bool:
        if wanted.name in self.members:
            return False
        return self._bytes_left is None or not self.members or wanted.lazy.entry.nbytes <= self._bytes_left

    def add(self, wanted: _Wanted) -> None:
        self.members[wanted.name] = wanted
        wanted.group = self
        if self._bytes_left is not None:
            self._bytes_left -= wanted.lazy.entry.nbytes

    @property
    def device(self) -> torch.device:
        return next(iter(self.members.values())).form.device

    def begin(self, checkpoint: Checkpoint, options: Options) -> None:
        if self.load is None:
            forms = {name: wanted.form for name, wanted in self.members.items()}
            self.load = BackgroundLoad(checkpoint, forms, options)


class Session:
    """One from_pretrained(). Any thread may plan and take."""

    def __init__(self, checkpoint: Checkpoint, model: Any, load_config: Any, options: Options) -> None:
        """model: transformers', on the meta device; load_config: its LoadStateDictConfig."""
        self.state_dict = {name: LazyTensor(self, entry) for name, entry in checkpoint.items()}
        self._checkpoint = checkpoint
        self.left_count = 0  # tensors that were left to transformers
        self._model = model
        self._config = load_config
        self._has_begun = False
        self._options = options
        self._deadline = None if options.timeout is None else time.monotonic() + options.timeout
        self._lock = threading.Lock()
        self._pending: list[tuple[_Wanted, bool]] = []
        self._expected: dict[str, _Wanted] = {}
        self._groups: list[_Group] = []
        self._files: dict[str, Any] = {}
        devices = (load_config.device_map or {"": "cpu"}).values()
        self._devices = {str(device) for device in devices}
        transforms = load_config.weight_mapping or ()
        self._name_patterns = [entry.compiled_sources for entry in transforms]
        self._part_patterns = [entry.compiled_sources for entry in transforms if hasattr(entry, "operations")]

    @property
    def reports(self) -> list[Report]:
        return [report for group in self._groups if group.load for report in group.load.reports]

    @property
    def seconds(self) -> float:
        """In loads; they may run while transformers works."""
        return sum(group.load.seconds for group in self._groups if group.load)

    def plan(
        self, lazy: LazyTensor, device: Any, dtype: torch.dtype | None, is_part: bool
    ) -> Callable[[], torch.Tensor] | None:
        """What gives the tensor once all are planned; None where it is left to transformers.

        is_part: transformers will build another tensor from it.
        """
        place = _torch_device(device)
        # Of tensors on the CPU we are not told which ones are bound for the disk, and those need no reading.
        if place.type not in ("cpu", "cuda") or (place.type == "cpu" and "disk" in self._devices):
            return None
        wanted = _Wanted(lazy, place, dtype)
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                self._begin_early()
            expected = self._expected.get(wanted.name)
            if expected is not None and expected.form == wanted.form:
                wanted = expected
            else:
                if expected is not None:
                    _log.warning(
                        "%r is loaded twice: as %s and as %s", wanted.name, expected.form, wanted.form
                    )
                is_part = is_part or any(pattern.search(wanted.name) for pattern in self._part_patterns)
                self._pending.append((wanted, is_part))
        return lambda: self._take(wanted)

    def ordinary_slice(self, lazy: LazyTensor) -> Any:
        """The tensor as safetensors' own safe_open() gives it, for what is left to transformers."""
        safe_open = importlib.import_module("safetensors").safe_open
        path = lazy.entry.file
        with self._lock:
            self.left_count += 1
            if path not in self._files:
                self._files[path] = safe_open(path, framework="pt", device="cpu")
            return self._files[path].get_slice(lazy.entry.name)

    def load_alone(self, name: str) -> torch.Tensor:
        only = [_loads.exact_pattern(name)]
        tensor: torch.Tensor = load(self._checkpoint, only=only, progress=False)[name]
        return tensor

    def close(self) -> None:
        """Nothing is in flight afterwards, whether all was taken or not."""
        for group in self._groups:
            if group.load is not None:
                group.load.close()
        self._files.clear()

    def _begin_early(self) -> None:
        """Begins the load of what needs no plan: tensors that keep their names, of a model that goes to one
        device. On the meta device its parameters have the element types that they are to have."""
        if len(self._devices) > 1 or self._config.dtype_plan:
            return
        device = _torch_device(next(iter((self._config.device_map or {"": "cpu"}).values())))
        if device.type not in ("cpu", "cuda"):
            return
        parameters = self._model.state_dict()
        group = _Group()
        for name, lazy in self.state_dict.items():
            if name in parameters and not any(pattern.search(name) for pattern in self._name_patterns):
                wanted = self._expected[name] = _Wanted(lazy, device, parameters[name].dtype)
                group.add(wanted)
        if group.members:
            self._chain([group])

    def _take(self, wanted: _Wanted) -> torch.Tensor:
        with self._lock:
            if self._pending:
                self._group_pending()
            group = wanted.group
            assert group is not None
            if not group.is_here:
                self._bring(group)
            tensor, wanted.tensor = wanted.tensor, None  # ours would keep what transformers drops
        assert tensor is not None
        return tensor

    def _bring(self, group: _Group) -> None:
        self._begin(group)
        assert group.load is not None
        for name, tensor in group.load.wait().items():
            group.members[name].tensor = tensor
        group.is_here = True
        if group.next is not None:
            self._begin(group.next)

    def _group_pending(self) -> None:
        """All tensors of a device together, but parts by _PARTS_BYTES."""
        whole: list[_Group] = []
        parts: list[_Group] = []
        filling: dict[tuple[torch.device, bool], _Group] = {}
        for wanted, is_part in self._pending:
            key = (wanted.form.device, is_part)
            group = filling.get(key)
            if group is None or not group.has_room_for(wanted):
                group = filling[key] = _Group(_PARTS_BYTES if is_part else None)
                (parts if is_part else whole).append(group)
            group.add(wanted)
        self._pending.clear()
        self._chain(whole)
        self._chain(parts)

    def _chain(self, groups: list[_Group]) -> None:
        """Begins the first load of each device; each of the others when the one before it is taken."""
        self._groups += groups  # first: close() ends what has begun where another cannot
        last: dict[torch.device, _Group] = {}
        for group in groups:
            if group.device in last:
                last[group.device].next = group
            else:
                self._begin(group)
            last[group.device] = group

    def _begin(self, group: _Group) -> None:
        options = self._options
        if self._deadline is not None:
            options = options._replace(timeout=max(self._deadline - time.monotonic(), 1e-9))
        group.begin(self._checkpoint, options)


def _torch_device(device: Any) -> torch.device:
    """As transformers spells them: 0, "cuda:0", "cpu", "disk", a torch.device; None: where it is, the CPU."""
    place = torch.device("meta" if device == "disk" else "cpu" if device is None else device)
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place
