"""inrush.transformers beside the ordinary from_pretrained() of the real transformers, on the CPU: equal bit
by bit in everything; and where the bytes of a plan go, on the fake GPUs."""
import contextlib
import copy
import gc
import io
import json
import logging
import os
import re
import shutil
import sys
import threading
import types
import weakref
from pathlib import Path

import accelerate
import diffusers
import inrush
import inrush.safetensors
import inrush.transformers
import pytest
import torch
import transformers
from conftest import random_tensor, write_checkpoint
from inrush.transformers import _background, _seam, _session
from safetensors.torch import load_file, save_file
from transformers import core_model_loading, modeling_utils

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip


def llama(**words):
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 2, **words})
    )


def mixtral():
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    )


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    )


def t5():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
    )


MODELS = {
    "llama": llama,
    "tied": lambda: llama(tie_word_embeddings=True),
    "bfloat16": lambda: llama().to(torch.bfloat16),
    "mixtral": mixtral,
    "bert": bert,
    "gpt2": gpt2,
    "t5": t5,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Kind -> folder of a saved model; "sharded" is the llama in several files."""
    root = tmp_path_factory.mktemp("models")
    made = {}
    for number, (kind, make) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        made[kind] = root / kind
        make().save_pretrained(made[kind])
    made["sharded"] = root / "sharded"
    transformers.AutoModelForCausalLM.from_pretrained(made["llama"]).save_pretrained(
        made["sharded"], max_shard_size="20KB"
    )
    assert len(list(made["sharded"].glob("*.safetensors"))) >= 3
    return made


def class_of(folder):
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, name)


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def logits_of(model):
    tokens = torch.arange(1, 9).unsqueeze(0)
    words = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        output = model(input_ids=tokens, **words)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def places(model):
    """Which names share memory."""
    by_address = {}
    for name, tensor in model.state_dict().items():
        by_address.setdefault(tensor.data_ptr(), []).append(name)
    return sorted(by_address.values())


def state_of(model):
    return {name: (tensor.dtype, raw(tensor)) for name, tensor in model.state_dict().items()}


def assert_equal(ours, ordinary):
    mine, theirs = ours.state_dict(), ordinary.state_dict()
    assert list(mine) == list(theirs)
    for name, tensor in theirs.items():
        assert (mine[name].dtype, mine[name].shape) == (tensor.dtype, tensor.shape), name
        assert mine[name].device == tensor.device, name
        assert raw(mine[name]) == raw(tensor), name
    assert places(ours) == places(ordinary)
    flags = {name: parameter.requires_grad for name, parameter in ordinary.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in ours.named_parameters()} == flags
    assert ours.training is ordinary.training
    assert raw(logits_of(ours)) == raw(logits_of(ordinary))


def load_both(cls, folder, **words):
    """(ours, ordinary, what Inrush did)."""
    ordinary = cls.from_pretrained(folder, **copy.deepcopy(words))
    with inrush.transformers.patch() as loaded:
        ours = cls.from_pretrained(folder, **copy.deepcopy(words))
    return ours, ordinary, loaded[0]


# Equal to the ordinary load

@pytest.mark.parametrize("kind", [*MODELS, "sharded"])
def test_a_model(folders, kind):
    ours, ordinary, loaded = load_both(class_of(folders[kind]), folders[kind])
    assert_equal(ours, ordinary)
    assert loaded.left is None and loaded.name == str(folders[kind])
    stored = {}
    for path in folders[kind].glob("*.safetensors"):
        stored.update(load_file(path))
    assert loaded.tensor_count == len(stored)
    assert loaded.nbytes == sum(tensor.nbytes for tensor in stored.values())


@pytest.mark.parametrize("dtype", ["auto", "float16", torch.bfloat16, None])
@pytest.mark.parametrize("kind", ["sharded", "bfloat16", "mixtral", "t5"])
def test_an_element_type(folders, kind, dtype):
    ours, ordinary, loaded = load_both(class_of(folders[kind]), folders[kind], dtype=dtype)
    assert_equal(ours, ordinary)
    assert loaded.left is None


@pytest.mark.parametrize(
    "device_map", [None, "cpu", "auto", {"": "cpu"}, torch.device("cpu"), {"model": "cpu", "lm_head": "cpu"}]
)
def test_a_device_map(folders, device_map):
    ours, ordinary, loaded = load_both(
        transformers.LlamaForCausalLM, folders["sharded"], device_map=device_map
    )
    assert_equal(ours, ordinary)
    assert loaded.left is None


def test_what_goes_to_the_disk_is_left_to_transformers(folders, tmp_path, caplog):
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
                  "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    words = {"device_map": device_map, "offload_folder": tmp_path}
    with caplog.at_level(logging.WARNING, "inrush"):
        ours, ordinary, loaded = load_both(transformers.LlamaForCausalLM, folders["sharded"], **words)
    assert loaded.nbytes == 0
    assert "21 tensors were left to transformers" in caplog.text
    assert ours.model.layers[1].mlp.up_proj.weight.device.type == "meta"
    assert raw(logits_of(ours)) == raw(logits_of(ordinary))


def test_loading_info(folders):
    cls = transformers.LlamaForSequenceClassification  # lacks lm_head, has a head of its own
    torch.manual_seed(5)
    ordinary, theirs = cls.from_pretrained(folders["llama"], output_loading_info=True)
    torch.manual_seed(5)
    with inrush.transformers.patch() as loaded:
        ours, mine = cls.from_pretrained(folders["llama"], output_loading_info=True)
    assert mine == theirs and mine["missing_keys"] == {"score.weight"}
    assert loaded[0].tensor_count == len(load_file(folders["llama"] / "model.safetensors")) - 1
    assert raw(ours.score.weight) == raw(ordinary.score.weight)
    assert raw(ours.model.norm.weight) == raw(ordinary.model.norm.weight)


def test_only_what_the_model_wants_is_loaded(folders):
    """The base model: its names lack the prefix of the checkpoint's."""
    ours, ordinary, loaded = load_both(transformers.LlamaModel, folders["llama"])
    assert_equal(ours, ordinary)
    entry = inrush.open(folders["llama"])["lm_head.weight"]
    assert loaded.nbytes == inrush.open(folders["llama"]).nbytes - entry.nbytes


def test_mismatched_sizes(folders):
    words = {"vocab_size": 80, "ignore_mismatched_sizes": True, "output_loading_info": True}
    cls = transformers.LlamaForCausalLM
    _, theirs = cls.from_pretrained(folders["llama"], **words)
    _, mine = inrush.transformers.from_pretrained(cls, folders["llama"], **words)
    assert mine == theirs and len(mine["mismatched_keys"]) == 2


def test_an_auto_class_and_generation_config(folders):
    ordinary = transformers.AutoModelForCausalLM.from_pretrained(folders["llama"])
    ours = inrush.transformers.from_pretrained(transformers.AutoModelForCausalLM, folders["llama"])
    assert_equal(ours, ordinary)
    assert ours.generation_config.to_dict() == ordinary.generation_config.to_dict()
    assert ours.name_or_path == ordinary.name_or_path


def as_hub_cache(folder, cache):
    """The cache of huggingface_hub with this folder as model org/tiny. Files are links to blobs."""
    repository = cache / "models--org--tiny"
    snapshot = repository / "snapshots" / ("1" * 40)
    for path in (repository / "refs", repository / "blobs", snapshot):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.copy(path, repository / "blobs" / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")


@pytest.mark.parametrize("kind", ["llama", "sharded"])
def test_a_hugging_face_id(folders, tmp_path, kind):
    as_hub_cache(folders[kind], tmp_path)
    words = {"cache_dir": tmp_path, "local_files_only": True}
    ours, ordinary, loaded = load_both(transformers.LlamaForCausalLM, "org/tiny", **words)
    assert_equal(ours, ordinary)
    assert (loaded.left, loaded.name) == (None, "org/tiny")


def test_a_subfolder(folders, tmp_path):
    shutil.copytree(folders["sharded"], tmp_path / "a" / "b")
    ours, ordinary, loaded = load_both(transformers.LlamaForCausalLM, tmp_path / "a", subfolder="b")
    assert_equal(ours, ordinary)
    assert loaded.left is None


def test_an_index_that_does_not_tell_all(folders, tmp_path):
    """transformers takes every tensor of every file; of two of one name, that of the last file."""
    folder = shutil.copytree(folders["sharded"], tmp_path / "model")
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    unnamed = "model.norm.weight"
    del index["weight_map"][unnamed]
    index_path.write_text(json.dumps(index))
    files = sorted(folder.glob("*.safetensors"))
    twice = "model.layers.0.mlp.up_proj.weight"
    assert index["weight_map"][twice] != files[-1].name
    last = load_file(files[-1])
    save_file({**last, twice: torch.ones(48, 32)}, files[-1], {"format": "pt"})
    ours, ordinary, loaded = load_both(transformers.LlamaForCausalLM, folder)
    assert_equal(ours, ordinary)
    assert (ours.model.layers[0].mlp.up_proj.weight == 1).all()
    assert loaded.tensor_count == 21


def test_the_demo_model(source_folder, folders):
    """The real one where tools/setup.sh has put it, else the one of the same kind that is made here."""
    folder = source_folder / "build/models/all-minilm-l6-v2"
    if not (folder / "config.json").is_file():
        print(f"{folder} is not there: taking the small BERT")
        folder = folders["bert"]
    ours, ordinary, loaded = load_both(transformers.BertModel, folder, add_pooling_layer=False)
    assert_equal(ours, ordinary)
    assert loaded.left is None and loaded.tensor_count > 0


# What is handed out

def test_each_tensor_has_a_storage_of_its_own(folders):
    """save_pretrained(), FSDP and accelerate take tensors that share one for tied ones."""
    ours = inrush.transformers.from_pretrained(transformers.LlamaForCausalLM, folders["sharded"])
    addresses = set()
    for tensor in ours.state_dict().values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        addresses.add(tensor.untyped_storage().data_ptr())
    assert len(addresses) == len(ours.state_dict())


@pytest.mark.parametrize("kind", ["tied", "mixtral"])
def test_what_is_saved_again_is_what_was_there(folders, tmp_path, kind):
    ours = inrush.transformers.from_pretrained(class_of(folders[kind]), folders[kind])
    ours.save_pretrained(tmp_path)
    again, before = load_file(tmp_path / "model.safetensors"), load_file(folders[kind] / "model.safetensors")
    assert {name: raw(tensor) for name, tensor in again.items()} == {
        name: raw(tensor) for name, tensor in before.items()
    }


def test_the_model_outlives_its_files(folders, tmp_path):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    ours = inrush.transformers.from_pretrained(transformers.LlamaForCausalLM, folder)
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(100)
    assert_equal(ours, transformers.LlamaForCausalLM.from_pretrained(folders["llama"]))


def test_it_can_be_trained(folders):
    ours = inrush.transformers.from_pretrained(transformers.LlamaForCausalLM, folders["tied"])
    tokens = torch.arange(8).unsqueeze(0)
    ours(input_ids=tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


def test_in_inference_mode(folders):
    with torch.inference_mode():
        ours, ordinary, _ = load_both(transformers.MixtralForCausalLM, folders["mixtral"], dtype="float16")
        assert_equal(ours, ordinary)


# What is left to transformers

def left(folder, **words):
    ours, ordinary, loaded = load_both(transformers.LlamaForCausalLM, folder, **words)
    assert state_of(ours) == state_of(ordinary)
    assert loaded.nbytes == 0 and loaded.reports == []
    return loaded.left


def test_a_quantised_model(folders, tmp_path, caplog):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitnet", "linear_class": "autobitlinear",
                                     "quantization_mode": "online", "modules_to_not_convert": None}
    (folder / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING, "inrush"):
        assert left(folder) == "the model is quantised by bitnet"
    assert caplog.text.count("left to transformers: the model is quantised by bitnet") == 1


def test_a_model_in_another_format(folders, tmp_path):
    shutil.copy(folders["llama"] / "config.json", tmp_path)
    torch.save(load_file(folders["llama"] / "model.safetensors"), tmp_path / "pytorch_model.bin")
    assert "not in the safetensors format" in left(tmp_path)


def test_a_state_dict_of_the_caller(folders):
    state = load_file(folders["llama"] / "model.safetensors")
    config = transformers.LlamaConfig.from_pretrained(folders["llama"])
    assert "brought a state_dict" in left(None, config=config, state_dict=state)


@pytest.mark.parametrize(
    "change, words",
    [({"device_mesh": object()}, "tensor parallel"), ({"hf_quantizer": types.SimpleNamespace(
        quantization_config=types.SimpleNamespace(quant_method="odd"))}, "quantised by odd")],
)  # fmt: skip
def test_a_reason_to_leave(change, words):
    config = types.SimpleNamespace(**{"hf_quantizer": None, "device_mesh": None, **change})
    arguments = {"state_dict": None, "checkpoint_files": ["a.safetensors"], "load_config": config}
    assert words in _seam._reason_to_leave(arguments)


def test_zero3_is_a_reason_to_leave(monkeypatch):
    monkeypatch.setattr(transformers.integrations, "is_deepspeed_zero3_enabled", lambda: True)
    config = types.SimpleNamespace(hf_quantizer=None, device_mesh=None)
    arguments = {"state_dict": None, "checkpoint_files": ["a.safetensors"], "load_config": config}
    assert "ZeRO-3" in _seam._reason_to_leave(arguments)


def test_a_class_that_does_not_load_by_transformers(caplog):
    class Other:
        @classmethod
        def from_pretrained(cls, path):
            return path

    with caplog.at_level(logging.WARNING, "inrush"):
        assert inrush.transformers.from_pretrained(Other, "x") == "x"
    assert "Inrush had no part in it" in caplog.text


# The patch

def functions():
    return (
        vars(modeling_utils.PreTrainedModel)["_load_pretrained_model"].__func__,
        core_model_loading.spawn_materialize,
    )


def test_transformers_is_as_before_afterwards(folders):
    before = functions()
    with inrush.transformers.patch() as outer, inrush.transformers.patch() as inner:
        assert functions() != before
        transformers.BertModel.from_pretrained(folders["bert"])
    assert functions() == before
    assert (len(outer), len(inner)) == (0, 1)
    with pytest.raises(OSError, match="absent"):
        inrush.transformers.from_pretrained(transformers.BertModel, folders["bert"].parent / "absent")
    with pytest.raises(KeyboardInterrupt), inrush.transformers.patch():
        raise KeyboardInterrupt
    assert functions() == before


def test_a_patch_is_for_all_threads_and_a_call_for_its_own(folders, caplog):
    def in_thread():
        thread = threading.Thread(target=transformers.LlamaModel.from_pretrained, args=(folders["llama"],))
        thread.start()
        thread.join()

    class Meanwhile:
        @classmethod
        def from_pretrained(cls, path):
            in_thread()
            return transformers.LlamaModel.from_pretrained(path)

    with caplog.at_level(logging.INFO, "inrush"):
        with inrush.transformers.patch() as loaded:
            in_thread()
        assert len(loaded) == 1 and caplog.text.count("loaded 20 tensors") == 1
        in_thread()
        assert caplog.text.count("loaded 20 tensors") == 1
        inrush.transformers.from_pretrained(Meanwhile, folders["llama"])
        assert caplog.text.count("loaded 20 tensors") == 2


def test_calls_of_many_threads(folders):
    """They come and go in any order. Not the loads: transformers is not made for those."""
    before = functions()
    meeting = threading.Barrier(8)
    seen = []

    class Waits:
        @classmethod
        def from_pretrained(cls, path):
            meeting.wait()
            seen.append((functions() != before, _seam._current() is not None))

    def work():
        for _ in range(10):
            inrush.transformers.from_pretrained(Waits, "x")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(True, True)] * 80
    assert functions() == before and _seam._current() is None


@pytest.mark.parametrize("version", ["4.57.1", "5.9.3"])
def test_an_old_version(folders, monkeypatch, version):
    before = functions()
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)  # it replaces itself when used
    with pytest.raises(inrush.Error, match=rf"transformers {version} is too old.*5\.10 and later") as caught:
        inrush.transformers.from_pretrained(transformers.BertModel, folders["bert"])
    assert caught.value.code == "environment_unfit"
    assert functions() == before


