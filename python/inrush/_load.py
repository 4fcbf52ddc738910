"""`inrush.open` and `inrush.load`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from inrush import _arrays, _devices, _errors, _loaders, _loads
from inrush._inrush import Checkpoint, Loader, Report, Request
from inrush._loads import Only, Options, Path, Slices
from inrush._progress import Progress


class Tensors(dict[str, Any]):
    """What a load brought: tensors by name, in the order of the checkpoint.

    report: what the load did.
    """

    report: Report

    def __init__(self, checkpoint: Checkpoint, request: Request) -> None:
        """With the names in place; to be made while the first bytes move."""
        if request.only is None:
            names: Iterable[str] = checkpoint.keys()
        else:
            wanted = {entry.name for entry in _loads.selection(checkpoint, request)}
            names = [name for name in checkpoint if name in wanted]
        super().__init__(dict.fromkeys(names))
        self._checkpoint = checkpoint

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies, and what pickle and torch.save() write, are dicts that torch.load() takes as they are, as it
        # takes a state_dict: a report stays in its process.
        return OrderedDict, (), None, None, iter(self.items())

    @property
    def metadata(self) -> dict[str, str]:
        """`__metadata__` of the checkpoint."""
        return self._checkpoint.metadata

    @property
    def dtypes(self) -> dict[str, str]:
        """Element types by name as the file spells them, also where the framework has no word for them."""
        return {name: self._checkpoint[name].dtype for name in self}


def open(path: Path, *, ignore_index: bool = False) -> Checkpoint:  # noqa: A001
    """Reads and validates the headers of a checkpoint: names, dtypes, shapes, metadata, sizes, files.

    No data is read.
    path: a .safetensors file, a folder, a snapshot of the Hugging Face cache, or a *.safetensors.index.json.
    ignore_index: take every file of the folder, whatever an index says.
    Raises Error: "not_found" (also a FileNotFoundError), "corrupt_checkpoint" with file, tensor, range and
        cause.
    """
    return _loads.open_checkpoint(path, ignore_index=ignore_index)


def load(
    path: Path,
    device: Any = "cpu",
    *,
    framework: str | None = None,
    only: Only = None,
    slices: Slices = None,
    unsupported: str = "error",
    progress: Progress = None,
    timeout: float | None = None,
    loader: Loader | None = None,
    transfer: str = "auto",
    page_cache: str = "auto",
) -> Tensors:
    """Loads a checkpoint; the tensors own their memory.

    device: "cpu", "cuda" (the current device), "cuda:1", 1, a GPU's UUID, a torch.device.
    framework: "numpy", "cupy", "jax" (arrays of these), "dlpack" (inrush.Tensor, which all of them and torch
        import without a copy). Without it: NumPy arrays on the CPU, inrush.Tensor on a GPU. BF16 and F8 in
        NumPy are the types of ml_dtypes where that is installed, else raw elements (numpy.void) with the name
        in `dtype.metadata`.
    only: a name, names or globs, or a function that takes a name and says whether it is wanted.
    slices: by name (dimension, start, length): load that part of the tensor only.
    unsupported: "uint8" gives what the framework has no type for (F4, F6) as a flat array of its bytes;
        "error" refuses it before anything is read.
    progress: True for a bar (needs tqdm), False for none, None for one on terminals, or a function that is
        called with loaded and planned bytes.
    timeout: seconds for the whole load.
    loader: an inrush.Loader; without it the one that the process keeps for the device.
    transfer, page_cache: "auto"; see docs/python.md.
    Raises Error; see there for the codes. Ctrl-C ends the load and frees what it held.
    """
    device = _devices.normalise(device, loader)
    framework = framework or _arrays.framework_for(device)
    _arrays.refuse_device(framework, device)
    convert = _arrays.converter(framework)
    checkpoint = _loads.open_checkpoint(path)
    request = _loads.make_request(
        checkpoint, device, Options(only, slices, progress, timeout, transfer, page_cache)
    )
    if unsupported not in ("error", "uint8"):
        raise _errors.make_error("invalid_request", f'unsupported={unsupported!r}: say "error" or "uint8"')
    if framework != "dlpack" and unsupported == "error":
        _arrays.refuse_packed(_loads.selection(checkpoint, request, _arrays.PACKED), framework)

    with _loads.running(loader or _loaders.loader_for(device), checkpoint, request, progress) as (
        running,
        batches,
    ):
        tensors = Tensors(checkpoint, request)
        for batch in batches:
            for tensor in batch:
                tensors[tensor.name] = convert(tensor)
        tensors.report = running.report()
    return tensors
