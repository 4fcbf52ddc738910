"""The C++ library as Python objects. Everything public is re-exported by `inrush`."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, final, overload

_Default = TypeVar("_Default")

__version__: str

def open(path: bytes, ignore_index: bool = False) -> Checkpoint:
    """Reads and validates the headers of a checkpoint; `path` as os.fsencode() gives it."""

def describe_checkpoint(
    path: bytes, files: list[bytes], tensors: list[tuple[str, str, tuple[int, ...], int, int]]
) -> Checkpoint:
    """A checkpoint of byte ranges of any files, which other formats have tensors in.

    tensors: name, element type as safetensors spells it, shape, index into `files`, offset of the first byte.
    Raises Error: "corrupt_checkpoint" where a range leaves its file or overlaps another, "invalid_request",
        "not_found".
    """

def warm(
    checkpoint: Checkpoint,
    only: list[str] | None = None,
    slices: dict[str, tuple[int, int, int]] = {},
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int, int, int, float]:
    """Planned, resident, read and left bytes, and seconds; see inrush.warm().

    on_progress: called every 16 MiB with what is resident and what is planned; what it raises ends the call.
    """

def close(wait_max_s: float) -> None:
    """Before the interpreter ends: every wait on another thread ends with `cancelled` and comes back."""

@final
class TensorInfo:
    """One tensor of a checkpoint: what its header says."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str:
        """The name of the file format: "BF16", "F8_E4M3", ..."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Elements of each dimension, also for F4 and F6; () for a scalar."""
    @property
    def nbytes(self) -> int: ...
    @property
    def file(self) -> str:
        """Path of the file that holds it."""
    @property
    def offset(self) -> int:
        """Of its first byte in that file."""

@final
class CheckpointFile:
    """One file of a checkpoint."""

    @property
    def path(self) -> str: ...
    @property
    def nbytes(self) -> int:
        """Size of the file, header included."""
    @property
    def data_offset(self) -> int:
        """Where the header ends and the tensors' bytes start."""
    @property
    def metadata(self) -> dict[str, str]:
        """Its `__metadata__`."""

@final
class Checkpoint:
    """The files and tensors of a checkpoint, a mapping from names to TensorInfo. Keeps no file open.

    Tensors are ordered by file, then by their place in it.
    """

    @property
    def path(self) -> str: ...
    @property
    def files(self) -> list[CheckpointFile]: ...
    @property
    def dtypes(self) -> list[str]:
        """The element types that occur in it, each once."""
    @property
    def metadata(self) -> dict[str, str]:
        """`__metadata__` of all files together; where two differ about a key, the first file's value."""
    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
    @property
    def notes(self) -> list[str]:
        """What is legal but worth knowing: tensors outside the index, a second copy left unread."""
    def __len__(self) -> int: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __getitem__(self, name: str, /) -> TensorInfo: ...
    def __iter__(self) -> Iterator[str]: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[TensorInfo]: ...
    def items(self) -> list[tuple[str, TensorInfo]]: ...
    @overload
    def get(self, name: str, default: None = None) -> TensorInfo | None: ...
    @overload
    def get(self, name: str, default: _Default) -> TensorInfo | _Default: ...
    def selection(
        self, only: list[str] | None = None, slices: dict[str, tuple[int, int, int]] = {}
    ) -> list[TensorInfo]:
        """What a load with these arguments would bring, shapes and bytes as sliced. Reads nothing."""

@final
class Tensor:
    """A loaded tensor that owns its memory: valid for as long as it is held, whatever else is gone.

    numpy, cupy, jax.dlpack and torch import it without a copy by their from_dlpack(). In host memory it also
    has the buffer protocol: memoryview(tensor) is its bytes.
    """

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str:
        """The name of the file format: "BF16", "F8_E4M3", ..."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> str:
        """ "cpu" or "cuda:N"."""
    @property
    def nbytes(self) -> int: ...
    @property
    def data_ptr(self) -> int:
        """Address of the first byte; 0 if empty."""
    @property
    def owner(self) -> Any:
        """What Request.allocate returned for the memory it lies in; None where the engine allocated."""
    def as_bytes(self) -> Tensor:
        """The same memory as U8 of shape (nbytes,)."""
    def element_offset(self, base: int, element_bytes: int) -> int:
        """Elements of that size between address `base` and the tensor."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule; BufferError for what DLPack cannot say (F6, an odd row of F4), another device, a
        copy.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class PathBytes:
    """Bytes of tensors that came one way."""

    @property
    def path(self) -> str: ...
    @property
    def bytes(self) -> int: ...

