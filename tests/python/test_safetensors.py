"""inrush.safetensors beside the package that it stands in for: same results, same refusals."""

import contextlib
import gc
import io
import os
import pickle
import re
import sys
import types
from pathlib import Path

import inrush
import inrush.safetensors
import inrush.safetensors.numpy
import inrush.safetensors.torch
import numpy
import pytest
import safetensors
import safetensors.torch
import torch
from conftest import random_tensor, write_file
from inrush.safetensors import _slices, _source
from reference import OURS, REFERENCE, bytes_of, same
from resources import descriptor_count

TORCH_DTYPES = [
    "BOOL",
    "F4",
    "U8",
    "I8",
    "F8_E5M2",
    "F8_E4M3",
    "F8_E8M0",
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
    "I16",
    "U16",
    "F16",
    "BF16",
    "I32",
    "U32",
    "F32",
    "C64",
    "F64",
    "I64",
    "U64",
]
NUMPY_DTYPES = ["BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"]


def of_dtypes(dtypes):
    tensors = {}
    for dtype in reversed(dtypes):  # so that the order of the names is not that of the file
        tensors[f"{dtype}.matrix"] = random_tensor(dtype, [6, 8])
        tensors[f"{dtype}.empty"] = random_tensor(dtype, [0, 4])
        if dtype != "F4":
            tensors[f"{dtype}.scalar"] = random_tensor(dtype, [])
    return tensors


@pytest.fixture(name="model")
def model_fixture(make_checkpoint):
    return make_checkpoint("model.safetensors", of_dtypes(TORCH_DTYPES), metadata={"format": "pt", "b": "c"})


@pytest.fixture(name="arrays")
def arrays_fixture(make_checkpoint):
    return make_checkpoint("arrays.safetensors", of_dtypes(NUMPY_DTYPES))


@pytest.fixture(params=["direct", "engine"])
def way(request, monkeypatch):
    """How tensors in host memory are read: by one read each, or by loads of the engine."""
    if request.param == "engine":
        monkeypatch.setattr(_slices, "DIRECT_BYTES_MAX", -1)
    return request.param


# Handles


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("framework", ["pt", "torch", "pytorch"])
def test_a_handle_for_torch_gives_what_the_reference_gives(model, framework):
    with OURS["safe_open"](model, framework) as ours, REFERENCE["safe_open"](model, framework) as theirs:
        assert ours.keys() == theirs.keys()
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata() == {"format": "pt", "b": "c"}
        whole, expected = ours.get_tensors(), theirs.get_tensors()
        assert list(whole) == list(expected)
        assert type(whole) is dict
        streamed = dict(ours.tensors())
        assert streamed.keys() == expected.keys()
        for name in theirs.keys():  # noqa: SIM118
            for tensor in (ours.get_tensor(name), whole[name], streamed[name]):
                same(tensor, theirs.get_tensor(name))
            part = ours.get_slice(name)
            assert part.get_dtype() == theirs.get_slice(name).get_dtype()
            assert part.get_shape() == theirs.get_slice(name).get_shape()
            assert isinstance(part.get_shape(), list)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("framework", ["np", "numpy"])
def test_a_handle_for_numpy_gives_what_the_reference_gives(arrays, framework):
    with OURS["safe_open"](arrays, framework) as ours, REFERENCE["safe_open"](arrays, framework) as theirs:
        assert ours.metadata() is theirs.metadata() is None
        whole, expected = ours.get_tensors(), theirs.get_tensors()
        assert list(whole) == list(expected) == list(dict(ours.tensors()))
        for name, array in expected.items():
            for tensor in (ours.get_tensor(name), whole[name]):
                same(tensor, array)
                assert type(tensor) is numpy.ndarray
                assert tensor.flags.writeable


@pytest.mark.parametrize("framework", ["jax", "flax"])
def test_a_handle_for_jax_gives_what_the_reference_gives(arrays, framework):
    with OURS["safe_open"](arrays, framework) as ours, REFERENCE["safe_open"](arrays, framework) as theirs:
        for name, array in theirs.get_tensors().items():
            same(ours.get_tensor(name), array)
            assert type(ours.get_tensor(name)) is type(array)
        same(ours.get_slice("F32.matrix")[1:3, 2], theirs.get_slice("F32.matrix")[1:3, 2])
        assert {type(array) for array in ours.get_tensors().values()} == {type(array)}


