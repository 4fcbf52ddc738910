"""inrush.dcp.Reader with torch.distributed.checkpoint: its folders and folders of safetensors."""
import copy
import itertools
import json
import math
import os
import re
import types

import inrush
import inrush.dcp
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import random_tensor, write_file
from dcp_folders import (
    assert_equal, change_item, empty_like, grid, load, random_values, raw, refused, write_dcp,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inrush.torch import _dcp_folder, _dcp_plan, _dcp_reads, _ranges
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn,
]


@pytest.fixture
def saved(tmp_path):
    """saved(state, **options) -> folder of DCP."""
    def save(state, name="step", **options):
        dcp.save(state, checkpoint_id=tmp_path / name, **options)
        return tmp_path / name
    return save


@pytest.fixture
def safetensors_folder(tmp_path):
    def save(state, name="model", **options):
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(tmp_path / name), **options))
        return tmp_path / name
    return save


# Folders of DCP

def test_a_training_state(saved):
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 12, "name": "run"}
    folder = saved(state)
    blank = copy.deepcopy(state) | {"step": 0, "name": ""}
    for tensor in [*blank["model"].values(), *blank["optimizer"]["state"][0].values()]:
        tensor.zero_()
    blank["optimizer"]["param_groups"][0]["lr"] = 0.5
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    theirs, target = copy.deepcopy(blank), blank | {"model": module.state_dict()}
    dcp.load(theirs, storage_reader=FileSystemReader(folder))
    load(folder, target)
    assert_equal(theirs["model"], dict(target["model"]))
    assert repr(theirs["optimizer"]) == repr(target["optimizer"]) == repr(state["optimizer"])
    assert target["step"] == 12 and torch.equal(module[0].weight, state["model"]["0.weight"])


def test_every_dtype(saved):
    state = {str(dtype): random_values(dtype, (3, 4)) for dtype in DTYPES}
    state |= {f"{dtype} scalar": random_values(dtype, ()) for dtype in DTYPES}
    state |= {f"{dtype} empty": random_values(dtype, (0, 2)) for dtype in DTYPES}
    assert_equal(load(saved(state), empty_like(state)), state)


def test_element_types_are_converted_as_torch_does(saved):
    state = {"w": random_values(torch.bfloat16, (5, 3))}
    target = {"w": torch.zeros(5, 3)}
    load(saved(state), target)
    assert raw(target["w"]) == raw(state["w"].float())


def test_targets_that_are_no_array_of_rows(saved):
    state = {"t": torch.arange(12.0).view(3, 4), "c": torch.randn(2, 3, 4, 5),
             "z": torch.randn(4, dtype=torch.cfloat)}
    folder = saved(state)
    target = {"t": torch.zeros(4, 3).t(), "c": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
              "z": torch.zeros(4, dtype=torch.cfloat).conj()}
    strides = {name: tensor.stride() for name, tensor in target.items()}
    load(folder, target)
    assert_equal({name: tensor.resolve_conj() for name, tensor in target.items()}, state)
    assert {name: tensor.stride() for name, tensor in target.items()} == strides


def test_stored_tensors_that_are_no_array_of_rows(saved):
    state = {"c": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "t": torch.randn(3, 4).t()}
    assert_equal(load(saved(state), empty_like(state)), state)


def test_stored_tensors_that_begin_inside_their_storage(tmp_path):
    values = random_values(torch.float32, (4, 6))
    folder = write_dcp(tmp_path / "step", {"w": (values, grid((4, 6), (1, 1)))})
    storage = torch.cat([torch.ones(5), values.reshape(-1), torch.ones(3)])
    torch.save(storage[5:29].view(4, 6), folder / "__0_0.distcp")
    change_item(folder, length=os.path.getsize(folder / "__0_0.distcp"))
    planner = Planner({"w": (torch.zeros(2, 6), (1, 0))})
    read(folder, planner)
    assert raw(planner.targets["w"][0]) == raw(values[1:3])


def test_one_folder_of_many_files(saved):
    state = {f"t{i}": random_values(torch.float32, (i + 1, 5), i) for i in range(20)}
    folder = saved(state, storage_writer=None, planner=None)
    writer = dcp.FileSystemWriter(folder.with_name("many"), single_file_per_rank=False)
    dcp.save(state, storage_writer=writer)
    assert len(list(folder.with_name("many").glob("*.distcp"))) == 20
    assert_equal(load(folder.with_name("many"), empty_like(state)), state)


