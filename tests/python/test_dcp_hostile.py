"""Checkpoints of torch.distributed.checkpoint that lie: inrush.dcp.Reader refuses them and runs nothing."""
import dataclasses
import os
import pickle
import resource
import subprocess

import inrush
import inrush.dcp
import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_folders import Attack, change_item, first_value, load, refused
from inrush.torch import _dcp_metadata
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


@pytest.fixture
def saved(tmp_path):
    """saved(state) -> folder of DCP."""
    def save(state, name="step"):
        dcp.save(state, checkpoint_id=tmp_path / name)
        return tmp_path / name
    return save


# Metadata without trust

def test_metadata_is_what_torch_reads(saved):
    wide = torch.ones(2, dtype=torch.complex128)
    folder = saved({"m": {"w": torch.ones(2, 3), "l": [1, 2]}, "z": wide, "s": "x"})
    theirs = FileSystemReader(folder).read_metadata()
    ours = inrush.dcp.Reader(folder).read_metadata()
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert (ours.storage_meta.checkpoint_id, ours.storage_meta.save_id) == (
        str(theirs.storage_meta.checkpoint_id), theirs.storage_meta.save_id)
    stored = {(index.fqn, index.offset, index.index, *item[:3]) for index, item in ours.storage_data.items()}
    assert stored == {
        (index.fqn, index.offset, index.index, item.relative_path, item.offset, item.length)
        for index, item in theirs.storage_data.items()}
    assert getattr(ours, "version", None) == getattr(theirs, "version", None)


def test_metadata_of_an_older_torch():
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    metadata = dcp_metadata.Metadata({"w": dcp_metadata.TensorStorageMetadata(
        TensorProperties(dtype=torch.float16), torch.Size([2]),
        [dcp_metadata.ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))])}, storage_data={})
    del metadata.storage_meta, metadata.planner_data
    ours = _dcp_metadata.read_metadata("old", pickle.dumps(metadata, protocol=2))
    assert ours.state_dict_metadata["w"].properties.dtype == torch.float16


def attacks(marker):
    command = f"touch '{marker}'"
    yield Attack(os.system, (command,))
    yield Attack(eval, (f"__import__('os').system({command!r})",))
    yield Attack(getattr, (dcp_metadata.Metadata, "__init__"))
    yield Attack(torch.load, ("x",))
    yield Attack(subprocess.Popen, (["touch", str(marker)],))


@pytest.mark.parametrize("i", range(5))
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_code_in_metadata_does_not_run(saved, tmp_path, i, protocol):
    attack = list(attacks(tmp_path / "marker"))[i]
    folder = saved({"a": torch.ones(2)})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data = {"a": attack}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=protocol))
    with pytest.raises(inrush.Error, match="its pickle names") as caught:
        inrush.dcp.Reader(folder).read_metadata()
    assert caught.value.code == "invalid_request" and str(folder) in str(caught.value)
    refused("invalid_request", "does not write there", folder, {"a": torch.zeros(2)})
    assert not (tmp_path / "marker").exists()