def test_numpy_has_what_the_reference_has_no_array_for(model):
    with OURS["safe_open"](model, "np") as ours:
        assert str(ours.get_tensor("BF16.matrix").dtype) == "bfloat16"
        assert str(ours.get_slice("F8_E4M3.matrix")[:2].dtype) == "float8_e4m3fn"
        with pytest.raises(safetensors.SafetensorError, match=r"F4\.matrix.*numpy has no type for F4"):
            ours.get_tensor("F4.matrix")


@pytest.mark.parametrize("dtype", ["F6_E2M3", "F6_E3M2"])
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_what_no_framework_has_is_refused_by_name(make_checkpoint, dtype, framework):
    path = make_checkpoint("packed.safetensors", {"odd": (dtype, [4])})
    with OURS["safe_open"](path, framework) as ours:
        for use in (ours.get_tensors, lambda: ours.get_tensor("odd"), lambda: ours.get_slice("odd")[:]):
            with pytest.raises(
                safetensors.SafetensorError, match=f"packed.safetensors: tensor 'odd'.*{dtype}"
            ):
                use()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, None),
        ({}, {}),
        ({"a": "b"}, {"a": "b"}),
        ("null", None),
    ],
)
def test_metadata_is_none_only_where_there_is_none(tmp_path, written, expected):
    path = write_file(
        tmp_path / "a.safetensors",
        {"__metadata__x": random_tensor("U8", [8])},
        None if written == "null" else written,
    )
    if written == "null":
        content = path.read_bytes()
        header = b'{"__metadata__":null,' + content[9 : 8 + content[0]]
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + content[0] :])
    with OURS["safe_open"](path, "pt") as ours, REFERENCE["safe_open"](path, "pt") as theirs:
        assert ours.metadata() == theirs.metadata() == expected