def test_tied_tensors_of_the_target(saved):
    state = {"a": torch.arange(6.0), "b": torch.arange(6.0) + 1}
    tied = torch.zeros(6)
    load(saved(state), {"a": tied, "b": tied})
    assert raw(tied) in (raw(state["a"]), raw(state["b"]))


def test_a_part_of_the_checkpoint(saved):
    folder = saved({"a": torch.ones(3), "b": torch.ones(4), "step": 5})
    target = {"b": torch.zeros(4)}
    load(folder, target)
    assert target["b"].tolist() == [1] * 4
    with pytest.raises(CheckpointException, match="(?s)Missing key.*absent"):
        load(folder, {"absent": torch.zeros(1)})


def test_autograd_and_inference_mode(saved):
    folder = saved({"w": torch.ones(3), "t": torch.ones(2, 2)})
    w = torch.nn.Parameter(torch.full((3,), 5.0))
    squares, version = (w**2).sum(), w._version
    load(folder, {"w": w})
    assert w._version > version and w.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        squares.backward()
    with torch.inference_mode():
        target = {"w": torch.zeros(3), "t": torch.zeros(2, 2).t()}
    load(folder, target)
    assert target["w"].tolist() == [1] * 3 and target["t"].tolist() == [[1, 1], [1, 1]]


def test_memory_beside_the_targets_is_bounded(saved, monkeypatch):
    state = {f"t{i}": random_values(torch.float32, (8, 16), i) for i in range(6)}
    target = {name: torch.zeros(16, 8).t() for name in state}
    loads, real = [], _ranges.load_ranges
    monkeypatch.setattr(_dcp_reads, "_BESIDE_BYTES", 1024)
    monkeypatch.setattr(_ranges, "load_ranges", lambda job, ranges, known: (
        loads.append(sum(entry.target_bytes for entry in ranges)), real(job, ranges, known)))
    load(saved(state), target)
    assert loads == [1024] * 3
    assert_equal(target, state)


def test_reads_go_straight_into_the_targets(saved, monkeypatch):
    state = {"a": random_values(torch.float32, (8, 16)), "n": {"b": random_values(torch.int64, (5,))}}
    target, seen, real = empty_like(state), [], _ranges.load_ranges
    monkeypatch.setattr(_ranges, "load_ranges", lambda job, ranges, known: (
        seen.extend(ranges), real(job, ranges, known)))
    load(saved(state), target)
    assert {entry.address for entry in seen} == {target["a"].data_ptr(), target["n"]["b"].data_ptr()}


def test_options(saved):
    state, told = {"a": torch.arange(1000.0), "t": torch.zeros(3)}, []
    target = load(saved(state), empty_like(state), loader=inrush.Loader(), timeout=60, transfer="staged",
                  page_cache="keep", progress=lambda *now: told.append(now))
    assert_equal(target, state)
    assert told[-1] == (4012, 4012)
    refused("invalid_request", "pigeon", saved(state, "other"), empty_like(state), transfer="pigeon")


def test_the_interface(saved, tmp_path):
    folder = saved({"a": torch.ones(2)})
    reader = inrush.dcp.Reader(folder)
    assert isinstance(reader, dcp.StorageReader) and reader.checkpoint_id == str(folder)
    assert inrush.dcp.Reader.validate_checkpoint_id(folder)
    assert not inrush.dcp.Reader.validate_checkpoint_id("s3://bucket/step")
    assert not inrush.dcp.Reader.validate_checkpoint_id(tmp_path / "absent")
    other = saved({"a": torch.zeros(2)}, "other")
    target = {"a": torch.full((2,), 5.0)}
    dcp.load(target, storage_reader=reader, checkpoint_id=other)
    assert target["a"].tolist() == [0, 0] and reader.checkpoint_id == str(other)