def test_a_pickle_cannot_change_classes_of_torch(tmp_path):
    """BUILD with attributes on a class, which reaches the class itself where the unpickler gives it out."""
    data = (b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n(N}X\x05\x00\x00\x00patchK\x01stb.")
    victim = pickle.loads(data)
    assert victim is dcp_metadata.Metadata and victim.patch == 1
    del victim.patch
    with pytest.raises(inrush.Error) as caught:
        _dcp_metadata.read_metadata("m", data)
    assert caught.value.code == "corrupt_checkpoint"
    assert not hasattr(dcp_metadata.Metadata, "patch")


def test_classes_that_the_user_allowed(saved):
    folder = saved({"a": torch.ones(2)})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data["more"] = Extra(4)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(inrush.Error, match="test_dcp_hostile.Extra.*add_safe_globals"):
        inrush.dcp.Reader(folder).read_metadata()
    with torch.serialization.safe_globals([Extra]):
        assert inrush.dcp.Reader(folder).read_metadata().planner_data["more"] == Extra(4)


@dataclasses.dataclass
class Extra:
    value: int


@pytest.mark.parametrize("words, change", [
    ("outside of the folder", lambda m: setattr(first_value(m.storage_data), "relative_path", "../other")),
    ("outside of the folder", lambda m: setattr(first_value(m.storage_data), "relative_path", "/etc/passwd")),
    ("number should be", lambda m: setattr(first_value(m.storage_data), "offset", -1)),
    ("number should be", lambda m: setattr(first_value(m.storage_data), "length", "1")),
    ("number should be", lambda m: setattr(first_value(m.storage_data), "offset", 2**70)),
    ("element type", lambda m: setattr(m.state_dict_metadata["a"].properties, "dtype", 3)),
    ("leaves tensor", lambda m: setattr(m.state_dict_metadata["a"].chunks[0], "offsets", torch.Size([1, 0]))),
    ("leaves tensor", lambda m: setattr(m.state_dict_metadata["a"].chunks[0], "sizes", torch.Size([2]))),
    ("elements", lambda m: setattr(m.state_dict_metadata["a"], "size", torch.Size([2**40, 2**40]))),
    ("leave a part of it out", lambda m: setattr(m.state_dict_metadata["a"], "chunks", [])),
    ("leave a part of it out",
     lambda m: setattr(m.state_dict_metadata["a"].chunks[0], "sizes", torch.Size([2, 1]))),
    ("list should be", lambda m: setattr(m.state_dict_metadata["a"], "chunks", None)),
    ("mapping should be", lambda m: setattr(m, "storage_data", [])),
    ("mapping should be", lambda m: setattr(m, "state_dict_metadata", None)),
    ("should be", lambda m: m.state_dict_metadata.update(a=5)),
    ("among the planner's data", lambda m: setattr(m, "planner_data", [dcp_metadata.StorageMeta])),
])
def test_metadata_that_makes_no_sense(saved, words, change):
    folder = saved({"a": torch.ones(2, 2)})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(inrush.Error, match=words) as caught:
        inrush.dcp.Reader(folder).read_metadata()
    assert caught.value.code == "corrupt_checkpoint" and str(folder) in str(caught.value)


@pytest.mark.parametrize("data", [
    b"\x80\x02Nr\xff\xff\xff\xff.",  # a memo of 2**32 entries
    b"\x80\x05\x96\0\0\0\x40\0\0\0\0.",  # a bytearray of 1 GiB
    b"\x80\x04\x95\0\0\0\0\x20\0\0\0N.", b"\x80\x04\x8d\0\0\0\0\x20\0\0\0N.",
    b"\x80\x02(ccopyreg\n_reconstructor\nN.", b"\x80\x02\x82\x01.", b"(S'true'\nios\nsystem\n.", b"Pid\n.",
    b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    # Tuples of two references to one: small, and 2**40 values to hash, to compare or to print.
    b"\x80\x04N" + b"2\x86" * 40 + b".",
    b"\x80\x04}N" + b"2\x86" * 40 + b"K\x01s.",
    b"\x80\x04]N" + b"2\x86" * 40 + b"a.",
])
def test_pickles_that_ask_for_much_or_for_odd_things(data):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(inrush.Error) as caught:
        _dcp_metadata.read_metadata("m", data)
    assert caught.value.code in ("corrupt_checkpoint", "invalid_request")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_metadata_that_was_cut_or_changed_anywhere(saved):
    data = (saved({"a": torch.ones(2, 2), "s": 1}) / ".metadata").read_bytes()
    for length in range(len(data)):
        with pytest.raises(inrush.Error):
            _dcp_metadata.read_metadata("m", data[:length])
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        try:
            _dcp_metadata.read_metadata("m", bytes(changed))
        except inrush.Error as error:
            assert error.code in ("corrupt_checkpoint", "invalid_request")


# Objects

class Setting:
    """Of these tests."""

    def __eq__(self, other):
        return type(other) is Setting


def test_objects_are_refused_unless_they_are_plain(saved, tmp_path):
    folder = saved({"a": torch.ones(2), "o": Setting()})
    target = {"a": torch.zeros(2), "o": None}
    text = refused("invalid_request", "Reader(path, weights_only=False)", folder, target)
    assert "Setting" in text and target["a"].tolist() == [0, 0]
    load(folder, target, weights_only=False)
    assert target["o"] == Setting()
    with torch.serialization.safe_globals([Setting]):
        load(folder, target)
    folder = saved({"o": Attack(os.system, (f"touch '{tmp_path / 'marker'}'",))}, "attack")
    refused("invalid_request", "system", folder, {"o": None})
    assert not (tmp_path / "marker").exists()


def test_transformed_items(saved):
    from torch.distributed.checkpoint._extension import ZStandard

    if not ZStandard.is_available():
        folder = saved({"a": torch.ones(2)})
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        first_value(metadata.storage_data).transform_descriptors = ["stream.zstd"]
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    else:
        folder = saved({}, "none").with_name("zstd")
        dcp.save({"a": torch.ones(2)}, storage_writer=dcp.FileSystemWriter(folder, _extensions=[ZStandard()]))
    refused("invalid_request", "FileSystemReader", folder, {"a": torch.zeros(2)})


# Files that lie

def test_items_that_leave_their_file(saved):
    folder = saved({"a": torch.ones(2)})
    size = os.path.getsize(folder / "__0_0.distcp")
    change_item(folder, offset=size - 10)
    text = refused("corrupt_checkpoint", "leaves the file", folder, {"a": torch.zeros(2)})
    assert str(folder / "__0_0.distcp") in text
    change_item(folder, offset=1, length=size - 1)
    refused("invalid_request", "no zip archive", folder, {"a": torch.zeros(2)})
    change_item(folder, offset=0, length=size - 30)
    refused("corrupt_checkpoint", "directory at its end", folder, {"a": torch.zeros(2)})
    change_item(folder, relative_path="absent.distcp")
    refused("not_found", "absent.distcp", folder, {"a": torch.zeros(2)})
    os.unlink(folder / ".metadata")
    refused("not_found", "neither .metadata", folder, {"a": torch.zeros(2)})


def test_another_tensor_than_the_metadata_says(saved):
    folder = saved({"a": torch.ones(2)})
    other = saved({"a": torch.ones(3)}, "other")
    os.replace(other / ".metadata", folder / ".metadata")
    refused("corrupt_checkpoint", "shape [2], and [3]", folder, {"a": torch.zeros(3)})
    torch.save({"a": 1}, folder / "__0_0.distcp")
    change_item(folder, length=os.path.getsize(folder / "__0_0.distcp"))
    refused("corrupt_checkpoint", "should be a tensor", folder, {"a": torch.zeros(3)})


def test_code_in_an_item_does_not_run(saved, tmp_path):
    folder = saved({"a": torch.ones(2)})
    torch.save(Attack(os.system, (f"touch '{tmp_path / 'marker'}'",)), folder / "__0_0.distcp")
    change_item(folder, length=os.path.getsize(folder / "__0_0.distcp"))
    refused("invalid_request", "posix.system", folder, {"a": torch.zeros(2)})
    assert not (tmp_path / "marker").exists()