def test_a_version_that_loads_in_another_way(monkeypatch):
    monkeypatch.setattr(core_model_loading, "spawn_materialize", lambda pool, slice: None)
    with pytest.raises(inrush.Error, match=r"transformers \d\S+ loads in a way .*5\.10 and later"):
        with inrush.transformers.patch():
            pass
    monkeypatch.delattr(core_model_loading, "spawn_materialize")
    with pytest.raises(inrush.Error, match=r"transformers \d\S+ loads in a way .*spawn_materialize"):
        with inrush.transformers.patch():
            pass


# Loads that fail

def test_a_truncated_file(folders, tmp_path):
    folder = shutil.copytree(folders["sharded"], tmp_path / "model")
    path = sorted(folder.glob("*.safetensors"))[1]
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(inrush.Error, match=path.name) as caught:
        inrush.transformers.from_pretrained(transformers.LlamaForCausalLM, folder)
    assert caught.value.code == "corrupt_checkpoint"
    transformers.LlamaForCausalLM.from_pretrained(folders["sharded"])


def test_a_file_that_goes_meanwhile(folders, tmp_path, monkeypatch):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    begin = _session.Session._begin

    def remove_and_begin(session, group):
        (folder / "model.safetensors").unlink(missing_ok=True)
        begin(session, group)

    monkeypatch.setattr(_session.Session, "_begin", remove_and_begin)
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        inrush.transformers.from_pretrained(transformers.LlamaForCausalLM, folder)