@pytest.mark.usefixtures("way")
def test_tensors_and_slices_outlive_their_file(model):
    expected = REFERENCE["load_file"](model)
    before = descriptor_count()
    with OURS["safe_open"](model, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        part = file.get_slice("F32.matrix")
    model.unlink()
    same(part[2:4], expected["F32.matrix"][2:4])
    del file, part
    gc.collect()
    assert descriptor_count() == before
    for name, tensor in tensors.items():
        same(tensor, expected[name])


def test_a_slow_way_is_said_once(model, caplog):
    expected = REFERENCE["load_file"](model)
    with OURS["safe_open"](model, "pt") as file, caplog.at_level("WARNING", logger="inrush"):
        model.chmod(0o600)
        for _ in range(2):
            for name, tensor in file.get_tensors().items():
                same(tensor, expected[name])
    assert caplog.text.count("no load but one read a tensor") == 1


def test_a_closed_handle_refuses_everything(model):
    for package in (OURS, REFERENCE):
        with package["safe_open"](model, "pt") as file:
            pass
        for use in (
            file.keys,
            file.offset_keys,
            file.metadata,
            file.get_tensors,
            lambda file=file: file.get_tensor("F32.matrix"),
            lambda file=file: file.get_slice("F32.matrix"),
        ):
            with pytest.raises(safetensors.SafetensorError, match=r"^File is closed$"):
                use()
    with pytest.raises(inrush.Error, match="File is closed"):
        next(OURS["safe_open"].tensors(_closed(model)))


def _closed(path):
    file = OURS["safe_open"](path, "pt")
    file.__exit__(None, None, None)
    return file


@pytest.mark.usefixtures("way")
def test_several_files_are_one(make_checkpoint):
    parts = [
        {f"{letter}{number}": random_tensor("F32", [4, 2], seed=letter + str(number)) for number in (1, 0)}
        for letter in "ba"
    ]
    metadata = [{"one": "1", "both": "first"}, {"two": "2", "both": "second"}]
    paths = [
        make_checkpoint(f"part{i}.safetensors", part, metadata=metadata[i]) for i, part in enumerate(parts)
    ]
    with OURS["safe_open"](paths, framework="pt") as file:
        assert file.keys() == ["a0", "a1", "b0", "b1"]
        assert file.offset_keys() == ["b1", "b0", "a1", "a0"]
        assert file.metadata() == {"one": "1", "both": "first", "two": "2"}
        expected = {name: data for part in parts for name, (_, _, data) in part.items()}
        for tensors in (
            file.get_tensors(),
            dict(file.tensors()),
            {name: file.get_tensor(name) for name in file.offset_keys()},
        ):
            assert {name: bytes_of(tensor) for name, tensor in tensors.items()} == expected
        assert bytes_of(file.get_slice("a1")[1]) == expected["a1"][8:16]
    with pytest.raises(safetensors.SafetensorError, match=r"tensor 'b1' is in .*part0.* and in .*part0"):
        OURS["safe_open"]([paths[0], paths[0]], "pt")
    with OURS["safe_open"]([], "pt") as file:
        assert (file.keys(), file.metadata(), file.get_tensors()) == ([], None, {})


def test_a_folder_is_no_file(make_checkpoint):
    folder = make_checkpoint("folder", {"a": ("U8", [4])}, shards=1)
    for path in (folder, folder / "model.safetensors.index.json"):
        with pytest.raises(safetensors.SafetensorError, match=r"is no \.safetensors file"):
            OURS["safe_open"](path, "pt")


# Arguments and errors


@pytest.mark.parametrize("device", ["cpu", None, torch.device("cpu"), "cpu:0"])
def test_spellings_of_the_cpu(model, device):
    assert OURS["load_file"](model, device=device)["F32.matrix"].device == torch.device("cpu")
    assert OURS["safe_open"](model, "np", device).keys()


@pytest.mark.usefixtures("way")
def test_the_default_device_of_torch_changes_nothing(model):
    with torch.device("meta"):
        with OURS["safe_open"](model, "pt") as file:
            tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
            tensors += [file.get_slice(name)[..., None] for name in file.keys()]  # noqa: SIM118
        tensors += [*OURS["load_file"](model).values(), *OURS["load"](model.read_bytes()).values()]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}


def test_what_cannot_be_opened(model, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path, kind in (
        (model / "below", FileNotFoundError),
        (tmp_path / "fifo", inrush.Error),
        (tmp_path / "loop", safetensors.SafetensorError),
    ):
        with pytest.raises(kind):
            OURS["safe_open"](path, "pt")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", -1, 1.5, "mps", "meta"])
def test_what_is_no_device_is_refused(model, device):
    with pytest.raises(safetensors.SafetensorError, match="device"):
        OURS["safe_open"](model, "pt", device)


@pytest.mark.parametrize("package", [OURS, REFERENCE], ids=["ours", "reference"])
@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        (("absent", "pt"), {}, FileNotFoundError, r"^No such file or directory: absent$"),
        (("PATH", "x"), {}, safetensors.SafetensorError, "framework x is invalid"),
        (("PATH", None), {}, TypeError, None),
        ((None, "pt"), {}, TypeError, None),
        (("PATH", "pt"), {"backend": "x"}, safetensors.SafetensorError, "backend .x. is invalid"),
        (("PATH", "pt", "gpu"), {}, safetensors.SafetensorError, "device"),
        (
            ("PATH", "np", "cuda:0"),
            {},
            safetensors.SafetensorError,
            "Device cuda:0 is not supported for framework num",
        ),
        (("BROKEN", "pt"), {}, safetensors.SafetensorError, "^Error while deserializing header: "),
        (("PATH",), {}, TypeError, None),
    ],
)
def test_bad_calls_fail_alike(model, tmp_path, package, arguments, options, kind, message):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(model.read_bytes()[:-1])
    paths = {"PATH": model, "BROKEN": broken}
    with pytest.raises(kind, match=message) as caught:
        package["safe_open"](*(paths.get(argument, argument) for argument in arguments), **options)
    assert isinstance(caught.value, safetensors.SafetensorError) == (kind is safetensors.SafetensorError)