def test_without_a_state_to_fill(saved):
    state = {"m": {"w": random_values(torch.float32, (3, 2))}, "step": 3}
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    assert_equal(_load_state_dict_from_keys(set(), storage_reader=inrush.dcp.Reader(saved(state))), {})
    whole = _load_state_dict_from_keys({"m", "step"}, storage_reader=inrush.dcp.Reader(saved(state, "b")))
    assert_equal(whole, state)


def test_metadata_of_one_rank(saved):
    state = {"a": torch.arange(4.0), "step": 2}
    folder = saved(state)
    os.rename(folder / ".metadata", folder / "__0.metadata")
    assert_equal(load(folder, empty_like(state)), state)


# Parts

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@st.composite
def cubes(draw):
    """(shape, starts, lengths)."""
    shape = draw(SHAPES)
    starts = tuple(draw(st.integers(0, extent - 1)) for extent in shape)
    lengths = tuple(draw(st.integers(1, extent - start)) for extent, start in zip(shape, starts))
    return shape, starts, lengths


@settings(max_examples=300, deadline=None)
@given(cube=cubes())
def test_a_cut_is_that_part(cube):
    shape, starts, lengths = cube
    array = np.arange(math.prod(shape)).reshape(shape)
    cut = _dcp_plan.cut(shape, starts, lengths)
    taken = array.reshape(-1)[cut.start:cut.start + math.prod(cut.shape)].reshape(cut.shape)
    for part in ([cut.part] if cut.part else []) + list(cut.rest):
        taken = np.take(taken, range(part.start, part.start + part.length), part.dimension)
        if part is cut.part:
            assert taken.shape == cut.read_shape
    expected = array[tuple(slice(a, a + n) for a, n in zip(starts, lengths))]
    assert taken.shape == expected.shape and (taken == expected).all()


@pytest.mark.parametrize("shape, starts, lengths, expected", [
    ((8, 4), (2, 0), (3, 4), (8, (3, 4), None, ())),  # rows: nothing else is read
    ((8, 4), (0, 1), (8, 2), (0, (8, 4), (1, 1, 2), ())),
    ((1, 8, 4), (0, 2, 0), (1, 3, 4), (8, (1, 3, 4), None, ())),
    ((8, 4), (3, 1), (1, 2), (13, (1, 2), None, ())),
    ((8, 6, 4), (2, 1, 1), (2, 4, 1), (48, (2, 6, 4), (2, 1, 1), ((1, 1, 4),))),
])
def test_how_much_a_cut_reads(shape, starts, lengths, expected):
    assert _dcp_plan.cut(shape, starts, lengths) == expected


SPANS = st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 5)).map(
    lambda span: _dcp_plan.Span(span[0], span[1], span[1] + span[2]))


@settings(max_examples=200, deadline=None)
@given(reads=st.lists(st.tuples(SPANS, SPANS, st.integers(0, 5)), max_size=12), most=st.integers(0, 8))
def test_rounds(reads, most):
    reads = [types.SimpleNamespace(source=source, destination=target, beside_bytes=beside)
             for source, target, beside in reads]
    loads = _dcp_plan.rounds(reads, most)
    assert sorted(map(id, itertools.chain(*loads))) == sorted(map(id, reads))
    for taken in loads:
        assert len(taken) == 1 or sum(read.beside_bytes for read in taken) <= most
        for one, other in itertools.combinations(taken, 2):
            for a, b in ((one.source, other.source), (one.destination, other.destination)):
                overlap = min(a.end, b.end) - max(a.start, b.start) if a.where == b.where else 0
                assert overlap <= 0


def test_reads_that_share_nothing_are_one_round():
    reads = [types.SimpleNamespace(source=_dcp_plan.Span("f", i, i + 1), beside_bytes=1,
                                   destination=_dcp_plan.Span("cpu", 2 * i, 2 * i + 2)) for i in range(100)]
    assert _dcp_plan.rounds(reads, 100) == [reads]
    assert [len(taken) for taken in _dcp_plan.rounds(reads, 60)] == [60, 40]


