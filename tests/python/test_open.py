"""inrush.open(): what it says of a checkpoint, which paths it takes, and what it raises."""
import concurrent.futures
import copy
import errno
import json
import multiprocessing
import os
import pathlib
import pickle

import inrush
import pytest
from conftest import DTYPE_BITS


def write_header(path, header, data_bytes):
    """A file with exactly this header; returns its size."""
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(data_bytes)
    with open(path, "wb") as file:
        file.write(content)
    return len(content)


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_bytes(path, *names, metadata=None):
    """A file with one tensor of four bytes for each name."""
    header = {} if metadata is None else {"__metadata__": metadata}
    for i, name in enumerate(names):
        header[name] = entry("U8", [4], 4 * i, 4 * i + 4)
    return write_header(path, header, 4 * len(names))


def write_index(path, weight_map):
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


@pytest.fixture
def one_file(tmp_path):
    path = tmp_path / "model.safetensors"
    write_bytes(path, "a", "b")
    return path


# --- what it says ---


def test_the_order_is_that_of_the_files_and_of_the_places_in_them(tmp_path):
    write_header(tmp_path / "2.safetensors", {"m": entry("U8", [1], 0, 1)}, 1)
    # The header's own order is not that of the bytes.
    header = {"z": entry("U8", [2], 4, 6), "a": entry("F32", [1], 0, 4), "k": entry("U8", [3], 6, 9)}
    write_header(tmp_path / "1.safetensors", header, 9)
    checkpoint = inrush.open(tmp_path)
    assert list(checkpoint) == ["a", "z", "k", "m"]
    paths = [file.path for file in checkpoint.files]
    assert paths == [str(tmp_path / "1.safetensors"), str(tmp_path / "2.safetensors")]


def test_every_element_type_has_its_name_shape_and_place(tmp_path):
    header, place = {}, 0
    for dtype, bits in DTYPE_BITS.items():
        nbytes = 3 * 8 * bits // 8
        header[f"one.{dtype}"] = entry(dtype, [3, 8], place, place + nbytes)
        place += nbytes
    size = write_header(tmp_path / "model.safetensors", header, place)
    checkpoint = inrush.open(tmp_path)
    assert len(checkpoint) == len(DTYPE_BITS) == 22
    data_offset = checkpoint.files[0].data_offset
    assert data_offset == size - place
    for dtype, bits in DTYPE_BITS.items():
        tensor = checkpoint[f"one.{dtype}"]
        begin = data_offset + header[tensor.name]["data_offsets"][0]
        assert (tensor.dtype, tensor.shape, tensor.nbytes, tensor.offset) == (dtype, (3, 8), 3 * bits, begin)
        assert tensor.file == str(tmp_path / "model.safetensors")


def test_scalars_and_tensors_without_elements(tmp_path):
    header = {
        "scalar": entry("F64", [], 0, 8),
        "none": entry("F32", [0], 8, 8),
        "flat": entry("BF16", [5, 0, 7], 8, 8),
    }
    write_header(tmp_path / "model.safetensors", header, 8)
    checkpoint = inrush.open(tmp_path)
    shapes = {name: (tensor.shape, tensor.nbytes) for name, tensor in checkpoint.items()}
    assert shapes == {"scalar": ((), 8), "none": ((0,), 0), "flat": ((5, 0, 7), 0)}


def test_sizes_of_the_files_and_of_all_tensors(tmp_path):
    sizes = [write_bytes(tmp_path / "1.safetensors", "a", "b"), write_bytes(tmp_path / "2.safetensors", "c")]
    checkpoint = inrush.open(tmp_path)
    assert [file.nbytes for file in checkpoint.files] == sizes
    assert [file.nbytes - file.data_offset for file in checkpoint.files] == [8, 4]
    assert checkpoint.nbytes == 12


def test_a_checkpoint_without_tensors(tmp_path):
    write_header(tmp_path / "model.safetensors", {}, 0)
    checkpoint = inrush.open(tmp_path)
    assert (len(checkpoint), list(checkpoint), checkpoint.nbytes, len(checkpoint.files)) == (0, [], 0, 1)