def test_a_timeout(folders):
    with pytest.raises(TimeoutError), inrush.transformers.patch(timeout=1e-9):
        transformers.LlamaForCausalLM.from_pretrained(folders["llama"])


def test_an_end_before_the_load_has_ended(folders, monkeypatch):
    """What transformers raises ends the load; its thread does not stay."""

    def fail(*arguments, **words):
        raise RuntimeError("no")

    monkeypatch.setattr(modeling_utils, "convert_and_load_state_dict_in_model", None)
    before = threading.active_count()
    with pytest.raises(TypeError):
        inrush.transformers.from_pretrained(transformers.LlamaForCausalLM, folders["llama"])
    monkeypatch.undo()
    monkeypatch.setattr(core_model_loading, "set_param_for_module", fail)
    with pytest.raises(RuntimeError, match="no"):
        inrush.transformers.from_pretrained(transformers.MixtralForCausalLM, folders["mixtral"])
    assert threading.active_count() == before


def test_options_and_progress(folders):
    calls = []
    loader = inrush.Loader(readers=1)
    with inrush.transformers.patch(
        loader=loader, page_cache="keep", transfer="staged", progress=lambda *bytes: calls.append(bytes)
    ) as loaded:
        transformers.LlamaForCausalLM.from_pretrained(folders["llama"])
    assert calls[-1] == (loaded[0].nbytes, loaded[0].nbytes)
    assert 0 < loaded[0].seconds < 60


