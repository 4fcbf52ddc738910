"""The plug-in in the real SGLang, as far as that goes without its dependencies: hooks, choice of a loader,
preparation of files."""
import pickle

import inrush
import pytest
from conftest import random_tensor, write_folder
from framework_stubs import bytes_in, bytes_of

TENSORS = {f"layers.{i}.weight": random_tensor("BF16", [16, 8], seed=i) for i in range(12)}


@pytest.fixture(scope="module", name="get_model_loader")
def get_model_loader_fixture():
    """As modules of SGLang see it after its plug-ins were loaded, in a process that has a configuration."""
    from sglang.srt import runtime_context
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.model_loader import get_model_loader

    with runtime_context.get_context().override_server_args():
        yield get_model_loader


def load_config(extra, **changes):
    from sglang.srt.configs.load_config import LoadConfig

    return LoadConfig(model_loader_extra_config=extra, **changes)


def test_our_loader_where_it_is_asked_for(get_model_loader):
    from inrush.frameworks.sglang import Loader

    for extra in ({"inrush": True}, '{"inrush": {"window_bytes": 4096}}'):
        assert type(get_model_loader(load_config(extra))) is Loader
    assert type(get_model_loader(load_config({}, load_format=Loader))) is Loader


def test_sglangs_own_otherwise(get_model_loader):
    assert type(get_model_loader(load_config({"num_threads": 2}))).__name__ == "DefaultModelLoader"
    assert type(get_model_loader(load_config({"inrush": False}))).__name__ == "DefaultModelLoader"
    dummy = get_model_loader(load_config({"inrush": True}, load_format="dummy"))
    assert type(dummy).__name__ == "DummyModelLoader"


def test_the_class_gets_through_the_arguments_of_a_server(get_model_loader):
    from inrush.frameworks.sglang import Loader
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(model_path="dummy", load_format=Loader)
    arguments.resolve_once()
    assert pickle.loads(pickle.dumps(arguments)).load_format is Loader  # as its processes get them


def test_an_unknown_option_is_refused(get_model_loader):
    with pytest.raises(inrush.Error, match="Inrush has no option 'windw'"):
        get_model_loader(load_config({"inrush": {"windw": 1}}))


def weights(loader, folder):
    return bytes_of(loader._get_weights_iterator(loader.Source(str(folder), None)))


@pytest.mark.parametrize("shards", [1, 3])
def test_the_same_as_sglangs_reader(get_model_loader, tmp_path, shards):
    folder = write_folder(tmp_path / "model", TENSORS, shards)
    ours = weights(get_model_loader(load_config({"inrush": True})), folder)
    assert ours == weights(get_model_loader(load_config({})), folder)
    assert ours == bytes_in(TENSORS)


def test_the_same_draft_layers(get_model_loader, tmp_path):
    layers = {f"model.mtp.layers.{i}.weight": random_tensor("F32", [4], seed=i) for i in range(3)}
    folder = write_folder(tmp_path / "model", TENSORS | layers, 2)
    ours, theirs = (
        weights(get_model_loader(load_config(extra, draft_model_idx=1)), folder)
        for extra in ({"inrush": True}, {})
    )
    assert ours == theirs
    assert ours == bytes_in(TENSORS) | {"model.mtp.layers.0.weight": layers["model.mtp.layers.1.weight"][2]}


def test_a_damaged_shard(get_model_loader, tmp_path):
    folder = write_folder(tmp_path / "model", TENSORS, 3)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(inrush.Error, match=shard.name):
        weights(get_model_loader(load_config({"inrush": True})), folder)