class Planner:
    """Fills parts of tensors: name -> (target, where it begins in its tensor)."""

    def __init__(self, targets):
        self.targets = targets
        self.committed = []

    def items(self, metadata):
        return [item for name, (target, starts) in self.targets.items()
                for item in create_read_items_for_chunk_list(
                    name, metadata.state_dict_metadata[name],
                    [dcp_metadata.ChunkStorageMetadata(torch.Size(starts), target.size())])]

    def resolve_tensor(self, item):
        tensor, _ = self.targets[item.dest_index.fqn]
        for dimension, (start, length) in enumerate(zip(item.dest_offsets, item.lengths)):
            tensor = tensor.narrow(dimension, start, length)
        return tensor

    def commit_tensor(self, item, tensor):
        self.committed.append(item)


def read(folder, planner, **options):
    reader = inrush.dcp.Reader(folder, **options)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    items = planner.items(metadata)
    reader.read_data(LoadPlan(items), planner).wait()
    assert sorted(map(repr, planner.committed)) == sorted(map(repr, items))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_part_of_any_sharding(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "resharded"
    tensors, targets, expected = {}, {}, {}
    for name in ("a", "b"):
        shape, starts, lengths = data.draw(cubes())
        counts = [data.draw(st.integers(1, 3)) for _ in shape]
        values = random_values(data.draw(st.sampled_from(DTYPES)), shape)
        tensors[name] = (values, grid(shape, counts))
        target = torch.zeros(lengths, dtype=torch.uint8).to(values.dtype)
        if data.draw(st.booleans()):
            target = target.mT.contiguous().mT if target.ndim >= 2 else target
        targets[name] = (target, starts)
        expected[name] = values[tuple(slice(a, a + n) for a, n in zip(starts, lengths))]
    read(write_dcp(folder, tensors), Planner(targets))
    for name, (target, _) in targets.items():
        assert raw(target) == raw(expected[name])


def test_two_parts_of_one_chunk(tmp_path):
    values = random_values(torch.float32, (8, 6))
    folder = write_dcp(tmp_path / "step", {"w": (values, grid((8, 6), (1, 1)))})
    planner = Planner({"w": (torch.zeros(8, 6), (0, 0))})
    whole, parts = planner.targets["w"][0], [(0, 3), (2, 4)]
    index = dcp_metadata.MetadataIndex("w", (0, 0), 0)
    places = [(torch.Size((0, a)), torch.Size((8, n))) for a, n in parts]
    planner.items = lambda metadata: [
        ReadItem(LoadItemType.TENSOR, index, starts, index, starts, lengths) for starts, lengths in places]
    read(folder, planner)
    assert raw(whole) == raw(values)


# Folders of safetensors

@pytest.mark.parametrize("options", [
    {}, {"save_distributed": True}, {"fqn_to_index_mapping": {"w": 1, "b": 2, "s": 2}},
])
def test_what_the_writer_of_torch_writes(safetensors_folder, options):
    state = {"w": random_values(torch.float32, (6, 4)), "b": random_values(torch.bfloat16, (5,)),
             "s": random_values(torch.int64, ())}
    folder = safetensors_folder(state, **options)
    assert_equal(load(folder, empty_like(state)), state)
    if not options:
        theirs = empty_like(state)
        dcp.load(theirs, storage_reader=HuggingFaceStorageReader(str(folder)))
        assert_equal(theirs, state)


def test_shards_in_files(make_checkpoint, tmp_path):
    """As HuggingFaceStorageWriter writes them in a world of four."""
    values = random_values(torch.float32, (6, 8))
    for i, chunk in enumerate(grid((6, 8), (2, 2))):
        (a, b), (n, m) = chunk.offsets, chunk.sizes
        sharding = json.dumps({"w": {"saved_offsets": [a, b]}})
        part = "F32", [n, m], raw(values[a:a + n, b:b + m])
        write_file(tmp_path / f"shard-{i}.safetensors", {"w": part}, {"DCP_SHARDING_INFO": sharding})
    target = {"w": torch.zeros(6, 8)}
    assert_equal(load(tmp_path, target), {"w": values})
    part = Planner({"w": (torch.zeros(3, 3), (2, 3))})
    read(tmp_path, part)
    assert raw(part.targets["w"][0]) == raw(values[2:5, 3:6])
    os.unlink(tmp_path / "shard-1.safetensors")
    refused("corrupt_checkpoint", "is one missing?", tmp_path, {"w": torch.zeros(6, 8)})


def test_a_plain_folder_and_its_index(make_checkpoint):
    tensors = {f"t{i}": random_tensor("BF16", [4, 6], seed=i) for i in range(5)}
    folder = make_checkpoint("model", tensors, shards=3)
    write_file(folder / "stray.safetensors", {"t0": random_tensor("BF16", [4, 6], seed=9)})
    target = {name: torch.zeros(4, 6, dtype=torch.bfloat16) for name in tensors}
    for path in (folder, folder / "model.safetensors.index.json"):
        load(path, target)
        assert {name: raw(tensor) for name, tensor in target.items()} == {
            name: data for name, (_, _, data) in tensors.items()}
    one = {"t1": torch.zeros(4, 6, dtype=torch.bfloat16)}
    load(folder / "model-00002-of-00003.safetensors", one)
    assert raw(one["t1"]) == tensors["t1"][2]


def test_shards_that_overlap_and_leave_a_gap(tmp_path):
    """As many elements as the tensor has, and not those."""
    for i, start in enumerate((0, 1, 7)):
        sharding = json.dumps({"w": {"saved_offsets": [start]}})
        part = random_tensor("F32", [4 if start < 7 else 1], seed=i)
        write_file(tmp_path / f"shard-{i}.safetensors", {"w": part}, {"DCP_SHARDING_INFO": sharding})
    refused("corrupt_checkpoint", "is one missing?", tmp_path, {"w": torch.zeros(8)})
    write_file(tmp_path / "shard-3.safetensors", {"w": random_tensor("F32", [2])},
               {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [5]}})})
    refused("corrupt_checkpoint", "overlap", tmp_path, {"w": torch.zeros(8)})


