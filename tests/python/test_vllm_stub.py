"""The vLLM plug-in against tests/python/stubs/vllm; tests/vllm has the real one."""
import json
import logging
import sys
import types

import inrush
import pytest
import torch
from conftest import random_tensor, write_checkpoint, write_file
from framework_stubs import bytes_in, bytes_of, stubs_on_path

TENSORS = {f"layers.{i}.weight": random_tensor("BF16", [16, 8], seed=i) for i in range(6)}
EXPERTS = {f"layers.0.experts.{i}.{part}": random_tensor("F32", [4, 4], seed=i)
           for i in range(4) for part in ("weight", "scale")}


@pytest.fixture(name="plugin", autouse=True)
def plugin_fixture():
    """The plug-in as a process of vLLM has it: not registered yet."""
    with stubs_on_path("vllm", "inrush.frameworks.vllm", "inrush.frameworks._vllm_loader"):
        from inrush.frameworks import vllm

        yield vllm


@pytest.fixture(name="registered")
def registered_fixture():
    from vllm.model_executor import model_loader

    return model_loader.registered


def load_config(extra=None, **changes):
    values = {"load_format": "inrush", "model_loader_extra_config": extra or {}, "device": None,
              "safetensors_load_strategy": None, "use_tqdm_on_load": False} | changes
    return types.SimpleNamespace(**values)


def make_loader(extra=None, **changes):
    from inrush.frameworks import _vllm_loader

    return _vllm_loader.Loader(load_config(extra, **changes))


def source(folder, **changes):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    return DefaultModelLoader.Source(str(folder), None, **changes)


def weights(loader, folder, **changes):
    return bytes_of(loader._get_weights_iterator(source(folder, **changes)))


# Registering

def test_register(plugin, registered):
    plugin.register()
    plugin.register()  # the stub refuses to register a format twice
    from inrush.frameworks import _vllm_loader

    assert registered == {"inrush": _vllm_loader.Loader}


def test_the_module_imports_neither_torch_nor_vllm(run_python):
    run_python("""
        import sys
        import inrush.frameworks.vllm
        import inrush.frameworks.sglang
        assert not {"torch", "vllm", "sglang"} & set(sys.modules)
    """).check()


def test_a_vllm_whose_loader_is_another(plugin, registered, monkeypatch):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    monkeypatch.setattr(DefaultModelLoader, "_prepare_weights", lambda self, model_name_or_path: None)
    plugin.register()
    message = "vLLM 0.32.0: .*_prepare_weights takes .*tried with 0.32"
    with pytest.raises(inrush.Error, match=message) as caught:
        registered["inrush"](load_config())
    assert caught.value.code == "environment_unfit"


def test_a_vllm_without_a_method_that_is_needed(plugin, registered, monkeypatch):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    monkeypatch.delattr(DefaultModelLoader, "_prepare_weights")
    plugin.register()
    with pytest.raises(inrush.Error, match=r"vLLM 0.32.0: DefaultModelLoader has no _prepare_weights\(\)"):
        registered["inrush"](load_config())


