"""Checkpoints as torch tensors, in memory of torch's own.

On a GPU the memory comes from torch's caching allocator, on the caller's thread and stream, a slab of at most
256 MiB (or one large tensor) at a time; the tensors are views of it. On the CPU each tensor has a storage of
its own. docs/python.md says what that means for storages, record_stream(), torch.save() and CUDA IPC.
"""

from inrush.torch._async import AsyncTensor, AsyncTensors, load_async
from inrush.torch._load import load, stream
from inrush.torch._load_into import LoadedInto, load_into
from inrush.torch._load_pt import load_pt

__all__ = [
    "AsyncTensor", "AsyncTensors", "LoadedInto", "load", "load_async", "load_into", "load_pt", "stream",
]  # fmt: skip