@pytest.mark.parametrize(("size", "boxes", "covered"), [
    ((), [], False), ((), [((), ())], True), ((0, 3), [], True), ((2,), [], False),
    ((4,), [((0,), (2,)), ((2,), (2,))], True), ((4,), [((0,), (2,)), ((3,), (1,))], False),
    ((4,), [((0,), (3,)), ((1,), (3,))], True), ((2, 2), [((0, 0), (1, 2)), ((1, 0), (1, 1))], False),
    ((2, 2), [((0, 0), (1, 2)), ((1, 0), (1, 1)), ((1, 1), (1, 1)), ((1, 1), (0, 1))], True),
    ((10**5, 10**5), [((i, i), (1, 1)) for i in range(0, 10**4, 2)], False),
])
def test_what_covers_an_array(size, boxes, covered):
    assert _dcp_plan.covers(size, boxes) is covered


@pytest.mark.parametrize("sharding, words", [
    ("{", "not readable"), ("[]", "not readable"), ('{"w": {}}', "not readable"),
    ("{}", "does not say where 'w'"), ('{"w": {"saved_offsets": [-1, 0]}}', "not readable"),
    ('{"w": {"saved_offsets": [0]}}', "should begin at"),
    ('{"w": {"saved_offsets": [1, 0]}}', "is one missing?"),
])
def test_shards_that_lie(tmp_path, sharding, words):
    tensors = {"w": random_tensor("F32", [2, 2])}
    write_file(tmp_path / "m.safetensors", tensors, {"DCP_SHARDING_INFO": sharding})
    refused("corrupt_checkpoint", words, tmp_path, {"w": torch.zeros(2, 2)})


# Files that change

@pytest.mark.parametrize("what, module, name", [
    ("dcp", _dcp_plan, "cut"), ("safetensors", _dcp_plan, "cut"), ("safetensors", _dcp_folder, "_starts_of"),
])
def test_files_that_change(saved, safetensors_folder, what, module, name, monkeypatch):
    folder = (saved if what == "dcp" else safetensors_folder)({"a": torch.ones(8)})
    [file] = folder.glob("*.distcp" if what == "dcp" else "*.safetensors")
    planner, real = Planner({"a": (torch.zeros(8), (0,))}), getattr(module, name)

    def change(*args):  # once it is known where the item lies
        with open(file, "r+b") as opened:
            opened.seek(-1, os.SEEK_END)
            opened.write(b"x")
        return real(*args)

    monkeypatch.setattr(module, name, change)
    with pytest.raises(inrush.Error, match=f"{file.name}.*changed") as caught:
        read(folder, planner)
    assert caught.value.code == "corrupt_checkpoint" and not planner.committed


