"""The copier for fastsafetensors, with the real package."""
import gc
import types

import inrush
import pytest
import torch
from conftest import random_tensor, write_checkpoint, write_file
from fastsafetensors import SingleGroup
from fastsafetensors.copier import create_copier_constructor
from fastsafetensors.copier.registry import get_copier_class
from fastsafetensors.loader import BaseSafeTensorsFileLoader
from fastsafetensors.parallel_loader import PipelineParallel
from fastsafetensors.st_types import Device
from framework_stubs import bytes_in, raw
from inrush.frameworks import fastsafetensors as plugin

CPU = Device.from_str("cpu")
TENSORS = {f"layers.{i}.weight": random_tensor("BF16", [64, 32], seed=i) for i in range(8)} | {
    "empty": random_tensor("F32", [0, 4]), "scalar": random_tensor("F32", []),
    "bytes": random_tensor("U8", [7]), "fp8": random_tensor("F8_E4M3", [5, 3]),
}


@pytest.fixture(autouse=True)
def registered():
    plugin.register()
    plugin.register()


@pytest.fixture(name="loader")
def loader_fixture():
    loader = BaseSafeTensorsFileLoader(SingleGroup(), CPU, plugin.COPIER)
    yield loader
    loader.close()


def files_of(path):
    return sorted(map(str, path.glob("*.safetensors")))


def test_register():
    assert get_copier_class("inrush") is plugin.Copier
    assert create_copier_constructor("inrush", CPU) is not None


def test_it_loads_where_the_package_allocates(monkeypatch):
    """On torch's current device, also for a loader for "cuda"; another number would be another GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    metadata = types.SimpleNamespace(header_length=8)
    for spelling in ("cuda", "cuda:1"):
        assert plugin.Copier(metadata, Device.from_str(spelling), None)._engine_device() == "cuda:1"
    with pytest.raises(inrush.Error, match=r"current device, cuda:1, .*cuda:0: call torch.cuda.set_device"):
        plugin.Copier(metadata, Device.from_str("cuda:0"), None)._engine_device()


@pytest.mark.parametrize("shards", [1, 3])
def test_every_byte(make_checkpoint, loader, shards):
    folder = make_checkpoint("model", TENSORS, shards=shards)
    loader.add_filenames({0: files_of(folder)})
    buffers = loader.copy_files_to_device()
    kept = {name: buffers.get_tensor(name) for name in loader.get_keys()}
    buffers.close()
    gc.collect()
    assert {name: raw(tensor) for name, tensor in kept.items()} == bytes_in(TENSORS)
    for name, (_, shape, _) in TENSORS.items():
        assert list(kept[name].shape) == shape


def test_conversion_on_the_way(make_checkpoint, loader):
    from fastsafetensors.st_types import DType

    folder = make_checkpoint("model", {"a": random_tensor("F32", [4, 4])}, shards=1)
    loader.add_filenames({0: files_of(folder)})
    converted = loader.copy_files_to_device(dtype=DType.F16).get_tensor("a")
    expected = inrush.torch.load(folder)["a"].to(torch.float16)
    assert raw(converted) == raw(expected)


def test_a_filter_reads_what_it_leaves(make_checkpoint, loader, monkeypatch):
    folder = make_checkpoint("model", TENSORS, shards=2)
    seen = spy_on_targets(monkeypatch)
    loader.set_tensor_filter(lambda name: name in ("layers.3.weight", "layers.4.weight"))
    loader.add_filenames({0: files_of(folder)})
    buffers = loader.copy_files_to_device()
    assert {name: raw(buffers.get_tensor(name)) for name in loader.get_keys()} == {
        name: TENSORS[name][2] for name in ("layers.3.weight", "layers.4.weight")
    }
    assert sum(seen) < sum(len(data) for data in bytes_in(TENSORS).values()) / 2


def spy_on_targets(monkeypatch):
    """Bytes that each load was asked for."""
    seen = []
    real = plugin.Copier._targets

    def spy(self, address):
        targets = real(self, address)
        seen.extend(nbytes for _, nbytes in targets.values())
        return targets

    monkeypatch.setattr(plugin.Copier, "_targets", spy)
    return seen


@pytest.mark.parametrize("chunk_bytes", [None, 8192])
def test_the_pipeline(make_checkpoint, loader, chunk_bytes):
    folder = make_checkpoint("model", TENSORS, shards=2)
    pipeline = PipelineParallel(pg=SingleGroup(), loader=loader, hf_weights_files=files_of(folder),
                                use_tqdm_on_load=False, max_batch_bytes=chunk_bytes)
    loaded = {name: raw(tensor) for name, tensor in pipeline.iterate_weights()}
    pipeline.close()
    assert loaded == bytes_in(TENSORS)


def test_a_file_without_bytes(tmp_path, loader):
    path = write_file(tmp_path / "empty.safetensors", {"a": random_tensor("F32", [0])})
    loader.add_filenames({0: [str(path)]})
    assert loader.copy_files_to_device().get_tensor("a").shape == (0,)


def test_a_file_that_is_gone(make_checkpoint, loader):
    folder = make_checkpoint("model", TENSORS, shards=1)
    (path,) = files_of(folder)
    loader.add_filenames({0: [path]})
    (folder / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00001-of-00001"):
        loader.copy_files_to_device()


def test_a_file_that_was_cut_meanwhile(make_checkpoint, loader):
    folder = make_checkpoint("model", TENSORS, shards=1)
    (path,) = files_of(folder)
    loader.add_filenames({0: [path]})
    with open(path, "r+b") as file:
        file.truncate(2000)
    with pytest.raises(inrush.Error, match="model-00001-of-00001") as caught:
        loader.copy_files_to_device()
    assert caught.value.code == "corrupt_checkpoint"


def test_ranges_outside_the_file_are_refused(tmp_path):
    path = write_checkpoint(tmp_path / "model.safetensors", TENSORS)
    loader = BaseSafeTensorsFileLoader(SingleGroup(), CPU, plugin.COPIER)
    loader.add_filenames({0: [str(path)]})
    metadata, _ = loader.meta[str(path)]
    copier = loader.copier_constructor(metadata, CPU, loader.framework)
    with pytest.raises(ValueError, match="byte_ranges"):
        copier.set_byte_ranges([(0, 1 << 40)])
