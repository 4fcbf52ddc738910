"""The SGLang plug-in against tests/python/stubs/sglang; tests/vllm has the real one."""
import json
import logging
import sys
import types

import inrush
import pytest
import torch
from conftest import random_tensor, write_file
from framework_stubs import bytes_in, bytes_of, raw, stubs_on_path

TENSORS = {f"layers.{i}.weight": random_tensor("BF16", [16, 8], seed=i) for i in range(6)}
OURS = {"inrush": True}
CPU = types.SimpleNamespace(device="cpu")


@pytest.fixture(name="plugin", autouse=True)
def plugin_fixture():
    """The plug-in as a process of SGLang has it: not registered yet."""
    with stubs_on_path("sglang", "inrush.frameworks.sglang", "inrush.frameworks._sglang_loader"):
        from inrush.frameworks import sglang

        yield sglang


@pytest.fixture(name="get_model_loader")
def get_model_loader_fixture(plugin):
    """SGLang's own, once the plug-ins are there."""
    from sglang.srt.model_loader import loader
    from sglang.srt.plugins.hook_registry import HookRegistry

    plugin.register()
    plugin.register()
    assert len(HookRegistry.hooks) == 1
    HookRegistry.apply_hooks()
    return lambda config, **more: loader.get_model_loader(load_config=config, **more)


def load_config(extra=None, **changes):
    from sglang.srt.configs.load_config import LoadConfig

    return LoadConfig(model_loader_extra_config=extra or {}, **changes)


def load(loader, folder, **changes):
    config = types.SimpleNamespace(model_path=str(folder), hf_config=None, **changes)
    loaded = loader.load_model(model_config=config, device_config=CPU)
    return {name: raw(tensor) for name, tensor in loaded.items()}


# Which loader

@pytest.mark.parametrize("asked", [True, {}, {"window_bytes": 4096}])
def test_our_loader_where_it_is_asked_for(plugin, get_model_loader, asked):
    assert type(get_model_loader(load_config({"inrush": asked}))) is plugin.Loader


def test_the_extra_config_of_a_command_line_is_a_text(plugin, get_model_loader):
    assert type(get_model_loader(load_config(json.dumps(OURS)))) is plugin.Loader


def test_the_configuration_is_left_as_it_is(get_model_loader):
    config = load_config(OURS)
    get_model_loader(config)
    assert config.model_loader_extra_config == OURS
    assert config.load_format == "auto"


@pytest.mark.parametrize("extra", [{}, {"num_threads": 2}, {"inrush": False}, None])
def test_sglangs_own_loader_otherwise(get_model_loader, extra):
    loader = get_model_loader(load_config(extra))
    assert type(loader).__name__ == "DefaultModelLoader"


def test_another_loader_stays_and_it_is_said(get_model_loader, caplog):
    with caplog.at_level(logging.WARNING, logger="inrush"):
        loader = get_model_loader(load_config(OURS, load_format="dummy"))
    assert type(loader).__name__ == "DummyModelLoader"
    assert "DummyModelLoader" in caplog.text
    assert "has no effect" in caplog.text


def test_the_class_as_a_load_format(plugin, make_checkpoint, get_model_loader):
    folder = make_checkpoint("model", TENSORS, shards=2)
    loader = get_model_loader(load_config(load_format=plugin.Loader))
    assert type(loader) is plugin.Loader
    assert load(loader, folder) == bytes_in(TENSORS)


def test_the_module_has_nothing_else(plugin):
    with pytest.raises(AttributeError, match="no attribute 'Loaders'"):
        plugin.Loaders  # noqa: B018


@pytest.mark.parametrize(("extra", "message"), [
    ({"inrush": {"windw": 1}}, "'windw'; there are device, window_bytes"),
    ({"inrush": {"timeout": -1}}, "timeout is -1; say seconds"),
    ({"inrush": "yes"}, "is 'yes'; say true, or an object of options"),
    ({"inrush": 1}, "is 1; say true"),
    ({"inrush": True, "num_threads": 2}, "num_threads is for SGLang's own reader"),
])
def test_options_that_are_refused(get_model_loader, extra, message):
    with pytest.raises(ValueError, match=message):
        get_model_loader(load_config(extra))


def test_an_sglang_whose_loader_is_another(plugin, monkeypatch):
    from sglang.srt.model_loader.loader import DefaultModelLoader

    monkeypatch.setattr(DefaultModelLoader, "_prepare_weights", lambda self, path: None)
    with pytest.raises(inrush.Error, match="_prepare_weights takes .*tried with 0.5.23") as caught:
        plugin.Loader(load_config(OURS))
    assert caught.value.code == "environment_unfit"
    monkeypatch.delattr(DefaultModelLoader, "_prepare_weights")
    with pytest.raises(inrush.Error, match=r"has no _prepare_weights\(\).*tried with 0.5.23"):
        plugin.Loader(load_config(OURS))


# What is loaded

