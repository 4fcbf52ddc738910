"""ShardSpec: what one rank of a tensor-parallel group loads, against torch's own slicing."""

import itertools

import inrush
import inrush.torch
import numpy
import pytest
import torch
from conftest import DTYPE_BITS, random_tensor, write_file
from hypothesis import given, settings
from hypothesis import strategies as st

WORLDS = (1, 2, 4, 8)


def llama(layers=2, hidden=1024, inner=4096, vocabulary=8192):
    """Names and shapes as a Llama's, a few MB each, where a direct read's alignment is a small part."""
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name in ("q_proj", "o_proj"):
            shapes[f"{prefix}self_attn.{name}.weight"] = [hidden, hidden]
        for name in ("k_proj", "v_proj"):
            shapes[f"{prefix}self_attn.{name}.weight"] = [hidden // 4, hidden]
        for name in ("gate_proj", "up_proj"):
            shapes[f"{prefix}mlp.{name}.weight"] = [inner, hidden]
        shapes[f"{prefix}mlp.down_proj.weight"] = [hidden, inner]
        shapes[f"{prefix}input_layernorm.weight"] = [hidden]
    return shapes


def mixture(experts=8, hidden=1024, inner=2048):
    """One layer of a mixture of experts: the experts of all in one tensor, as newer models store them."""
    prefix = "model.layers.0.mlp."
    return {
        f"{prefix}gate.weight": [experts, hidden],
        f"{prefix}experts.gate_up_proj": [experts, hidden, 2 * inner],
        f"{prefix}experts.down_proj": [experts, inner, hidden],
    }


LLAMA_DIMENSIONS = {
    "*.o_proj.weight": 1, "*.down_proj.weight": 1, "*layernorm.weight": None, "model.norm.weight": None,
    "*_proj.weight": 0, "model.embed_tokens.weight": 0,
}  # fmt: skip
MIXTURE_DIMENSIONS = {"*.gate.weight": 0, "*.gate_up_proj": 2, "*.down_proj": 1}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    """Folder, patterns and whole tensors, by name."""
    folder = tmp_path_factory.mktemp("layouts")
    made = {}
    for name, shapes, patterns in (
        ("llama", llama(), LLAMA_DIMENSIONS), ("mixture", mixture(), MIXTURE_DIMENSIONS),
    ):  # fmt: skip
        path = write_file(
            folder / f"{name}.safetensors",
            {key: random_tensor("BF16", shape) for key, shape in shapes.items()},
        )
        made[name] = (path, patterns, inrush.torch.load(path))
    return made


def same(tensor, right):
    """By bits: random ones are NaNs here and there."""
    return torch.equal(tensor.view(torch.int16), right.contiguous().view(torch.int16))


def part_of(tensor, dimension, rank, world):
    return tensor if dimension is None else tensor.chunk(world, dimension)[rank]


def dimension_of(name, patterns):
    import fnmatch

    return next((part for pattern, part in patterns.items() if fnmatch.fnmatchcase(name, pattern)), None)


@pytest.mark.parametrize(("layout", "world"), list(itertools.product(("llama", "mixture"), WORLDS)))
def test_every_rank_gets_what_torch_would_cut(layouts, layout, world):
    path, patterns, whole = layouts[layout]
    for rank in range(world):
        loaded = inrush.torch.load(path, slices=inrush.ShardSpec(patterns, rank=rank, world=world))
        assert loaded.keys() == whole.keys()
        for name, tensor in loaded.items():
            expected = part_of(whole[name], dimension_of(name, patterns), rank, world)
            assert tensor.is_contiguous()
            assert same(tensor, expected), name


@pytest.mark.parametrize(
    ("layout", "world", "page_cache"),
    list(itertools.product(("llama", "mixture"), WORLDS, ("keep", "bypass"))),
)
def test_what_is_read_is_what_the_slices_need(layouts, layout, world, page_cache):
    """Dimension 0: within 2 % of the slices. Inner dimensions: at most the tensors."""
    path, patterns, whole = layouts[layout]
    checkpoint = inrush.open(path)
    spec = inrush.ShardSpec(patterns, rank=world - 1, world=world)
    rows = [name for name in whole if dimension_of(name, patterns) == 0]
    columns = [name for name in whole if dimension_of(name, patterns) not in (0, None)]
    for names, most_bytes in (
        (rows, 1.02 * sum(checkpoint[name].nbytes for name in rows) / world),
        (columns, sum(checkpoint[name].nbytes for name in columns)),
    ):
        report = inrush.torch.load(path, only=names, slices=spec, page_cache=page_cache).report
        assert report.loaded_bytes == sum(checkpoint[name].nbytes for name in names) // world
        assert report.loaded_bytes <= report.read_bytes <= most_bytes, names


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_and_dtype_is_cut_as_numpy_cuts_it(tmp_path_factory, data):
    dtype = data.draw(st.sampled_from([name for name, bits in DTYPE_BITS.items() if bits in (8, 16, 32, 64)]))
    world = data.draw(st.integers(1, 5))
    shape = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    dimension = data.draw(st.integers(-len(shape), len(shape) - 1))
    shape[dimension] *= world
    rank = data.draw(st.integers(0, world - 1))
    tensor = random_tensor(dtype, shape, seed=rank)
    path = write_file(
        tmp_path_factory.mktemp("cut") / "m.safetensors", {"before": ("U8", [3], b"abc"), "t": tensor}
    )
    loaded = inrush.load(
        path, framework="dlpack", slices=inrush.ShardSpec({"t": dimension}, rank=rank, world=world)
    )["t"]
    itemsize = DTYPE_BITS[dtype] // 8
    whole = numpy.frombuffer(tensor[2], numpy.uint8).reshape(*shape, itemsize)
    expected = numpy.split(whole, world, dimension % len(shape))[rank]
    assert loaded.shape == expected.shape[:-1]
    assert (
        inrush.load(
            path, slices={} if world == 1 else inrush.ShardSpec({"t": dimension}, rank=rank, world=world)
        )["t"].tobytes()
        == expected.tobytes()
    )


def test_the_first_pattern_counts_and_ranks_may_share(layouts):
    path, _, whole = layouts["llama"]
    name = "model.layers.0.self_attn.k_proj.weight"
    checkpoint = inrush.open(path)
    spec = inrush.ShardSpec({name: (0, 1, 2), "*.k_proj.weight": 1, "*": None}, rank=3, world=4)
    assert spec.slices(checkpoint, [name]) == {name: (0, 128, 128)}
    loaded = inrush.torch.load(path, slices=spec, only="*.k_proj.weight")
    assert same(loaded[name], whole[name][128:])
    other = "model.layers.1.self_attn.k_proj.weight"
    assert same(loaded[other], whole[other][:, 768:])


def test_into_a_module_and_as_a_stream(layouts):
    path, _, whole = layouts["llama"]
    spec = inrush.ShardSpec({"*.down_proj.weight": -1}, rank=1, world=2)
    name = "model.layers.0.mlp.down_proj.weight"
    target = {name: torch.zeros(1024, 2048, dtype=torch.bfloat16)}
    inrush.torch.load_into(path, target, slices=spec, only=name)
    assert same(target[name], whole[name][:, 2048:])
    streamed = dict(inrush.torch.stream(path, slices=spec, only="*.down_proj.weight"))
    assert same(streamed[name], target[name])
    assert len(streamed) == 2


@pytest.mark.parametrize(
    ("patterns", "more", "says"),
    [
        ({"*.q_proj.weight": 2}, {}, ["q_proj.weight", "no dimension 2"]),
        ({"*.q_proj.weight": -3}, {}, ["no dimension -3"]),
        ({"*.q_proj.weight": 0}, {"world": 3}, ["[1024, 1024]", "does not divide into 3"]),
        ({"*.absent": 0}, {}, ["*.absent", 'unmatched="ignore"']),
        ({"*": "0"}, {}, ["'0'", "say a dimension"]),
        ({"*": (0, 2, 2)}, {}, ["rank below world"]),
        ({"*": (0, 1)}, {}, ["rank below world"]),
        ({"*": 0}, {"rank": 4}, ["rank 4 of 4"]),
        ({"*": 0}, {"unmatched": "skip"}, ["unmatched='skip'"]),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_read(layouts, patterns, more, says):
    with pytest.raises(inrush.Error) as raised:
        inrush.torch.load(
            layouts["llama"][0], slices=inrush.ShardSpec(patterns, **{"rank": 0, "world": 4, **more})
        )
    assert raised.value.code == "invalid_request"
    assert raised.value.report is None
    assert all(part in str(raised.value) for part in says), raised.value


def test_patterns_for_other_models_may_be_ignored(layouts):
    path, patterns, whole = layouts["mixture"]
    spec = inrush.ShardSpec({**LLAMA_DIMENSIONS, **patterns}, rank=0, world=2, unmatched="ignore")
    loaded = inrush.torch.load(path, slices=spec)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert same(loaded[name], whole[name][:, :, :2048])