@final
class Fallback:
    """One step down from what the machine should allow."""

    @property
    def what(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def count(self) -> int: ...

@final
class Stages:
    """Seconds since the start of the load at which each stage ended; negative: not reached."""

    @property
    def open(self) -> float: ...
    @property
    def headers(self) -> float: ...
    @property
    def plan(self) -> float: ...
    @property
    def allocate(self) -> float: ...
    @property
    def first_byte(self) -> float: ...
    @property
    def first_tensor(self) -> float: ...
    @property
    def last_byte(self) -> float: ...

@final
class Report:
    """What a load did, from what happened and not from what was configured. str() is text for people."""

    @property
    def device(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def complete(self) -> bool: ...
    @property
    def tensor_count(self) -> int: ...
    @property
    def planned_bytes(self) -> int: ...
    @property
    def loaded_bytes(self) -> int: ...
    @property
    def read_bytes(self) -> int: ...
    @property
    def bytes_by_path(self) -> list[PathBytes]: ...
    @property
    def seconds(self) -> Stages: ...
    @property
    def bytes_per_second(self) -> float: ...
    @property
    def read_count(self) -> int: ...
    @property
    def copy_count(self) -> int: ...
    @property
    def retry_count(self) -> int: ...
    @property
    def orphan_count(self) -> int: ...
    @property
    def fallbacks(self) -> list[Fallback]: ...
    @property
    def pinned_peak_bytes(self) -> int: ...
    @property
    def staging_peak_bytes(self) -> int: ...
    @property
    def read_ahead_bytes(self) -> int: ...
    @property
    def window_peak_bytes(self) -> int: ...
    @property
    def host_peak_bytes(self) -> int: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def suspect_tensors(self) -> list[str]:
        """Handed out before their file turned out to have changed."""
    @property
    def overwritten_targets(self) -> list[str]:
        """Of a load that failed: targets that bytes may have reached, in whole or in part."""
    def to_json(self) -> str: ...

@final
class Request:
    """What Loader.start() is asked for."""

    def __init__(self) -> None: ...
    device: str
    """ "cpu", "cuda", "cuda:1", "1" or a GPU's UUID."""
    only: list[str] | None
    """Names or globs; None: all tensors, []: none."""
    slices: dict[str, tuple[int, int, int]]
    """By name: dimension, start, length."""
    path: str
    """ "auto", "staged" or "gds"."""
    page_cache: str
    """ "auto", "keep" or "bypass"."""
    window_bytes: int
    """Device bytes that may be filled and not yet taken; 0: no limit."""
    timeout_s: float
    """The whole load fails with `timed_out` after this time; 0: never."""
    allocate: Callable[[int], tuple[int, object, int | None]] | None
    """Bytes to address, owner and the stream that may still use the block; None: the engine allocates.

    Called on the thread that is in start() or take(), with at most 256 MiB or a single larger tensor at a
    time.
    """
    on_progress: Callable[[int, int], object] | None
    """Called with loaded and planned bytes, every 50 ms or so, on the thread that waits."""
    targets: dict[str, tuple[int, int]]
    """Memory that exists, by tensor: address and bytes."""
    targets_owner: object
    targets_stream: int | None

@final
class Views:
    """Loaded tensors as a framework's views of memory that Request.allocate gave.

    form: (dtype as the file format names it, shape, bytes) to (the framework's element type, shape, strides).
        Called once for each dtype and shape.
    base: (what allocate() returned as the owner, element type) to (the owner's memory as one array of that
        type, its address, bytes of an element). Called once for each pair until forget().
    view: (array, shape, strides, offset in elements) to the view. Called for each tensor.
    empty: makes what stands for a tensor without bytes.
    """

    def __init__(
        self,
        *,
        form: Callable[[str, tuple[int, ...], int], tuple[Any, tuple[int, ...], tuple[int, ...]]],
        base: Callable[[Any, Any], tuple[Any, int, int]],
        view: Callable[..., Any],
        empty: Callable[[Tensor], Any],
    ) -> None: ...
    def of(self, tensor: Tensor) -> Any: ...
    def forget(self) -> None:
        """Lets go of all memory that is kept for the next view of it."""

@final
class Load:
    """A load in progress, for one consumer thread."""

    def take(self, bytes_max: int = ...) -> list[Tensor]:
        """Waits for what arrives next, at least one tensor; stops at `bytes_max`. [] once all were taken."""
    def take_views(self, views: Views, into: dict[str, Any]) -> int:
        """The same, but puts views of at most 1024 tensors into the dict by name. How many; 0 once all were
        taken. What a function of `views` raises comes out, and the tensors of this call are lost.
        """
    def cancel(self) -> None:
        """The load ends with `cancelled` soon. From any thread."""
    def close(self) -> None:
        """Cancels, waits until nothing is in flight and frees; tensors that were taken stay."""
    @property
    def done(self) -> bool: ...
    @property
    def progress(self) -> tuple[int, int]:
        """Loaded and planned bytes."""
    def report(self) -> Report: ...

@final
class AsyncLoad:
    """A load whose tensors are there before their bytes, for one thread at a time.

    Where it fails, or is closed early, each tensor that is not complete is filled with 0xFF before any stream
    goes on.
    """

    def tensors(self) -> list[Tensor]:
        """All of the load, those without bytes first. What their memory holds means nothing yet."""
    def wait(self, tensor: Tensor, stream: int = 0) -> None:
        """What is queued on the stream after the call sees the bytes; on the CPU they are there.

        Blocks until the last copy is queued, not at all with wait="value". Raises what ended the load.
        """
    def wait_all(self, stream: int = 0) -> None: ...
    def finish(self) -> None:
        """Waits until all is complete and the files were found unchanged. Raises what ended the load."""
    def cancel(self) -> None:
        """The load ends with `cancelled` soon. From any thread."""
    def close(self) -> None:
        """Cancels what is not complete, waits until nothing is in flight and frees; the tensors stay."""
    @property
    def done(self) -> bool: ...
    @property
    def progress(self) -> tuple[int, int]:
        """Loaded and planned bytes."""
    def report(self) -> Report: ...

@final
class Loader:
    """What is dear to set up: driver, pinned ring, reader threads. Kept between loads; may be shared by
    threads.

    Arguments that are None come from the environment (INRUSH_*) and the configuration file; `inrush env`
    shows them. Sizes are bytes or texts like "8MiB". In a forked child a Loader of the parent raises Error
    (invalid_request).
    """

    def __init__(
        self,
        *,
        readers: int | None = None,
        piece_bytes: int | str | None = None,
        staging_bytes: int | str | None = None,
        processes: int | None = None,
        io_uring: bool | None = None,
        cuda_library: str | None = None,
    ) -> None: ...
    def start(self, checkpoint: Checkpoint, request: Request) -> Load: ...
    def load_async(self, checkpoint: Checkpoint, request: Request, wait: str = "event") -> AsyncLoad:
        """wait: how streams wait, "event" or "value" (a word in host memory)."""
    def devices(self) -> list[tuple[str, str]]:
        """Spelling and UUID of each GPU that the process sees, then ("cpu", "")."""
    def current_device(self) -> str:
        """ "cuda:N" of the CUDA context that is current on this thread, else the first GPU."""
    def copy_to_host(self, tensor: Tensor) -> bytes: ...
    def release_idle(self) -> None:
        """Frees the pinned rings and threads that no load is using."""
    def take_log(self) -> list[tuple[int, str]]:
        """Messages since the last call: level of `logging`, text."""
