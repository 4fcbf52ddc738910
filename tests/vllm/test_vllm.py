"""The plug-in in the real vLLM, on the CPU, with its engine in this process."""
import inrush
import pytest
from conftest import random_tensor, write_file, write_folder
from framework_stubs import raw
from serving import answers, save_model

KINDS = {"plain": {}, "sharded": {"shard_size": "500KB"}, "tied": {"tied": True}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_model(folder / kind, **options) for kind, options in KINDS.items()}


def test_the_models_are_what_they_are_called(models):
    assert len(list(models["plain"].glob("*.safetensors"))) == 1
    assert len(list(models["sharded"].glob("*.safetensors"))) > 3
    assert (models["sharded"] / "model.safetensors.index.json").exists()
    assert "lm_head.weight" in inrush.open(models["plain"])
    assert "lm_head.weight" not in inrush.open(models["tied"])


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_default_loader(models, kind, capfd):
    ours = answers(models[kind], "inrush")
    assert "Loading safetensors by Inrush: 100%" in capfd.readouterr().err
    expected = answers(models[kind], "auto")
    assert ours == expected
    assert len({token for token, _ in ours[0]}) > 1  # such a model says more than one word


def test_an_unknown_option_is_refused(models):
    with pytest.raises(ValueError, match="Inrush has no option 'windw'; there are device, window_bytes"):
        answers(models["plain"], "inrush", model_loader_extra_config={"windw": 1})


def test_options_are_taken(models):
    extra = {"window_bytes": 1 << 20, "page_cache": "keep", "enable_weights_track": True}
    assert answers(models["sharded"], "inrush", model_loader_extra_config=extra)


@pytest.mark.parametrize("damage", ["cut", "header"])
def test_a_damaged_shard_is_our_error(tmp_path, damage):
    folder = save_model(tmp_path / "model", shard_size="500KB")
    shard = sorted(folder.glob("*.safetensors"))[2]
    data = shard.read_bytes()
    shard.write_bytes(data[:-100] if damage == "cut" else data[:20] + b"\xff" + data[21:])
    with pytest.raises(inrush.Error, match=shard.name) as caught:
        answers(folder, "inrush")
    assert caught.value.code == "corrupt_checkpoint"


# Beside vLLM's own reader: the same pairs, whatever the folder.

TENSORS = {f"layers.{i}.weight": random_tensor("BF16", [16, 8], seed=i) for i in range(12)}
EXPERTS = {f"layers.0.experts.{i}.{part}": random_tensor("F32", [4, 4], seed=i)
           for i in range(4) for part in ("weight", "weight_scale")}


def load_config(**changes):
    from vllm.config.load import LoadConfig

    return LoadConfig(use_tqdm_on_load=False, **changes)


def pairs(loader, folder, **source):
    weights = loader._get_weights_iterator(loader.Source(str(folder), None, **source))
    return {name: (tensor.dtype, tensor.shape, raw(tensor)) for name, tensor in weights}


def both(folder, experts=None, download_dir=None, **source):
    """What our loader and vLLM's give for a folder or a Hugging Face id."""
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    found = []
    for load_format in ("inrush", "auto"):
        loader = get_model_loader(load_config(load_format=load_format, download_dir=download_dir))
        loader.local_expert_ids = experts
        found.append(pairs(loader, folder, **source))
    return found


def test_it_is_our_loader():
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    loader = get_model_loader(load_config(load_format="inrush"))
    assert type(loader).__module__ == "inrush.frameworks._vllm_loader"


@pytest.mark.parametrize("shards", [1, 12])
def test_the_same_as_vllms_reader(tmp_path, shards):
    ours, theirs = both(write_folder(tmp_path / "model", TENSORS | EXPERTS, shards))
    assert ours == theirs
    assert set(ours) == set(TENSORS | EXPERTS)


def test_the_same_experts(tmp_path):
    ours, theirs = both(write_folder(tmp_path / "model", TENSORS | EXPERTS, 3), experts={0, 3})
    assert ours == theirs
    assert len(ours) == len(TENSORS | EXPERTS) - 2


def test_the_same_without_an_index(tmp_path):
    for i, entry in enumerate(TENSORS.items()):
        write_file(tmp_path / f"part-{i}.safetensors", dict([entry]))
    newer = {"layers.3.weight": random_tensor("BF16", [16, 8], seed="newer")}
    write_file(tmp_path / "part-12.safetensors", newer)
    ours, theirs = both(tmp_path)
    assert ours == theirs
    assert next(iter(ours)) == "layers.0.weight"


def test_the_same_with_a_tensor_outside_the_index(tmp_path):
    import json

    folder = write_folder(tmp_path / "model", TENSORS, 3)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["layers.5.weight"]
    path.write_text(json.dumps(index))
    ours, theirs = both(folder)
    assert ours == theirs
    assert "layers.5.weight" in ours


def test_the_same_beside_a_consolidated_copy(tmp_path):
    folder = write_folder(tmp_path / "model", TENSORS, 3)
    write_file(folder / "consolidated.safetensors", {"tok.weight": random_tensor("F32", [3])})
    ours, theirs = both(folder)
    assert ours == theirs


def test_the_same_for_other_files_than_the_index_names(tmp_path):
    folder = write_folder(tmp_path / "model", TENSORS, 3)
    other = {name: random_tensor("F32", [4], seed="other") for name in list(TENSORS)[:5]}
    write_file(folder / "quantized.safetensors", other)
    ours, theirs = both(folder, allow_patterns_overrides=["quantized*.safetensors"])
    assert ours == theirs
    assert set(ours) == set(other)


def test_the_same_in_a_subfolder_with_a_prefix(tmp_path):
    write_folder(tmp_path / "model" / "vision", TENSORS, 2)
    ours, theirs = both(tmp_path / "model", subfolder="vision", prefix="vision.")
    assert ours == theirs
    assert all(name.startswith("vision.") for name in ours)


def test_the_same_by_a_hugging_face_id(tmp_path):
    repository = tmp_path / "models--somebody--tiny"
    snapshot = repository / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    for path in write_folder(repository / "blobs", TENSORS, 3).iterdir():
        (snapshot / path.name).symlink_to(path)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    ours, theirs = both("somebody/tiny", download_dir=str(tmp_path))
    assert ours == theirs
    assert set(ours) == set(TENSORS)


def test_the_same_for_other_files(tmp_path):
    import torch

    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    ours, theirs = both(tmp_path)
    assert ours == theirs
    assert list(ours) == ["a"]


def test_what_a_model_skips_is_not_read(tmp_path):
    folder = write_folder(tmp_path / "model", TENSORS, 3)

    def is_unused(name):
        return not name.startswith("layers.1")

    ours, theirs = both(folder, is_unused_weight=is_unused)
    # vLLM leaves out whole files only; its models skip the rest.
    assert ours == {name: value for name, value in theirs.items() if not is_unused(name)}
    assert set(ours) == {"layers.1.weight", "layers.10.weight", "layers.11.weight"}