def test_a_vllm_without_a_module_that_is_needed(plugin, registered, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader.ep_weight_filter", None)
    plugin.register()
    with pytest.raises(inrush.Error, match="vLLM 0.32.0: .*ep_weight_filter"):
        registered["inrush"](load_config())


def test_a_vllm_without_a_registry(plugin, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader", types.ModuleType("empty"))
    with caplog.at_level(logging.WARNING, logger="inrush"):
        plugin.register()
    assert "vLLM 0.32.0 has no place for the load format 'inrush'" in caplog.text


# Options

def test_options_are_taken_from_a_copy():
    config = load_config({"window_bytes": 4096, "enable_weights_track": False})
    from inrush.frameworks import _vllm_loader

    loader = _vllm_loader.Loader(config)
    assert config.load_format == "inrush"
    assert config.model_loader_extra_config == {"window_bytes": 4096, "enable_weights_track": False}
    assert loader.load_config.load_format == "auto"
    assert loader.load_config.model_loader_extra_config == {"enable_weights_track": False}


@pytest.mark.parametrize("extra", [{"num_threads": 4}, {"enable_multithread_load": True}, {"windw_bytes": 1}])
def test_an_option_that_nobody_reads_is_refused(extra):
    with pytest.raises(ValueError, match=rf"{next(iter(extra))!r}; there are device.*enable_weights_track"):
        make_loader(extra)


def test_extra_config_that_is_no_object_is_refused():
    with pytest.raises(ValueError, match="say a JSON object"):
        make_loader(model_loader_extra_config="window_bytes")


@pytest.mark.parametrize("strategy", ["eager", "prefetch"])
def test_a_strategy_of_vllms_reader_is_refused(strategy):
    with pytest.raises(ValueError, match=f"--safetensors-load-strategy={strategy}"):
        make_loader(safetensors_load_strategy=strategy)
    make_loader(safetensors_load_strategy="lazy")


def test_options_reach_the_load(make_checkpoint, monkeypatch):
    folder = make_checkpoint("model", TENSORS, shards=2)
    real, seen = inrush.torch.stream, {}

    def spy(checkpoint, device, **options):
        seen.update(options, device=device)
        return real(checkpoint, device, **options)

    monkeypatch.setattr(inrush.torch, "stream", spy)
    extra = {"window_bytes": 4096, "timeout": 60, "page_cache": "keep", "transfer": "staged"}
    assert weights(make_loader(extra), folder) == bytes_in(TENSORS)
    assert {key: seen[key] for key in extra} == extra
    assert seen["device"] == "cpu"


# What is loaded

@pytest.mark.parametrize("shards", [0, 1, 3])
def test_a_model(make_checkpoint, tmp_path, shards):
    folder = make_checkpoint("model" if shards else "model.safetensors", TENSORS, shards=shards)
    loader = make_loader()
    assert weights(loader, folder if shards else tmp_path) == bytes_in(TENSORS)
    assert loader.counter_before_loading_weights > 0


def test_secondary_weights(make_checkpoint, tmp_path):
    write_checkpoint(tmp_path / "model", TENSORS, shards=2)
    (tmp_path / "vision" / "encoder").mkdir(parents=True)
    vision = {"proj.weight": random_tensor("F32", [4])}
    write_file(tmp_path / "vision" / "encoder" / "model.safetensors", vision)
    more = source(tmp_path / "vision", subfolder="encoder", prefix="vision.")
    model = types.SimpleNamespace(secondary_weights=[more])
    config = types.SimpleNamespace(model=str(tmp_path / "model"), revision=None)
    loaded = bytes_of(make_loader().get_all_weights(config, model))
    assert loaded == bytes_in(TENSORS) | {"vision.proj.weight": vision["proj.weight"][2]}


def test_patterns_of_the_model_count_more_than_the_index(make_checkpoint):
    folder = make_checkpoint("model", TENSORS, shards=2)
    only = {name: random_tensor("F32", [4], seed="other") for name in ("adapter.weight", "layers.0.weight")}
    write_file(folder / "adapter.safetensors", only)
    assert weights(make_loader(), folder, allow_patterns_overrides=["adapter*"]) == bytes_in(only)


def test_experts_of_other_ranks_are_left_out(make_checkpoint):
    folder = make_checkpoint("model", TENSORS | EXPERTS, shards=3)
    loader = make_loader()
    loader.local_expert_ids = {1, 2}
    expected = {name for name in EXPERTS if name.endswith("scale") or ".1." in name or ".2." in name}
    assert set(weights(loader, folder)) == set(TENSORS) | expected


def test_tensors_that_the_model_skips_are_left_out(make_checkpoint):
    folder = make_checkpoint("model", TENSORS, shards=2)
    loaded = weights(make_loader(), folder, is_unused_weight=lambda name: ".3." not in name)
    assert set(loaded) == {"layers.3.weight"}


def test_a_model_that_would_skip_all_skips_by_itself(make_checkpoint):
    folder = make_checkpoint("model", TENSORS, shards=2)
    assert weights(make_loader(), folder, is_unused_weight=lambda name: True) == bytes_in(TENSORS)


def test_files_of_the_language_model_are_left_out(make_checkpoint):
    folder = make_checkpoint("model", TENSORS, shards=3)
    loader = make_loader()
    loader._encoder_only_lm_prefixes = ("00001-of", "00003-of")
    assert set(weights(loader, folder)) == set(list(TENSORS)[1::3])
    loader._encoder_only_lm_prefixes = ("model-",)
    with pytest.raises(ValueError, match="--mm-encoder-only leaves none of its 3 files"):
        weights(loader, folder)


def test_other_files_are_left_to_vllm(tmp_path, caplog):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with caplog.at_level(logging.WARNING, logger="inrush"):
        assert dict(make_loader()._get_weights_iterator(source(tmp_path))) == {"read by the stub": None}
    assert "it is not in safetensors files" in caplog.text


def test_torchao_is_left_to_vllm(make_checkpoint, caplog):
    folder = make_checkpoint("model", TENSORS, shards=2)
    loader = make_loader()
    loader.load_config.safetensors_load_strategy = "torchao"  # as its load_weights() does
    with caplog.at_level(logging.WARNING, logger="inrush"):
        assert dict(loader._get_weights_iterator(source(folder))) == {"read by the stub": None}
    assert "torchao" in caplog.text


def test_a_damaged_shard(make_checkpoint):
    folder = make_checkpoint("model", TENSORS, shards=3)
    damaged = sorted(folder.glob("*.safetensors"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(inrush.Error, match=damaged.name) as caught:
        weights(make_loader(), folder)
    assert caught.value.code == "corrupt_checkpoint"


# Device and progress

@pytest.mark.parametrize(("option", "configured", "platform", "expected"), [
    ("auto", None, "cuda", "cuda"), ("auto", "cuda:1", "cuda", "cuda:1"), ("auto", "cpu", "cuda", "cpu"),
    ("auto", None, "cpu", "cpu"), ("auto", None, "xpu", "cpu"), ("cpu", None, "cuda", "cpu"),
])
def test_the_device(monkeypatch, option, configured, platform, expected):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    from inrush.frameworks import _vllm_loader

    monkeypatch.setattr(_vllm_loader, "current_platform", types.SimpleNamespace(device_type=platform))
    assert make_loader({"device": option}, device=configured)._device() == expected


@pytest.mark.parametrize("wanted", [True, False])
def test_progress(make_checkpoint, capsys, wanted):
    folder = make_checkpoint("model", TENSORS, shards=2)
    weights(make_loader(use_tqdm_on_load=wanted), folder)
    shown = capsys.readouterr().err
    # The bar knows its bytes from the headers: 6 tensors of 256.
    assert ("Loading safetensors by Inrush: 100% of 1.54k" in shown) == wanted
    assert wanted or not shown


# The early start

SERVE = ["/usr/bin/vllm", "serve", "/models/x", "--load-format"]


@pytest.mark.parametrize(("arguments", "expected"), [
    ([*SERVE, "inrush"], "/models/x"), ([*SERVE, "INRUSH"], "/models/x"), ([*SERVE, "auto"], None),
    (SERVE, None), (["vllm", "serve", "/models/x"], None),
    (["api_server.py", "--model", "/models/x", "--load_format=inrush"], "/models/x"),
    (["api_server.py", "--model=/models/x", "--load-format=inrush"], "/models/x"),
    ([*SERVE, "inrush", "--model-loader-extra-config", json.dumps({"warm": False})], None),
    ([*SERVE, "inrush", "--model-loader-extra-config", json.dumps({"window_bytes": 1})], "/models/x"),
    ([*SERVE, "inrush", "--model-loader-extra-config", json.dumps({"page_cache": "bypass"})], None),
    ([*SERVE, "inrush", "--model-loader-extra-config.warm", "false"], None),
    ([*SERVE, "inrush", "--model-loader-extra-config", "{"], None),
    ([*SERVE, "inrush", "--model-loader-extra-config", "[]"], None),
])
def test_the_model_of_a_command_line(plugin, arguments, expected):
    assert plugin.model_to_warm(arguments) == expected


def test_register_warms(plugin, tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(inrush, "warm", lambda path, *, background: folders.append(path))
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", str(tmp_path), "--load-format", "inrush"])
    plugin.register()
    plugin.register()
    assert folders == [str(tmp_path)]