@pytest.mark.parametrize("metadata", [None, {}])
def test_metadata_is_an_empty_dict_where_there_is_none(tmp_path, metadata):
    write_bytes(tmp_path / "model.safetensors", "a", metadata=metadata)
    checkpoint = inrush.open(tmp_path)
    assert checkpoint.metadata == {}
    assert checkpoint.files[0].metadata == {}


def test_metadata_of_several_files(tmp_path):
    write_bytes(tmp_path / "1.safetensors", "a", metadata={"format": "pt", "größe": "groß"})
    write_bytes(tmp_path / "2.safetensors", "b")
    write_bytes(tmp_path / "3.safetensors", "c", metadata={"format": "np", "only here": ""})
    checkpoint = inrush.open(tmp_path)
    assert checkpoint.metadata == {"format": "pt", "größe": "groß", "only here": ""}
    assert [file.metadata.get("format") for file in checkpoint.files] == ["pt", None, "np"]


def test_what_is_left_unread_is_noted(tmp_path, one_file):
    assert inrush.open(one_file).notes == []
    write_bytes(tmp_path / "spare.safetensors", "c")
    checkpoint = inrush.open(tmp_path)
    assert list(checkpoint) == ["a", "b"]
    (note,) = checkpoint.notes
    assert "model.safetensors" in note and str(tmp_path) in note


# --- a mapping ---


def test_it_is_a_mapping(one_file):
    checkpoint = inrush.open(one_file)
    assert len(checkpoint) == 2
    assert list(checkpoint) == list(checkpoint.keys()) == ["a", "b"]
    assert [tensor.name for tensor in checkpoint.values()] == ["a", "b"]
    assert [(name, tensor.name) for name, tensor in checkpoint.items()] == [("a", "a"), ("b", "b")]
    assert dict(checkpoint)["b"].offset == checkpoint["b"].offset
    assert checkpoint.get("b").name == "b"


@pytest.mark.parametrize("absent", ["c", "", "a\0", "ä", "\udc80", b"a", 0, None, ("a",), 1.5])
def test_what_is_no_name_of_a_tensor_is_not_in_it(one_file, absent):
    checkpoint = inrush.open(one_file)
    assert absent not in checkpoint
    assert checkpoint.get(absent) is None
    assert checkpoint.get(absent, "nothing") == "nothing"
    with pytest.raises(KeyError) as raised:
        checkpoint[absent]
    assert raised.value.args == (absent,)


def test_names_are_any_text(tmp_path):
    names = ["ü.weight", "重み", "🚀", "a\nb", 'quote"', "back\\slash", " ", "nul\0"]
    write_bytes(tmp_path / "model.safetensors", *names)
    checkpoint = inrush.open(tmp_path)
    assert list(checkpoint) == names
    assert all(checkpoint[name].name == name for name in names)


def test_what_it_shows_outlives_it(one_file):
    checkpoint = inrush.open(one_file)
    tensor, file, names = checkpoint["a"], checkpoint.files[0], iter(checkpoint)
    del checkpoint
    one_file.unlink()
    assert (tensor.name, tensor.shape, tensor.file, file.path) == ("a", (4,), str(one_file), str(one_file))
    assert list(names) == ["a", "b"]


def test_text_for_people(one_file):
    checkpoint = inrush.open(one_file)
    assert repr(checkpoint["a"]) == "<inrush.TensorInfo 'a' U8 (4,) 4 bytes>"
    assert repr(str(one_file)) in repr(checkpoint) and "2 tensors" in repr(checkpoint)
    assert repr(str(one_file)) in repr(checkpoint.files[0])


def test_no_file_stays_open(tmp_path):
    for number in range(20):
        write_bytes(tmp_path / f"{number}.safetensors", f"tensor {number}")
    before = os.listdir("/proc/self/fd")
    checkpoint = inrush.open(tmp_path)
    assert os.listdir("/proc/self/fd") == before
    assert len(checkpoint.files) == 20


def test_the_selection_of_a_load_is_known_without_reading(one_file):
    checkpoint = inrush.open(one_file)
    one_file.unlink()
    assert [tensor.name for tensor in checkpoint.selection()] == ["a", "b"]
    assert checkpoint.selection(only=[]) == []
    (part,) = checkpoint.selection(only=["b"], slices={"b": (0, 1, 2)})
    assert (part.name, part.shape, part.nbytes) == ("b", (2,), 2)


# --- paths ---