# The plan

def config(**words):
    return types.SimpleNamespace(**{"device_map": None, "dtype_plan": {}, "weight_mapping": None, **words})


def model_of(tensors, dtype=torch.float32):
    shapes = {name: torch.empty(shape, dtype=dtype, device="meta") for name, (_, shape, _) in tensors.items()}
    return types.SimpleNamespace(state_dict=lambda: shapes)


def session_of(path, tensors, options=_background.Options(), **words):
    return _session.Session(inrush.open(path), model_of(tensors), config(**words), options)


PARTS = {f"experts.{i}.weight": random_tensor("F32", [64, 16], seed=i) for i in range(16)}


def test_parts_are_loaded_one_group_ahead(make_checkpoint, monkeypatch):
    """What was taken and dropped is gone: at most two groups are there at any time."""
    monkeypatch.setattr(_session, "_PARTS_BYTES", 4 * 64 * 16 * 4)
    session = session_of(make_checkpoint("parts", PARTS), {})
    takes = [session.plan(lazy, "cpu", None, True) for lazy in session.state_dict.values()]
    for (name, (_, _, data)), take in zip(PARTS.items(), takes, strict=True):
        tensor = take()
        assert raw(tensor) == data, name
        begun = [group for group in session._groups if group.load is not None]
        assert len(begun) <= list(PARTS).index(name) // 4 + 2
        held = sum(member.tensor is not None for group in begun for member in group.members.values())
        assert held <= 4
        del tensor
    assert len(session._groups) == 4
    session.close()


