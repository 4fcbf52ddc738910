"""inrush.safetensors.patch(): code that knows nothing of Inrush loads by it, and afterwards no more."""

import contextlib
import logging
import pickle
import sys
import threading
import types

import inrush.safetensors
import inrush.safetensors.torch
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from conftest import random_tensor, write_file
from inrush.safetensors import _patch
from reference import OURS, REFERENCE, same

patch = inrush.safetensors.patch
safe_open = safetensors.safe_open  # a global, as others have it
from safetensors.torch import load_file as renamed


@pytest.fixture(name="path")
def path_fixture(tmp_path):
    return write_file(
        tmp_path / "model.safetensors",
        {"b": random_tensor("F32", [4, 4]), "a": random_tensor("BF16", [4])},
        {"format": "pt"},
    )


@pytest.fixture(autouse=True)
def nothing_replaced():
    """Every module has after the test what it had before, and nothing of ours."""

    def held():
        return {
            (name, key): id(value)
            for name, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType) and name.partition(".")[0] in ("safetensors", __name__)
            for key, value in list(vars(module).items())
            if callable(value)
        }

    before = held()
    yield
    assert held() == before
    assert _patch._state._depth == 0
    assert not _patch._state._originals


@contextlib.contextmanager
def module(name, **values):
    made = types.ModuleType(name)
    vars(made).update(values)
    sys.modules[name] = made
    try:
        yield made
    finally:
        del sys.modules[name]


def is_ours(value):
    return value not in REFERENCE.values()


@pytest.fixture
def loads(monkeypatch):
    """Loads by Inrush since."""
    seen = []
    real = inrush.safetensors._open._Files.__init__

    def counting(self, names, *arguments):
        seen.append(str(names))
        real(self, names, *arguments)

    monkeypatch.setattr(inrush.safetensors._open._Files, "__init__", counting)
    return seen


def test_globals_of_every_module_are_replaced_and_put_back(path, loads):
    expected = REFERENCE["load_file"](path)
    with module(
        "somebody", opener=REFERENCE["safe_open"], loader=REFERENCE["load_file"], other=len
    ) as somebody:
        with patch():
            assert all(
                map(
                    is_ours,
                    (
                        safe_open,
                        renamed,
                        somebody.opener,
                        somebody.loader,
                        safetensors.safe_open,
                        safetensors.torch.safe_open,
                        safetensors.numpy.safe_open,
                        safetensors.torch.load,
                        safetensors.torch.load_model,
                    ),
                )
            )
            assert somebody.other is len
            for tensors in (renamed(path), somebody.loader(path), safetensors.torch.load(path.read_bytes())):
                for name, tensor in expected.items():
                    same(tensors[name], tensor)
            with somebody.opener(path, framework="pt") as file:
                assert isinstance(file, safetensors.safe_open)
                same(file.get_slice("b")[1:], expected["b"][1:])
            same(safetensors.numpy.load_file(path)["b"], expected["b"].numpy())
            assert len(loads) == 4
        assert (somebody.opener, somebody.loader) == (REFERENCE["safe_open"], REFERENCE["load_file"])
        loads.clear()
        somebody.loader(path)
    assert not loads