def test_a_file_a_folder_and_an_index(tmp_path):
    write_bytes(tmp_path / "model-1.safetensors", "a", "b")
    write_bytes(tmp_path / "model-2.safetensors", "c")
    index = write_index(
        tmp_path / "model.safetensors.index.json",
        {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"},
    )
    assert list(inrush.open(tmp_path)) == ["a", "b", "c"]
    assert list(inrush.open(index)) == ["a", "b", "c"]
    assert list(inrush.open(tmp_path / "model-2.safetensors")) == ["c"]
    assert inrush.open(index).path == str(index)


def test_an_index_decides_unless_it_is_to_be_ignored(tmp_path):
    write_bytes(tmp_path / "1.safetensors", "a", "b")
    write_bytes(tmp_path / "2.safetensors", "c")
    write_index(tmp_path / "model.safetensors.index.json", {"a": "1.safetensors"})
    checkpoint = inrush.open(tmp_path)
    assert list(checkpoint) == ["a"]
    assert any("2.safetensors" in note for note in checkpoint.notes)
    assert list(inrush.open(tmp_path, ignore_index=True)) == ["a", "b", "c"]


def test_a_snapshot_of_the_hugging_face_cache(tmp_path):
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    write_bytes(repository / "blobs" / "feed", "a")
    (snapshot / "model.safetensors").symlink_to("../../blobs/feed")
    checkpoint = inrush.open(snapshot)
    assert list(checkpoint) == ["a"]
    assert checkpoint["a"].file == str(snapshot / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="snapshots"):
        inrush.open(repository)


@pytest.mark.parametrize("spell", [str, os.fsencode, pathlib.Path, pathlib.PurePosixPath])
def test_a_path_is_text_bytes_or_pathlike(one_file, spell):
    assert inrush.open(spell(one_file)).path == str(one_file)


def test_a_pathlike_of_bytes(one_file):
    class BytesPath:
        def __fspath__(self):
            return os.fsencode(one_file)

    assert list(inrush.open(BytesPath())) == ["a", "b"]


def test_a_relative_path(one_file, monkeypatch):
    monkeypatch.chdir(one_file.parent)
    assert inrush.open(one_file.name).path == one_file.name
    assert list(inrush.open(".")) == ["a", "b"]


def test_a_path_that_is_not_utf_8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)
    path = folder + b"/\xc3(.safetensors"
    write_bytes(path, "a")
    for spelling in (path, os.fsdecode(path), folder):
        checkpoint = inrush.open(spelling)
        assert os.fsencode(checkpoint.path) == os.fsencode(spelling)
        assert os.fsencode(checkpoint.files[0].path) == os.fsencode(checkpoint["a"].file) == path
        repr(checkpoint).encode("utf-8", "backslashreplace")
        assert inrush.load(checkpoint)["a"].tobytes() == bytes(4)
    with pytest.raises(FileNotFoundError) as raised:
        inrush.open(folder + b"\xff")
    str(raised.value).encode()  # which can be printed


def test_a_checkpoint_is_what_it_is(one_file):
    checkpoint = inrush.open(one_file)
    assert inrush.open(checkpoint) is checkpoint


@pytest.mark.parametrize("no_path", [3, None, ["a"], object()])
def test_what_is_no_path_is_a_type_error(no_path):
    with pytest.raises(TypeError):
        inrush.open(no_path)


# --- errors ---


def raised_by(path, **arguments):
    with pytest.raises(inrush.Error) as raised:
        inrush.open(path, **arguments)
    return raised.value


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    path = tmp_path / "absent.safetensors"
    error = raised_by(path)
    assert isinstance(error, FileNotFoundError) and not isinstance(error, PermissionError)
    assert (error.code, error.system_error, error.errno) == ("not_found", errno.ENOENT, errno.ENOENT)
    assert error.report is None
    assert str(path) in str(error)


def test_a_folder_without_weights_and_a_missing_shard(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"")
    error = raised_by(tmp_path)
    assert (error.code, isinstance(error, FileNotFoundError)) == ("not_found", True)
    assert "weights.bin" in str(error)
    write_bytes(tmp_path / "1.safetensors", "a")
    shards = {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}
    write_index(tmp_path / "model.safetensors.index.json", shards)
    error = raised_by(tmp_path)
    assert (error.code, isinstance(error, FileNotFoundError)) == ("not_found", True)
    assert "2.safetensors" in str(error) and "3.safetensors" in str(error)