@pytest.mark.parametrize("framework", ["tf", "tensorflow", "mlx", "paddle"])
def test_other_frameworks_are_refused_by_name(model, framework):
    with pytest.raises(
        safetensors.SafetensorError, match=f'framework {framework} is not one .*"pt", "torch"'
    ):
        OURS["safe_open"](model, framework)


def test_an_unknown_tensor_is_refused_alike(model):
    for package in (OURS, REFERENCE):
        file = package["safe_open"](model, "pt")
        for use in (file.get_tensor, file.get_slice):
            with pytest.raises(safetensors.SafetensorError, match=r"^File does not contain tensor nope$"):
                use("nope")


def test_errors_are_of_both_worlds(model):
    file = OURS["safe_open"](model, "pt")
    with pytest.raises(inrush.safetensors.Error) as caught:
        file.get_tensor("nope")
    error = caught.value
    assert isinstance(error, (inrush.Error, inrush.safetensors.SafetensorError, ValueError))
    assert inrush.safetensors.SafetensorError is safetensors.SafetensorError
    assert error.code == "invalid_request"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code) == (type(error), str(error), error.code)
    with pytest.raises(FileNotFoundError) as missing:
        OURS["load_file"]("absent")
    assert isinstance(missing.value, inrush.Error)
    assert (missing.value.code, missing.value.errno) == ("not_found", 2)


def test_without_the_package(run_python, model):
    run_python(
        """
        import sys
        sys.modules["safetensors"] = None  # as if it were not installed
        import inrush
        import inrush.safetensors.torch
        path = sys.argv[1]
        assert inrush.safetensors.Error is inrush.safetensors.SafetensorError is inrush.Error
        assert len(inrush.safetensors.torch.load_file(path)) > 50
        try:
            inrush.safetensors.safe_open(path, "pt").get_tensor("nope")
        except inrush.Error as error:
            assert error.code == "invalid_request" and isinstance(error, ValueError)
        try:
            inrush.safetensors.torch.save_file
        except AttributeError:
            pass
        else:
            sys.exit("there is a save_file")
        try:
            with inrush.safetensors.patch():
                sys.exit("patched what is not there")
        except inrush.Error as error:
            assert error.code == "environment_unfit"
        """,
        model,
    ).check()


def test_importing_it_imports_no_framework(run_python):
    run_python("""
        import sys
        import inrush.safetensors
        heavy = {"torch", "numpy", "jax", "safetensors"} & set(sys.modules)
        assert not heavy, heavy
        """).check()


def test_saving_is_the_package_s_own(tmp_path):
    inrush.safetensors.torch.save_file({"a": torch.arange(3)}, tmp_path / "a.safetensors")
    assert inrush.safetensors.torch.save_file is safetensors.torch.save_file
    assert inrush.safetensors.numpy.save is safetensors.numpy.save
    assert inrush.safetensors.serialize_file is safetensors.serialize_file
    assert torch.equal(OURS["load_file"](tmp_path / "a.safetensors")["a"], torch.arange(3))
    with pytest.raises(AttributeError, match=r"inrush\.safetensors\.torch.*'nothing'"):
        inrush.safetensors.torch.nothing  # noqa: B018


# Bytes of a file


def test_load_takes_bytes(model, arrays):
    expected = REFERENCE["load_file"](model)
    ours = OURS["load"](model.read_bytes())
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        same(tensor, expected[name])
    of_numpy = inrush.safetensors.numpy.load(bytearray(arrays.read_bytes()))
    for name, array in inrush.safetensors.numpy.load_file(arrays).items():
        same(of_numpy[name], array)


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 8, b"\xff" * 40])
def test_broken_bytes_are_refused_alike(model, data):
    before = descriptor_count()
    for content in (data, model.read_bytes()[:-1], model.read_bytes()[:20]):
        for load in (OURS["load"], REFERENCE["load"]):
            with pytest.raises(safetensors.SafetensorError, match="Error while deserializing") as caught:
                load(content)
            assert "/proc" not in str(caught.value)
    assert descriptor_count() == before


# Files that change while they are open


