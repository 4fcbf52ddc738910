"""The loads behind inrush.transformers, without a model: files that change, and loads that cannot begin."""
import os
import types

import inrush
import pytest
import torch
from conftest import random_tensor, write_file
from inrush.transformers import _background, _session, _sources


def test_a_shard_that_is_replaced_between_its_header_and_the_load(tmp_path, monkeypatch):
    """Same names and sizes in another order: the old offsets would bring other tensors."""
    tensors = {name: random_tensor("F32", [4, 4], seed=ord(name)) for name in "abcd"}
    files = [
        write_file(tmp_path / "1.safetensors", {name: tensors[name] for name in "ab"}),
        write_file(tmp_path / "2.safetensors", {name: tensors[name] for name in "cd"}),
    ]
    names = [str(file) for file in files]
    checkpoint = _sources.open_source(names)
    assert {name: bytes(array.tobytes()) for name, array in inrush.load(checkpoint).items()} == {
        name: data for name, (_, _, data) in tensors.items()
    }
    describe = _sources._inrush.describe_checkpoint

    def replace_first(*arguments):
        os.unlink(files[1])
        write_file(files[1], {name: tensors[name] for name in "dc"})
        return describe(*arguments)

    monkeypatch.setattr(_sources._inrush, "describe_checkpoint", replace_first)
    with pytest.raises(inrush.Error, match=r"2\.safetensors") as caught:
        _sources.open_source(names)
    assert caught.value.code == "corrupt_checkpoint"


class Group:
    """As _session._Group, with a load that notes when it is closed."""

    def __init__(self, device, closed, error=None):
        self.device = torch.device(device)
        self.load = None
        self._closed = closed
        self._error = error

    def begin(self, checkpoint, options):
        if self._error is not None:
            raise self._error
        self.load = types.SimpleNamespace(close=lambda: self._closed.append(str(self.device)))


def test_a_load_that_cannot_begin_leaves_no_other_running():
    closed = []
    session = object.__new__(_session.Session)
    session._checkpoint, session._options, session._deadline = None, _background.Options(), None
    session._groups, session._files = [], {}
    with pytest.raises(MemoryError):
        session._chain([Group("cpu", closed), Group("meta", closed, MemoryError("it is full"))])
    session.close()
    assert closed == ["cpu"]