UNREADABLE = """
import os, tempfile
import inrush
path = tempfile.mkdtemp()  # tmp_path is closed to others
os.chmod(path, 0o755)
file = os.path.join(path, "model.safetensors")
with open(file, "wb") as opened:
    opened.write((2).to_bytes(8, "little") + b"{}")
assert len(inrush.open(file)) == 0
os.chmod(file, 0)
if os.geteuid() == 0:
    os.seteuid(65534)  # root may read everything
try:
    inrush.open(file)
except PermissionError as error:
    assert isinstance(error, inrush.Error) and not isinstance(error, FileNotFoundError)
    print(error.code, error.errno == 13, error.system_error == 13, file in str(error))
finally:
    if os.getuid() == 0:
        os.seteuid(0)
    os.unlink(file)
    os.rmdir(path)
"""


def test_a_file_that_may_not_be_read_is_a_permission_error(run_python):
    assert run_python(UNREADABLE).check().stdout == "not_found True True True\n"


def test_a_corrupt_header_names_the_file_and_the_tensor(tmp_path):
    path = tmp_path / "model.safetensors"
    write_header(path, {"fine": entry("U8", [4], 0, 4), "layers.7.weight": entry("F32", [3], 4, 12)}, 12)
    error = raised_by(path)
    assert type(error) is inrush.Error
    assert error.code == "corrupt_checkpoint"
    assert str(path) in str(error) and "layers.7.weight" in str(error)


def test_a_short_shard_is_found_before_anything_is_loaded(tmp_path):
    write_bytes(tmp_path / "1.safetensors", "a")
    size = write_bytes(tmp_path / "2.safetensors", "b")
    os.truncate(tmp_path / "2.safetensors", size - 1)
    error = raised_by(tmp_path)
    assert error.code == "corrupt_checkpoint"
    assert "2.safetensors" in str(error) and str(size) in str(error) and str(size - 1) in str(error)


def test_a_pointer_of_git_lfs_is_called_by_its_name(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n")
    error = raised_by(path)
    assert error.code == "corrupt_checkpoint"
    assert "git-lfs" in str(error)


@pytest.mark.parametrize("path", ["", "\0", "/dev/null", "a\0b"])
def test_what_cannot_be_a_checkpoint_is_an_invalid_request(path):
    error = raised_by(path)
    assert (error.code, isinstance(error, ValueError)) == ("invalid_request", True)


def test_nothing_behind_a_nul_is_dropped(one_file):
    assert raised_by(str(one_file) + "\0.bak").code == "invalid_request"


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    error = raised_by(tmp_path / "model.safetensors")
    assert error.code == "invalid_request" and "FIFO" in str(error)


def test_two_indexes_are_a_choice_for_the_caller(tmp_path):
    write_bytes(tmp_path / "1.safetensors", "a")
    for name in ("model", "other"):
        write_index(tmp_path / f"{name}.safetensors.index.json", {"a": "1.safetensors"})
    assert raised_by(tmp_path).code == "invalid_request"
    assert list(inrush.open(tmp_path / "other.safetensors.index.json")) == ["a"]


@pytest.mark.parametrize("pass_on", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_are_copied_whole(tmp_path, pass_on):
    error = raised_by(tmp_path / "absent")
    error.overwritten = ["weight"]
    error.add_note("while the model was set up")
    passed = pass_on(error)
    assert type(passed) is type(error) and passed is not error
    assert (passed.code, passed.system_error, passed.errno) == ("not_found", errno.ENOENT, errno.ENOENT)
    assert (str(passed), passed.overwritten, passed.__notes__) == (str(error), ["weight"], error.__notes__)


def test_errors_come_out_of_worker_processes(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"short")
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        missing = pool.submit(inrush.open, tmp_path / "absent").exception(timeout=60)
        corrupt = pool.submit(inrush.open, tmp_path / "bad.safetensors").exception(timeout=60)
    assert isinstance(missing, FileNotFoundError)
    assert (missing.code, missing.errno) == ("not_found", errno.ENOENT)
    assert (type(corrupt), corrupt.code) == (inrush.Error, "corrupt_checkpoint")
    assert str(tmp_path / "bad.safetensors") in str(corrupt)