def test_a_file_that_is_cut_while_it_is_open(model):
    file = OURS["safe_open"](model, "pt")
    os.truncate(model, model.stat().st_size - 200)
    with pytest.raises(
        safetensors.SafetensorError, match=r"model\.safetensors: (ends at byte|was written)"
    ) as caught:
        for name in file.offset_keys():
            file.get_tensor(name)
    assert caught.value.code == "corrupt_checkpoint"


@pytest.mark.usefixtures("way")
def test_a_file_that_is_written_to_while_it_is_open(model):
    file = OURS["safe_open"](model, "pt")
    with open(model, "r+b") as writer:
        writer.seek(-1, os.SEEK_END)
        writer.write(b"x")
    os.utime(model, ns=(1, 1))
    with pytest.raises(safetensors.SafetensorError) as caught:
        file.get_tensor("F32.matrix")
    assert caught.value.code == "corrupt_checkpoint"


@pytest.mark.usefixtures("way")
def test_what_is_open_stays_when_another_file_takes_its_name(model, tmp_path):
    expected = REFERENCE["load_file"](model)["F32.matrix"].clone()
    file = OURS["safe_open"](model, "pt")
    os.replace(write_file(tmp_path / "other", {"F32.matrix": random_tensor("F32", [6, 8], seed=2)}), model)
    same(file.get_tensor("F32.matrix"), expected)
    same(file.get_tensors()["F32.matrix"], expected)
    same(dict(file.tensors())["F32.matrix"], expected)
    same(file.get_slice("F32.matrix")[:, 2], expected[:, 2])


def test_a_header_and_a_descriptor_of_different_files_are_refused(model, tmp_path, monkeypatch):
    other = write_file(tmp_path / "other", {"a": random_tensor("F32", [6, 8])})
    open_checkpoint = _source._loads.open_checkpoint

    def replace_and_open(path):
        os.replace(other, path)
        return open_checkpoint(path)

    monkeypatch.setattr(_source._loads, "open_checkpoint", replace_and_open)
    with pytest.raises(safetensors.SafetensorError, match="while it was open"):
        OURS["safe_open"](model, "pt")


def test_a_load_of_another_file_than_was_opened_is_refused(model, tmp_path, monkeypatch):
    """Where the name is taken after the last look at it."""
    monkeypatch.setattr(_slices, "DIRECT_BYTES_MAX", -1)
    file = OURS["safe_open"](model, "pt")
    os.replace(write_file(tmp_path / "other", {"F32.matrix": random_tensor("F32", [60, 80])}), model)
    monkeypatch.setattr(_source.File, "is_in_place", lambda _: True)
    with pytest.raises(safetensors.SafetensorError, match="was written to or replaced while it was open"):
        file.get_tensor("F32.matrix")


def test_a_disk_that_fails_is_named(model, monkeypatch):
    file = OURS["safe_open"](model, "pt")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_source.os, "preadv", fail)
    with pytest.raises(
        safetensors.SafetensorError, match=r"tensor 'F32\.matrix': reading .* Input/output"
    ) as caught:
        file.get_tensor("F32.matrix")
    assert (caught.value.code, caught.value.system_error) == ("storage_failed", 5)


def test_short_reads_are_continued(model, monkeypatch):
    expected = REFERENCE["load_file"](model)
    real = os.preadv
    monkeypatch.setattr(
        _source.os, "preadv", lambda descriptor, buffers, offset: real(descriptor, [buffers[0][:7]], offset)
    )
    with OURS["safe_open"](model, "pt") as file:
        for name, tensor in expected.items():
            same(file.get_tensor(name), tensor)


# Modules


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.b = self.a
        self.c = torch.nn.Linear(4, 4, bias=False)


