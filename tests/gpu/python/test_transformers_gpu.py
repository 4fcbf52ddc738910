"""On a machine with a GPU: inrush.transformers beside the ordinary from_pretrained(). Needs transformers and
accelerate. `pytest tests/gpu/python/test_transformers_gpu.py`."""

from __future__ import annotations

import accelerate
import inrush.transformers
import pytest
import torch
import transformers
from safetensors.torch import load_file

MIB = 1 << 20
SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 64,
}  # fmt: skip
SECOND = 1 if torch.cuda.device_count() > 1 else "cpu"
HALVES = {
    "model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 0,
    "model.layers.2": SECOND, "model.layers.3": SECOND, "model.norm": SECOND, "lm_head": SECOND,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    models = {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)),
        "tied": transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, tie_word_embeddings=True)),
        "mixtral": transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_local_experts=4)),
    }
    for kind, model in models.items():
        model.to(torch.bfloat16).save_pretrained(root / kind, max_shard_size="2MB")
    return {kind: root / kind for kind in models}


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def logits_of(model):
    with torch.no_grad():
        return model(torch.arange(1, 17, device=model.model.embed_tokens.weight.device).unsqueeze(0)).logits


def assert_equal(ours, ordinary):
    mine, theirs = ours.state_dict(), ordinary.state_dict()
    assert list(mine) == list(theirs)
    for name, tensor in theirs.items():
        assert (mine[name].dtype, mine[name].device) == (tensor.dtype, tensor.device), name
        if tensor.device.type != "meta":  # accelerate keeps those of the CPU elsewhere; the logits need them
            assert raw(mine[name]) == raw(tensor), name
    assert raw(logits_of(ours)) == raw(logits_of(ordinary))


def load_both(folder, **words):
    ordinary = transformers.AutoModelForCausalLM.from_pretrained(folder, **words)
    with inrush.transformers.patch() as loaded:
        ours = transformers.AutoModelForCausalLM.from_pretrained(folder, **words)
    assert loaded[0].left is None
    return ours, ordinary, loaded[0]


@pytest.mark.parametrize("device_map", ["cuda", "cuda:0", 0, "auto", {"": 0}, HALVES], ids=str)
@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
@pytest.mark.parametrize("kind", ["llama", "tied", "mixtral"])
def test_equal(folders, kind, dtype, device_map):
    if device_map is HALVES and kind == "tied":
        device_map = {**HALVES, "lm_head": 0}
    ours, ordinary, _ = load_both(folders[kind], dtype=dtype, device_map=device_map)
    assert_equal(ours, ordinary)


def test_one_load_to_one_device(folders):
    ours, _, loaded = load_both(folders["llama"], device_map="cuda:0")
    assert [report.device for report in loaded.reports] == ["cuda:0"]
    assert {tensor.device for tensor in ours.state_dict().values()} == {torch.device("cuda", 0)}


def test_storages_and_what_accelerate_saves(folders, tmp_path):
    ours, _, _ = load_both(folders["llama"], device_map="cuda:0")
    for name, tensor in ours.state_dict().items():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name
    accelerate.Accelerator().save_model(ours, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert {name: raw(tensor) for name, tensor in saved.items()} == {
        name: raw(tensor) for name, tensor in ours.state_dict().items()
    }


@pytest.mark.parametrize("dtype", ["auto", "float16"])
def test_on_a_stream_of_the_caller(folders, dtype):
    """Its memory was in use by that stream before."""
    ordinary = transformers.AutoModelForCausalLM.from_pretrained(
        folders["llama"], device_map="cuda:0", dtype=dtype
    )
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(5):
            busy = [torch.randn(2048, 2048, device="cuda") for _ in range(8)]
            for tensor in busy:
                torch.matmul(tensor, tensor, out=tensor.clone())
                tensor.fill_(7)
            del busy, tensor
            ours = inrush.transformers.from_pretrained(
                transformers.AutoModelForCausalLM, folders["llama"], device_map="cuda:0", dtype=dtype
            )
            assert_equal(ours, ordinary)
            del ours


def test_memory(folders):
    """Of the tests' small models everything fits the windows: not more than twice the model."""
    nbytes = sum(tensor.nbytes for tensor in load_file_all(folders["mixtral"]).values())
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ours = inrush.transformers.from_pretrained(
        transformers.AutoModelForCausalLM, folders["mixtral"], device_map="cuda:0"
    )
    held = torch.cuda.memory_allocated() - before
    assert held <= nbytes + 2 * MIB
    # caching_allocator_warmup() of transformers asks for the model's size once and gives it back
    assert torch.cuda.max_memory_allocated() - before <= 2 * nbytes + 4 * MIB
    del ours


def load_file_all(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors.update(load_file(path))
    return tensors