def test_what_is_imported_meanwhile_is_put_back_too(tmp_path, monkeypatch):
    (tmp_path / "latecomer.py").write_text(
        "from safetensors import safe_open\n"
        "from safetensors.torch import load_file as load\n"
        "from inrush.safetensors import safe_open as ours\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with patch():
        import latecomer

        assert is_ours(latecomer.safe_open)
    try:
        assert latecomer.safe_open is REFERENCE["safe_open"]
        assert latecomer.load is REFERENCE["load_file"]
        assert latecomer.ours is inrush.safetensors.safe_open
    finally:
        del sys.modules["latecomer"]


def test_a_module_that_leaves_meanwhile_is_put_back(path):
    with module("somebody", opener=REFERENCE["safe_open"]) as somebody:
        active = patch()
        active.__enter__()
    active.__exit__(None, None, None)
    assert somebody.opener is REFERENCE["safe_open"]


def test_what_others_put_there_meanwhile_stays(monkeypatch):
    with module("somebody", opener=REFERENCE["safe_open"]) as somebody:
        with patch():
            somebody.opener = len
        assert somebody.opener is len


def test_our_own_modules_and_their_users_are_left_alone():
    with module("user", opener=inrush.safetensors.safe_open) as user:
        with patch():
            assert user.opener is inrush.safetensors.safe_open is OURS["safe_open"]
        assert user.opener is OURS["safe_open"]


def test_blocks_nest_and_end_with_their_errors():
    with pytest.raises(ZeroDivisionError), patch():
        with patch():
            inner = safetensors.safe_open
        assert safetensors.safe_open is inner
        assert is_ours(inner)
        raise ZeroDivisionError
    assert safetensors.safe_open is REFERENCE["safe_open"]


def test_a_function_is_decorated(path, loads):
    @patch()
    def use(depth):
        return safetensors.torch.load_file(path) if depth == 0 else use(depth - 1)

    assert use(2).keys() == {"a", "b"}
    assert use(0).keys() == {"a", "b"}
    assert len(loads) == 2


def test_blocks_of_threads_overlap():
    """The last one that ends restores; in between everybody sees a replacement."""
    inside, leave = threading.Barrier(5), threading.Event()
    wrong = []

    def work():
        for _ in range(30):
            with patch():
                if not is_ours(safetensors.safe_open):
                    wrong.append("an original in a block")
        with patch():
            inside.wait(30)
            leave.wait(30)
            if not is_ours(safetensors.safe_open):
                wrong.append("an original in the last block")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    inside.wait(30)
    assert is_ours(safetensors.safe_open)
    leave.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert safetensors.safe_open is REFERENCE["safe_open"]


def test_lazy_modules_are_not_woken():
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    sys.modules["lazy"] = Lazy("lazy")
    sys.modules["odd"] = object()
    try:
        with patch():
            pass
    finally:
        del sys.modules["lazy"], sys.modules["odd"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("MODEL", "tf"), "framework tf"),
        (("MODEL", "pt", "xpu:0"), "device xpu:0"),
    ],
)
def test_what_is_not_ours_the_original_does(path, caplog, monkeypatch, arguments, words):
    called = []
    monkeypatch.setattr(safetensors, "safe_open", lambda *given, **options: called.append((given, options)))
    _patch._told.cache_clear()
    given = [path if argument == "MODEL" else argument for argument in arguments]
    with caplog.at_level(logging.WARNING, "inrush"), patch():
        for _ in range(2):
            safetensors.safe_open(*given, backend="pread")
    given = (*given, "cpu")[:3]
    assert called == [(tuple(given), {"backend": "pread"})] * 2
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_devices_that_are_not_ours_go_to_the_original_load_file(path, monkeypatch):
    called = []
    monkeypatch.setattr(
        safetensors.torch, "load_file", lambda *given, **options: called.append((given, options))
    )
    with patch():
        safetensors.torch.load_file(path, device="mps")
        safetensors.torch.load_file(path, "npu:1")
        with pytest.raises(TypeError):
            safetensors.torch.load_file(path, nonsense=1)
    assert called == [((path,), {"device": "mps"}), ((path, "npu:1"), {})]


def test_handles_of_open_files(path, loads):
    with patch(), open(path, "rb") as opened, safetensors._safe_open_handle(opened, "pt") as file:
        assert file.keys() == ["a", "b"]
    assert loads == [str(path)]


def test_errors_are_caught_as_before(path):
    with patch(), safetensors.safe_open(path, "pt") as file:
        with pytest.raises(safetensors.SafetensorError, match="File does not contain tensor c") as caught:
            file.get_tensor("c")
        with pytest.raises(FileNotFoundError):
            safetensors.torch.load_file("absent")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), safetensors.SafetensorError)


# The real packages


def small_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))


@pytest.mark.parametrize("device_map", [None, {"": "cpu"}, {"0": "cpu", "1": "disk"}])
def test_accelerate_loads_by_it(tmp_path, loads, device_map):
    from accelerate import load_checkpoint_in_model

    path = tmp_path / "model.safetensors"
    source = small_model()
    safetensors.torch.save_file(source.state_dict(), path, metadata={"format": "pt"})
    models = small_model(), small_model()
    load_checkpoint_in_model(
        models[0], str(path), device_map=device_map, offload_folder=str(tmp_path / "off")
    )
    assert not loads
    with patch():
        load_checkpoint_in_model(
            models[1], str(path), device_map=device_map, offload_folder=str(tmp_path / "off")
        )
    assert loads
    assert set(loads) == {str(path)}
    for name, tensor in models[0].state_dict().items():
        if tensor.device.type != "meta":
            same(models[1].state_dict()[name], source.state_dict()[name])
    import accelerate.utils.modeling

    assert accelerate.utils.modeling.safe_open is REFERENCE["safe_open"]
    assert accelerate.utils.modeling.safe_load_file is REFERENCE["load_file"]


@pytest.mark.parametrize("disable_mmap", [False, True])
def test_diffusers_loads_by_it(path, loads, disable_mmap, monkeypatch):
    from diffusers.models.model_loading_utils import load_state_dict

    contents = []
    load = inrush.safetensors._open.load_content
    monkeypatch.setattr(
        inrush.safetensors.torch,
        "load_content",
        lambda data, framework: contents.append(len(data)) or load(data, framework),
    )
    expected = load_state_dict(str(path), disable_mmap=disable_mmap)
    assert not loads
    assert not contents
    with patch():
        tensors = load_state_dict(str(path), disable_mmap=disable_mmap)
    assert (contents, loads) == (([path.stat().st_size], []) if disable_mmap else ([], [str(path)]))
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        same(tensors[name], tensor)


def test_transformers_reads_slices_by_it(tmp_path, loads):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path, max_shard_size="5KB")
    expected = LlamaForCausalLM.from_pretrained(tmp_path)
    assert not loads
    with patch():
        model = LlamaForCausalLM.from_pretrained(tmp_path)
    assert len(set(loads)) > 1
    for name, tensor in expected.state_dict().items():
        same(model.state_dict()[name], tensor)
    ids = torch.arange(8)[None]
    same(model(ids).logits.detach(), expected(ids).logits.detach())