class Apart(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.b = torch.nn.Linear(4, 4)
        self.c = torch.nn.Linear(4, 4, bias=False)


def outcome(load, *arguments, **options):
    try:
        missing, unexpected = load(*arguments, **options)
    except RuntimeError as error:
        return str(error)
    return missing, sorted(unexpected)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "saved",
    [
        ["a.weight", "a.bias", "c.weight"],
        ["b.weight", "b.bias", "c.weight"],
        ["a.weight", "b.bias", "c.weight"],
        ["a.weight", "a.bias"],
        ["a.weight", "a.bias", "b.weight", "b.bias", "c.weight"],
        ["a.weight", "a.bias", "c.weight", "d.weight"],
        [],
    ],
)
@pytest.mark.parametrize("kind", [Tied, Apart])
def test_load_model_says_what_the_reference_says(tmp_path, kind, saved, strict):
    path = tmp_path / "model.safetensors"
    source = {"d.weight": torch.ones(2), **Apart().state_dict()}
    safetensors.torch.save_file({name: source[name] for name in saved}, path)
    ours, theirs = kind(), kind()
    theirs.load_state_dict(ours.state_dict())
    assert outcome(OURS["load_model"], ours, path, strict) == outcome(
        REFERENCE["load_model"], theirs, path, strict
    )
    for name, tensor in theirs.state_dict().items():
        same(ours.state_dict()[name], tensor)


def test_load_model_and_views(tmp_path):
    """A part of a larger buffer is fine; two parts that overlap, of which none is all, are not."""
    path = tmp_path / "model.safetensors"
    flat = torch.zeros(10)
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(flat[:4])
    model.b = torch.nn.Parameter(flat[4:10])
    safetensors.torch.save_file({"a": torch.arange(4.0), "b": torch.arange(6.0)}, path)
    assert OURS["load_model"](model, path) == (set(), [])
    assert flat.tolist() == [*range(4), *range(6)]
    model.b = torch.nn.Parameter(flat[2:8])
    with pytest.raises(RuntimeError, match="a, b of the model share memory"):
        OURS["load_model"](model, path)
    with pytest.raises(RuntimeError):
        REFERENCE["load_model"](model, path)


# The page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "safetensors.md"


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0, "torch.Size([16, 4]) torch.Size([8, 4])\n"),
        (1, "torch.Size([16, 4])\n"),
        (2, "weight (16, 4)\nnorm (4,)\n"),
    ],
)
def test_an_example_of_the_page_runs(make_checkpoint, monkeypatch, number, printed):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 3
    code = blocks[number].replace('"cuda:0"', '"cpu"')
    for name, tensor in (("linear", {"weight": ("F32", [16, 4])}), ("norm", {"norm": ("F32", [4])})):
        path = make_checkpoint(f"{name}.safetensors", tensor)
        code = code.replace(f'"/models/{name}.safetensors"', repr(str(path)))
    opened = []
    monkeypatch.setattr(
        _source, "_open", lambda path, really=_source._open: opened.append(path) or really(path)
    )
    example = types.ModuleType("example")  # whose globals patch() reaches, as those of a script
    monkeypatch.setitem(sys.modules, "example", example)
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(code, "example", "exec"), vars(example))
    assert written.getvalue() == printed
    assert opened


# Lifetime


def test_tensors_stay_what_they_are_while_another_model_is_loaded(tmp_path):
    """All 17,165 tensors of a model are held while another one is loaded, again and again."""
    count, passes = 17_165, 20
    models = []
    for seed in (1, 2):
        sizes = numpy.random.default_rng(seed).integers(1, 300, count)
        tensors = {
            f"experts.{i}.weight": random_tensor("U8", [int(size)], seed=seed) for i, size in enumerate(sizes)
        }
        models.append((write_file(tmp_path / f"{seed}.safetensors", tensors), tensors))
    (path, expected), (other, other_expected) = models
    with OURS["safe_open"](path, "pt") as file:
        one_by_one = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        streamed = dict(file.tensors())
    together = OURS["load_file"](path)
    for _ in range(passes):
        latest = OURS["load_file"](other)
        with OURS["safe_open"](other, "pt") as file:
            parts = [file.get_slice(f"experts.{i}.weight")[:8] for i in range(0, count, 17)]
    assert len(parts) > 1000
    for held, wanted in (
        (one_by_one, expected),
        (streamed, expected),
        (together, expected),
        (latest, other_expected),
    ):
        assert len(held) == count
        wrong = [name for name, (_, _, data) in wanted.items() if bytes(held[name].numpy()) != data]
        assert not wrong, wrong[:5]