def test_a_tensor_that_was_taken_is_the_callers_alone(make_checkpoint):
    session = session_of(make_checkpoint("parts", PARTS), PARTS)
    takes = [session.plan(lazy, "cpu", torch.float32, False) for lazy in session.state_dict.values()]
    tensor = takes[0]()
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None
    session.close()


def test_a_tensor_that_is_wanted_otherwise_than_expected(make_checkpoint, caplog):
    session = session_of(make_checkpoint("parts", PARTS), PARTS)
    half = torch.float16
    with caplog.at_level(logging.WARNING, "inrush"):
        takes = {
            name: session.plan(lazy, "cpu", half if name.endswith("0.weight") else torch.float32, False)
            for name, lazy in session.state_dict.items()
        }
        loaded = {name: take() for name, take in takes.items()}
    for name, (_, shape, data) in PARTS.items():
        expected = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
        if name.endswith("0.weight"):
            expected = expected.to(torch.float16)
        assert raw(loaded[name]) == raw(expected), name
    assert caplog.text.count("is loaded twice") == 2
    session.close()


def test_many_threads_take(make_checkpoint):
    for is_part in (False, True):
        session = session_of(make_checkpoint("parts", PARTS), {})
        names = list(PARTS)
        takes = [session.plan(session.state_dict[name], "cpu", None, is_part) for name in names]
        results = {}
        threads = [
            threading.Thread(target=lambda i=i: results.update({names[i]: takes[i]()}))
            for i in reversed(range(len(names)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {name: raw(tensor) for name, tensor in results.items()} == {
            name: data for name, (_, _, data) in PARTS.items()
        }
        session.close()


def test_a_lazy_tensor_is_a_slice_of_safetensors(make_checkpoint):
    session = session_of(make_checkpoint("parts", PARTS), {})
    lazy = session.state_dict["experts.3.weight"]
    whole = torch.frombuffer(bytearray(PARTS["experts.3.weight"][2]), dtype=torch.float32).view(64, 16)
    assert (lazy.get_shape(), lazy.get_dtype()) == ([64, 16], "F32")
    for index in (..., slice(2, 5), (slice(None), 3), (slice(1, 9), slice(0, 4))):
        assert raw(lazy[index]) == raw(whole[index])
        assert raw(session.ordinary_slice(lazy)[index]) == raw(whole[index])
    assert session.left_count == 4


@pytest.mark.parametrize("device", ["meta", "disk", "mps"])
def test_devices_of_others(make_checkpoint, device):
    session = session_of(make_checkpoint("parts", PARTS), PARTS, device_map={"": device})
    assert session.plan(session.state_dict["experts.0.weight"], device, None, False) is None
    assert session.reports == []


# On the fake GPUs

DENSE = {f"layers.{i}.weight": random_tensor("F32", [64, 16], seed=i) for i in range(8)}


@pytest.fixture
def gpu_session(fake_torch, driver, nothing_left, make_checkpoint, monkeypatch):
    """gpu_session(parameters, **config): a session over DENSE that makes its tensors in the fake's memory."""
    made = []

    def make_tensor(form):
        if form.device.type == "cpu":
            return torch.empty(form.shape, dtype=form.dtype)
        nbytes = torch.empty(form.shape, dtype=form.dtype, device="meta").nbytes
        made.append((str(form.device), nbytes))
        return driver.empty(nbytes, form.device.index).view(form.dtype).view(form.shape)

    monkeypatch.setattr(_background, "make_tensor", make_tensor)
    monkeypatch.setattr(_background, "stream_of", lambda device: _background.contextlib.nullcontext())
    alive = [inrush.Loader(cuda_library=driver.path)]

    def make(parameters, **words):
        path = make_checkpoint("dense", DENSE, shards=2)
        alive.append(session_of(path, parameters, _background.Options(loader=alive[0]), **words))
        return alive[-1]

    make.made = made
    yield make
    for session in alive[1:]:
        session.close()
    alive.clear()


def bytes_on(driver, tensor):
    return driver.bytes_of(tensor) if driver.device_of(tensor.data_ptr()) is not None else raw(tensor)


@pytest.mark.parametrize("device", ["cuda:1", 1, torch.device("cuda", 1)])
def test_one_gpu_gets_all_in_one_load(gpu_session, driver, device):
    session = gpu_session(DENSE, device_map={"": device})
    takes = {name: session.plan(lazy, device, torch.float32, False)
             for name, lazy in session.state_dict.items()}
    assert len(session._groups) == 1 and session._groups[0].load is not None  # before all is planned
    loaded = {name: take() for name, take in takes.items()}
    assert {driver.device_of(tensor.data_ptr()) for tensor in loaded.values()} == {1}
    assert all(driver.bytes_of(loaded[name]) == data for name, (_, _, data) in DENSE.items())
    assert len(gpu_session.made) == len(DENSE)  # no second copy
    assert [report.device for report in session.reports] == ["cuda:1"]
    assert session.reports[0].tensor_count == len(DENSE)


def test_a_model_over_several_devices(gpu_session, driver):
    """One load for each device, and each tensor where its name belongs."""
    device_map = {"layers.0": 0, "layers.1": 0, "layers.2": 0, "layers.3": "cuda:1", "layers.4": "cuda:1",
                  "layers.5": "cuda:1", "layers.6": "cpu", "layers.7": "cpu"}
    session = gpu_session(DENSE, device_map=device_map)
    takes = {name: session.plan(lazy, device_map[name[:8]], torch.float32, False)
             for name, lazy in session.state_dict.items()}
    first = takes["layers.7.weight"]()
    assert len(session._groups) == 3 and all(group.load is not None for group in session._groups)  # at once
    loaded = {name: first if name == "layers.7.weight" else take() for name, take in takes.items()}
    numbers = {0: 0, "cuda:1": 1, "cpu": None}
    for name, (_, _, data) in DENSE.items():
        assert driver.device_of(loaded[name].data_ptr()) == numbers[device_map[name[:8]]], name
        assert bytes_on(driver, loaded[name]) == data
    counts = {report.device: report.tensor_count for report in session.reports}
    assert counts == {"cuda:0": 3, "cuda:1": 3, "cpu": 2}


def test_gpu_and_disk(gpu_session, driver):
    """What is for the CPU or the disk is left; the GPU's part is loaded."""
    session = gpu_session(DENSE, device_map={"layers.0": 0, "": "disk"})
    takes = {name: session.plan(lazy, 0 if name == "layers.0.weight" else "cpu", torch.float32, False)
             for name, lazy in session.state_dict.items()}
    assert [name for name, take in takes.items() if take] == ["layers.0.weight"]
    assert driver.bytes_of(takes["layers.0.weight"]()) == DENSE["layers.0.weight"][2]
    assert session.reports[0].tensor_count == 1


def test_parts_on_a_gpu_are_dropped_as_they_are_taken(gpu_session, driver, monkeypatch):
    """Device memory is at most that of two groups, of the four."""
    monkeypatch.setattr(_session, "_PARTS_BYTES", 2 * 64 * 16 * 4)
    session = gpu_session({}, device_map={"": 0})
    takes = [session.plan(lazy, 0, torch.float32, True) for lazy in session.state_dict.values()]
    most = 0
    for take in takes:
        tensor = take()
        most = max(most, len(driver._places))
        del tensor
    assert most <= 4
    assert len(session.reports) == 4


# What users do afterwards, and the page

def test_accelerate_saves_all_of_it(folders, tmp_path):
    """It drops tensors that share a storage."""
    ours = inrush.transformers.from_pretrained(transformers.LlamaForCausalLM, folders["sharded"])
    accelerate.Accelerator(cpu=True).save_model(ours, tmp_path)
    before = load_file(folders["llama"] / "model.safetensors")
    assert {name: raw(tensor) for name, tensor in load_file(tmp_path / "model.safetensors").items()} == {
        name: raw(tensor) for name, tensor in before.items()
    }


def checkpoint_in_model(folder, device_map):
    with accelerate.init_empty_weights():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(folder))
    accelerate.load_checkpoint_in_model(model, str(folder), device_map=device_map)
    return model


@pytest.mark.parametrize("device_map", [{"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}])
def test_accelerate_by_the_drop_in(folders, device_map):
    ordinary = checkpoint_in_model(folders["sharded"], device_map)
    with inrush.safetensors.patch():
        assert accelerate.utils.modeling.safe_open.__module__.startswith("inrush.")
        ours = checkpoint_in_model(folders["sharded"], device_map)
    assert state_of(ours) == state_of(ordinary)


def test_diffusers_by_the_drop_in(tmp_path):
    model = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(32, 32), down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"), layers_per_block=1,
    )  # fmt: skip
    model.save_pretrained(tmp_path)
    with inrush.safetensors.patch():
        ours = diffusers.UNet2DModel.from_pretrained(tmp_path)
    assert state_of(ours) == state_of(model)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "transformers.md"


def test_the_examples_of_the_page_run(folders):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    expected = [r"llama\n", r"(?s)None 21 \d+ 0\.\d+\nloaded 21 tensors.*", r"cpu\n"]
    for code, pattern in zip(blocks, expected, strict=True):
        code = code.replace('"/models/llama"', repr(str(folders["llama"]))).replace('"cuda:0"', '"cpu"')
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            exec(compile(code, "example", "exec"), {"__name__": "__main__"})
        assert re.fullmatch(pattern, written.getvalue()), written.getvalue()
