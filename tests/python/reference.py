"""The package safetensors and what stands in for it, and when their tensors are the same."""

import inrush.safetensors.torch
import safetensors.torch
import torch

# Held by a dict and not by globals, where inrush.safetensors.patch() would find them.
_NAMES = ("safe_open", "load_file", "load", "load_model")
REFERENCE = {name: getattr(safetensors.torch, name) for name in _NAMES}
OURS = {name: getattr(inrush.safetensors.torch, name) for name in _NAMES}


def bytes_of(tensor):
    """The elements of a torch tensor as bytes, whatever their type."""
    if tensor.numel() == 0:
        return b""
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return bytes(flat.view(torch.uint8).numpy())


def same(ours, theirs):
    """Asserts that two arrays or tensors have one type, shape and content."""
    assert (ours.dtype, tuple(ours.shape)) == (theirs.dtype, tuple(theirs.shape))
    if isinstance(theirs, torch.Tensor):
        assert ours.device == theirs.device
        assert bytes_of(ours) == bytes_of(theirs)
    else:
        assert ours.tobytes() == theirs.tobytes()