# A GPU

def test_into_memory_of_devices(tmp_path, driver, nothing_left, fake_torch, monkeypatch):
    def device(self):
        number = driver.device_of(self.target.data_ptr())
        return "cpu" if number is None else f"cuda:{number}"

    monkeypatch.setattr(_dcp_reads.TensorRead, "device", property(device))
    values = random_values(torch.float32, (64, 96))
    folder = write_dcp(tmp_path / "step", {"b": (values, grid((64, 96), (1, 1)))})
    loader = inrush.Loader(cuda_library=driver.path)
    rows = driver.empty(20 * 96 * 4, 0).view(torch.float32).view(20, 96)
    columns = driver.empty(64 * 10 * 4, 1).view(torch.float32).view(64, 10)
    read(folder, Planner({"b": (rows, (7, 0))}), loader=loader)
    assert driver.bytes_of(rows) == raw(values[7:27])
    read(folder, Planner({"b": (columns, (0, 30))}), loader=loader)
    assert driver.bytes_of(columns) == raw(values[:, 30:40])
    del rows, columns
    loader.release_idle()
    del loader


# The page

PAGE = "docs/torch-checkpoints.md"


def test_the_examples_of_the_page(source_folder, make_checkpoint, saved, tmp_path, capsys):
    weight = random_values(torch.float32, (32, 64))
    torch.save({"weight": weight}, tmp_path / "model.pt")
    norm = {"model.norm.weight": random_tensor("BF16", [8])}
    paths = {
        "/checkpoints/model.pt": tmp_path / "model.pt",
        "/checkpoints/step-1000": saved({"model": {"weight": weight}, "step": 1000}),
        "/models/llama": make_checkpoint("llama", norm, shards=1),
    }
    blocks = re.findall(r"^```python\n(.*?)^```$", (source_folder / PAGE).read_text(), re.M | re.S)
    printed = []
    for code in blocks:
        for place, path in paths.items():
            code = code.replace(f'"{place}"', repr(str(path)))
        exec(compile(code.replace('"cuda:0"', '"cpu"'), "example", "exec"), {"__name__": "__main__"})
        printed.append(capsys.readouterr().out)
    assert len(blocks) == 3 and printed[0] == "{'weight': (32, 64)}\n"
    assert printed[1].startswith("1000 tensor(") and "bfloat16" in printed[2]


# Several processes

WORLD = """
    import os, sys
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def values():
        generator = torch.Generator().manual_seed(1)
        return {"w": torch.randn(10, 6, generator=generator), "v": torch.randn(7, generator=generator)}

    def whole(tensor):
        return tensor.full_tensor()

    def check(folder, mesh, placements):
        import inrush.dcp
        target = {name: distribute_tensor(torch.zeros_like(value), mesh, placements(value))
                  for name, value in values().items()}
        dcp.load(target, storage_reader=inrush.dcp.Reader(folder))
        for name, value in values().items():
            assert torch.equal(whole(target[name]), value), (folder, name)

    def work(rank, folder):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        rows = lambda value: [Shard(0)]
        columns = lambda value: [Shard(value.ndim - 1)]
        everywhere = lambda value: [Replicate()]
        state = {name: distribute_tensor(value, mesh, rows(value)) for name, value in values().items()}
        dcp.save(state, checkpoint_id=f"{folder}/dcp")
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(f"{folder}/hf", save_distributed=True))
        for kind in ("dcp", "hf"):
            for placements in (rows, columns, everywhere):
                check(f"{folder}/{kind}", mesh, placements)
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
        import inrush.dcp
        for kind in ("dcp", "hf"):
            target = {name: torch.zeros_like(value) for name, value in values().items()}
            dcp.load(target, storage_reader=inrush.dcp.Reader(f"{sys.argv[1]}/{kind}"))
            assert all(torch.equal(target[name], value) for name, value in values().items())
        print("equal")
"""


def test_resharding_in_a_world_of_two(run_python, tmp_path):
    finished = run_python(WORLD, tmp_path, timeout=240, OMP_NUM_THREADS=1).check()
    assert finished.stdout.endswith("equal\n")