@pytest.mark.parametrize("shards", [0, 1, 3])
def test_a_model(get_model_loader, make_checkpoint, tmp_path, shards):
    folder = make_checkpoint("model" if shards else "model.safetensors", TENSORS, shards=shards)
    loader = get_model_loader(load_config(OURS))
    assert load(loader, folder if shards else tmp_path) == bytes_in(TENSORS)
    assert loader.counter_before_loading_weights > 0


def test_a_file_that_sglang_adds(get_model_loader, make_checkpoint):
    folder = make_checkpoint("model", TENSORS, shards=2)
    extra = {"mtp.weight": random_tensor("F32", [4])}
    write_file(folder / "mtp.safetensors", extra)
    assert load(get_model_loader(load_config(OURS)), folder) == bytes_in(TENSORS | extra)


def test_a_draft_model_gets_its_layer(get_model_loader, make_checkpoint):
    layers = {f"model.mtp.layers.{i}.weight": random_tensor("F32", [4], seed=i) for i in range(3)}
    folder = make_checkpoint("model", TENSORS | layers, shards=2)
    loader = get_model_loader(load_config(OURS, draft_model_idx=2))
    expected = bytes_in(TENSORS) | {"model.mtp.layers.0.weight": layers["model.mtp.layers.2.weight"][2]}
    assert load(loader, folder) == expected


def test_files_that_sglang_resolved_before(get_model_loader, make_checkpoint):
    folder = make_checkpoint("model", TENSORS, shards=3)
    loader = get_model_loader(load_config(OURS))
    source = loader.Source("/absent", None, prefix="p.")
    resolved = loader.ResolvedSource(source, str(folder), tuple(map(str, folder.glob("*.safetensors"))), True)
    loaded = bytes_of(loader._get_weights_iterator(
        source, resolved_source=resolved, startup_prefetch_started=True, startup_prefetch_active=True))
    assert loaded == {f"p.{name}": data for name, data in bytes_in(TENSORS).items()}


def test_other_files_are_left_to_sglang(get_model_loader, tmp_path, caplog):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    loader = get_model_loader(load_config(OURS))
    with caplog.at_level(logging.WARNING, logger="inrush"):
        loaded = dict(loader._get_weights_iterator(loader.Source(str(tmp_path), None)))
    assert loaded == {"read by the stub": None}
    assert "it is not in safetensors files" in caplog.text


def test_options_reach_the_load(get_model_loader, make_checkpoint, monkeypatch):
    folder = make_checkpoint("model", TENSORS, shards=2)
    real, seen = inrush.torch.stream, {}

    def spy(checkpoint, device, **options):
        seen.update(options, device=device)
        return real(checkpoint, "cpu", **options)

    monkeypatch.setattr(inrush.torch, "stream", spy)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    options = {"window_bytes": 4096, "timeout": 60, "page_cache": "keep", "transfer": "staged"}
    loader = get_model_loader(load_config({"inrush": options}))
    config = types.SimpleNamespace(model_path=str(folder), hf_config=None)
    loader.load_model(model_config=config, device_config=types.SimpleNamespace(device="cuda"))
    assert {key: seen[key] for key in options} == options
    assert seen["device"] == "cuda"
    loader = get_model_loader(load_config({"inrush": {"device": "cpu"}}))
    loader.load_model(model_config=config, device_config=types.SimpleNamespace(device="cuda"))
    assert seen["device"] == "cpu"


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_progress_of_the_first_rank(get_model_loader, make_checkpoint, capsys, monkeypatch, rank):
    folder = make_checkpoint("model", TENSORS, shards=2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: rank is not None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    load(get_model_loader(load_config(OURS)), folder)
    shown = "Loading safetensors by Inrush: 100% of 1.54k" in capsys.readouterr().err
    assert shown == (rank != 1)


# The early start

SERVE = ["launch_server.py", "--model-path", "/models/x"]


@pytest.mark.parametrize(("arguments", "expected"), [
    ([*SERVE, "--model-loader-extra-config", '{"inrush": true}'], "/models/x"),
    ([*SERVE, '--model-loader-extra-config={"inrush": {"window_bytes": 1}}'], "/models/x"),
    (["x", "--model", "/m", "--model-loader-extra-config", '{"inrush": {}}'], "/m"),
    ([*SERVE, "--model-loader-extra-config", '{"inrush": {"warm": false}}'], None),
    ([*SERVE, "--model-loader-extra-config", '{"inrush": {"page_cache": "bypass"}}'], None),
    ([*SERVE, "--model-loader-extra-config", '{"inrush": false}'], None),
    ([*SERVE, "--model-loader-extra-config", '{"other": true}'], None),
    ([*SERVE, "--model-loader-extra-config", "{"], None), (SERVE, None),
])
def test_the_model_of_a_command_line(plugin, arguments, expected):
    assert plugin.model_to_warm(arguments) == expected


def test_register_warms(plugin, tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(inrush, "warm", lambda path, *, background: folders.append(path))
    monkeypatch.setattr(sys, "argv", ["x", "--model-path", str(tmp_path),
                                      "--model-loader-extra-config", '{"inrush": true}'])
    plugin.register()
    plugin.register()
    assert folders == [str(tmp_path)]
