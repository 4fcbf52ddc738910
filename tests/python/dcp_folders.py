"""Checkpoints of torch.distributed.checkpoint, and what the tests of inrush.dcp ask of them."""
import itertools
import math
import pickle

import inrush
import inrush.dcp
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo


def random_values(dtype, shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape) * dtype.itemsize
    end = 2 if dtype == torch.bool else 256
    data = torch.randint(0, end, (count,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).view(shape)


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def empty_like(state):
    """The same names, shapes and types, of other values."""
    return {
        name: empty_like(value) if isinstance(value, dict)
        else torch.full(value.shape, 7, dtype=torch.uint8).to(value.dtype) if isinstance(value, torch.Tensor)
        else None
        for name, value in state.items()
    }


def assert_equal(left, right):
    assert list(left) == list(right)
    for name, value in left.items():
        if isinstance(value, dict):
            assert_equal(value, right[name])
        elif isinstance(value, torch.Tensor):
            assert (value.dtype, value.shape) == (right[name].dtype, right[name].shape), name
            assert raw(value) == raw(right[name]), name
        else:
            assert value == right[name], name


def load(folder, state, **options):
    dcp.load(state, storage_reader=inrush.dcp.Reader(folder, **options))
    return state


def refused(code, words, folder, state, **options):
    """What the reader says, and that it reaches the user of dcp.load."""
    with pytest.raises(CheckpointException) as caught:
        load(folder, state, **options)
    [(error, _)] = caught.value.failures.values()
    assert isinstance(error, inrush.Error) and error.code == code, error
    assert words in str(error) and words in str(caught.value)
    return str(error)


class Attack:
    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def first_value(mapping):
    return next(iter(mapping.values()))


def change_item(folder, **fields):
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for name, value in fields.items():
        setattr(first_value(metadata.storage_data), name, value)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def grid(shape, counts):
    """The chunks that cut an array into so many parts along each dimension."""
    edges = [sorted({extent * i // count for i in range(count + 1)}) for extent, count in zip(shape, counts)]
    for corner in itertools.product(*(list(itertools.pairwise(edge)) for edge in edges)):
        yield dcp_metadata.ChunkStorageMetadata(
            torch.Size(a for a, _ in corner), torch.Size(b - a for a, b in corner))


def write_dcp(folder, tensors):
    """A folder as DCP writes it. tensors: name -> (tensor, chunks)."""
    folder.mkdir(exist_ok=True)
    state, storage, offset = {}, {}, 0
    with open(folder / "__0_0.distcp", "wb") as file:
        for name, (tensor, chunks) in tensors.items():
            state[name] = dcp_metadata.TensorStorageMetadata(
                dcp_metadata.TensorProperties(dtype=tensor.dtype), tensor.size(), list(chunks))
            for i, chunk in enumerate(state[name].chunks):
                part = tensor
                for dimension, (start, length) in enumerate(zip(chunk.offsets, chunk.sizes)):
                    part = part.narrow(dimension, start, length)
                torch.save(part.clone(memory_format=torch.contiguous_format), file)
                index = dcp_metadata.MetadataIndex(name, chunk.offsets, i)
                storage[index] = _StorageInfo("__0_0.distcp", offset, file.tell() - offset)
                offset = file.tell()
    metadata = dcp_metadata.Metadata(state, storage_data=storage)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder
