"""Inrush brings the weights of a checkpoint from storage into GPU memory as fast as the hardware allows.

    tensors = inrush.load("/models/llama")                          # NumPy arrays
    weights = inrush.torch.load("/models/llama", device="cuda:0")   # torch tensors
    print(tensors.report)

Importing it starts no thread and touches no GPU. `inrush.torch`, `inrush.safetensors`, `inrush.transformers`
and `inrush.dcp` are imported, and what they are for with them, when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inrush._errors import Error
from inrush._inrush import Checkpoint, CheckpointFile, Loader, Report, Tensor, TensorInfo, __version__
from inrush._load import Tensors, load, open
from inrush._loaders import release
from inrush._shards import ShardSpec, Slice
from inrush._warm import Warming, WarmReport, warm

if TYPE_CHECKING:
    from inrush import dcp as dcp
    from inrush import safetensors as safetensors
    from inrush import torch as torch
    from inrush import transformers as transformers

__all__ = [
    "Checkpoint", "CheckpointFile", "Error", "Loader", "Report", "ShardSpec", "Slice", "Tensor", "TensorInfo",
    "Tensors", "WarmReport", "Warming", "__version__", "dcp", "load", "open", "release", "safetensors",
    "torch", "transformers", "warm",
]  # fmt: skip


_INTEGRATIONS = ("dcp", "safetensors", "torch", "transformers")


def __getattr__(name: str) -> Any:
    if name in _INTEGRATIONS:
        import importlib

        return importlib.import_module(f"inrush.{name}")
    raise AttributeError(f"module 'inrush' has no attribute {name!r}")
