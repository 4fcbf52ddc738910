"""What the plug-ins of vLLM and SGLang share: options, the choice of tensors, the stream, the early start."""
import functools
import json
import logging
import multiprocessing
import random
import threading
import types

import inrush
import pytest
import torch
from conftest import random_tensor, write_checkpoint, write_file
from framework_stubs import bytes_in, bytes_of, raw
from inrush.frameworks import _start, _weights
from resources import descriptor_count, thread_count

MIB = 1 << 20
TENSORS = {f"layer.{i}.weight": random_tensor("BF16", [16, 8], seed=i) for i in range(12)}


def parts_of(folder, *names):
    files = [str(folder / name) for name in names] or [str(path) for path in folder.glob("*.safetensors")]
    return _weights.parts_of(files, str(folder / "model.safetensors.index.json"))


def stream(parts, **options):
    return _weights.stream(parts, "cpu", _weights.Options(**options))


# Options

def test_options():
    given = {"window_bytes": 5, "device": "cpu", "transfer": "staged", "page_cache": "keep", "timeout": 2.5,
             "warm": False, "theirs": 1}
    options = _weights.read_options(given, "here", also=["theirs"])
    assert options == _weights.Options("cpu", 5, "staged", "keep", 2.5, False)
    assert _weights.read_options({}, "here") == _weights.Options()


def test_an_unknown_option_is_refused_with_the_list():
    with pytest.raises(inrush.Error, match="--extra: .*'windw'.*device, window_bytes.*theirs") as caught:
        _weights.read_options({"windw": 1}, "--extra", also=["theirs"])
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(("key", "value"), [
    ("device", "cuda:1"), ("window_bytes", 0), ("window_bytes", "1GiB"), ("window_bytes", True),
    ("transfer", "fast"), ("page_cache", None), ("timeout", 0), ("timeout", "5"), ("warm", 1),
])
def test_a_value_that_is_none_is_refused(key, value):
    with pytest.raises(inrush.Error, match=f"--extra: {key} is .*; say ") as caught:
        _weights.read_options({key: value}, "--extra")
    assert caught.value.code == "invalid_request"


def test_every_option_can_be_refused():
    assert set(_weights._ALLOWED) == set(_weights.Options._fields)


# Which tensors

@pytest.mark.parametrize("shards", [0, 1, 5, 12])
def test_every_tensor_once(make_checkpoint, tmp_path, shards):
    path = make_checkpoint("model" if shards else "model.safetensors", TENSORS, shards=shards)
    parts = parts_of(path if shards else tmp_path)
    assert len(parts) == 1  # one load, which never pauses between files
    assert bytes_of(stream(parts)) == bytes_in(TENSORS)


def test_the_order_is_that_of_the_files(make_checkpoint):
    path = make_checkpoint("model", TENSORS, shards=12)
    assert [name for name, _ in stream(parts_of(path))] == list(TENSORS)


def test_files_without_an_index_come_in_natural_order(tmp_path):
    for i, entry in enumerate(TENSORS.items()):
        write_file(tmp_path / f"part-{i}.safetensors", dict([entry]))
    assert [name for name, _ in stream(parts_of(tmp_path))] == list(TENSORS)


def test_the_index_says_which_copy_counts(make_checkpoint):
    path = make_checkpoint("model", TENSORS, shards=2)
    stale = {name: random_tensor("BF16", [16, 8], seed="stale") for name in list(TENSORS)[:3]}
    shards = sorted(path.glob("*.safetensors"))
    second = dict(list(TENSORS.items())[1::2]) | stale
    write_file(shards[1], second)
    expected = bytes_in(TENSORS)
    expected["layer.1.weight"] = stale["layer.1.weight"][2]  # the index gives it to the second file
    assert bytes_of(stream(parts_of(path))) == expected


def test_what_the_index_does_not_name_comes_too(make_checkpoint):
    path = make_checkpoint("model", TENSORS, shards=2)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    del index["weight_map"]["layer.4.weight"]
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    extra = {"mtp.weight": random_tensor("F32", [3])}
    stale = {"layer.0.weight": random_tensor("BF16", [16, 8], seed="stale")}
    write_file(path / "mtp.safetensors", extra | stale)
    assert bytes_of(stream(parts_of(path))) == bytes_in(TENSORS | extra)


def test_files_that_were_not_chosen_are_left_out(make_checkpoint):
    path = make_checkpoint("model", TENSORS, shards=3)
    chosen = sorted(file.name for file in path.glob("*.safetensors"))[:2]
    expected = {name for shard in range(2) for name in list(TENSORS)[shard::3]}
    assert set(bytes_of(stream(parts_of(path, *chosen)))) == expected


def test_without_an_index_the_last_copy_counts(tmp_path):
    write_file(tmp_path / "a-2.safetensors", TENSORS)
    newer = {name: random_tensor("BF16", [16, 8], seed="newer") for name in list(TENSORS)[:4]}
    write_file(tmp_path / "a-10.safetensors", newer)
    parts = parts_of(tmp_path)
    assert bytes_of(stream(parts)) == bytes_in(TENSORS | newer)
    assert sum(part.nbytes for part in parts) == sum(len(data) for data in bytes_in(TENSORS).values())


def test_a_wrong_index_is_said_and_not_followed(make_checkpoint, caplog):
    path = make_checkpoint("model", TENSORS, shards=2)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["weight_map"]["nowhere.weight"] = min(file.name for file in path.glob("*.safetensors"))
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with caplog.at_level(logging.WARNING, logger="inrush"):
        assert bytes_of(stream(parts_of(path))) == bytes_in(TENSORS)
    assert "the index is not followed" in caplog.text
    assert "nowhere.weight" in caplog.text


def test_a_damaged_shard_is_an_error_that_names_it(make_checkpoint):
    path = make_checkpoint("model", TENSORS, shards=3)
    damaged = sorted(path.glob("*.safetensors"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with pytest.raises(inrush.Error, match=damaged.name) as caught:
        parts_of(path)
    assert caught.value.code == "corrupt_checkpoint"


@pytest.mark.parametrize("count", [0, 1])
def test_what_nobody_wants_is_not_read(tmp_path, count):
    wanted = {f"wanted.{i}": random_tensor("U8", [MIB], seed=i) for i in range(count)}
    write_file(tmp_path / "model.safetensors",
               {"other.0": ("U8", [16 * MIB], bytes(16 * MIB))} | wanted
               | {"other.1": ("U8", [16 * MIB], bytes(16 * MIB))})
    parts = [part.among(lambda name: name.startswith("wanted")) for part in parts_of(tmp_path)]
    before = bytes_read()
    assert bytes_of(stream([part for part in parts if part.names])) == bytes_in(wanted)
    assert bytes_read() - before < 2 * MIB


def bytes_read():
    """By system calls of this process."""
    with open("/proc/self/io", encoding="utf-8") as text:
        return int(text.readline().removeprefix("rchar:"))


# The stream

def test_early_arrivals_wait_for_their_turn(make_checkpoint, monkeypatch):
    path = make_checkpoint("model.safetensors", TENSORS)
    real = inrush.torch.stream
    arrivals = []

    def shuffled(*arguments, **options):
        pairs = list(real(*arguments, **options))
        random.Random(5).shuffle(pairs)
        arrivals.extend(name for name, _ in pairs)
        yield from pairs

    monkeypatch.setattr(inrush.torch, "stream", shuffled)
    loaded = dict(stream(parts_of(path.parent)))
    assert arrivals != list(TENSORS)
    assert list(loaded) == list(TENSORS)
    assert {name: raw(tensor) for name, tensor in loaded.items()} == bytes_in(TENSORS)


@pytest.mark.parametrize("taken", [0, 1, None])
def test_nothing_is_left_when_it_ends(make_checkpoint, taken):
    path = make_checkpoint("model", TENSORS, shards=4)
    bytes_of(stream(parts_of(path)))  # what a process keeps for good is there
    before = thread_count(), descriptor_count()
    weights = stream(parts_of(path))
    if taken is None:
        bytes_of(weights)
    else:
        for _ in range(taken):
            next(weights)
        weights.close()
    assert (thread_count(), descriptor_count()) == before


def test_a_stream_that_ends_early_for_a_timeout(make_checkpoint):
    path = make_checkpoint("model", TENSORS, shards=4)
    with pytest.raises(inrush.Error) as caught:
        bytes_of(stream(parts_of(path), timeout=1e-9))
    assert caught.value.code == "timed_out"


@pytest.mark.parametrize("fails_at", [0, 2])
def test_no_room_on_the_gpu(make_checkpoint, monkeypatch, caplog, fails_at):
    path = make_checkpoint("model.safetensors", TENSORS)
    real = inrush.torch.stream

    def small_gpu(checkpoint, device, **options):
        for count, pair in enumerate(real(checkpoint, "cpu", **options)):
            if device == "cuda:0" and count == fails_at:
                raise inrush._errors.make_error("out_of_memory", "torch has no 64 bytes on cuda:0")
            yield pair

    monkeypatch.setattr(inrush.torch, "stream", small_gpu)
    with caplog.at_level(logging.WARNING, logger="inrush"):
        loaded = bytes_of(_weights.stream(parts_of(path.parent), "cuda:0", _weights.Options()))
    assert loaded == bytes_in(TENSORS)
    assert f"the other {12 - fails_at} of 12 tensors come by host memory" in caplog.text


def test_no_room_in_host_memory_is_an_error(make_checkpoint, monkeypatch):
    path = make_checkpoint("model.safetensors", TENSORS)
    tries = []

    def full(checkpoint, device, **_):
        tries.append(device)
        raise inrush._errors.make_error("out_of_memory", "none left")
        yield

    monkeypatch.setattr(inrush.torch, "stream", full)
    with pytest.raises(MemoryError, match="none left"):
        bytes_of(stream(parts_of(path.parent)))
    assert tries == ["cpu"]


@pytest.mark.usefixtures("nothing_left")
def test_tensors_on_a_gpu(make_checkpoint, driver, fake_torch, monkeypatch):
    monkeypatch.setattr(_weights, "Loader", functools.partial(inrush.Loader, cuda_library=driver.path))
    path = make_checkpoint("model", TENSORS, shards=4)
    weights = _weights.stream(parts_of(path), "cuda:1", _weights.Options())
    loaded = {name: driver.bytes_of(tensor) for name, tensor in weights}
    assert loaded == bytes_in(TENSORS)
    assert list(loaded) == list(inrush.open(path))
    assert {device for _, device, _ in fake_torch.allocations} == {1}


@pytest.mark.usefixtures("nothing_left")
def test_a_gpu_that_is_full_after_a_while(tmp_path, driver, fake_torch, monkeypatch, caplog):
    monkeypatch.setattr(_weights, "Loader", functools.partial(inrush.Loader, cuda_library=driver.path))
    tensors = {f"t{i}": random_tensor("U8", [MIB], seed=i) for i in range(8)}
    write_file(tmp_path / "model.safetensors", tensors)
    real = fake_torch.empty

    def empty(size, *, dtype, device):
        if device.type == "cuda" and len(fake_torch.allocations) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return real(size, dtype=dtype, device=device)

    monkeypatch.setattr(fake_torch, "empty", empty)
    options = _weights.Options(window_bytes=2 * MIB)
    with caplog.at_level(logging.WARNING, logger="inrush"):
        kept = list(_weights.stream(parts_of(tmp_path), "cuda:0", options))
    on_gpu = [driver.device_of(tensor.data_ptr()) == 0 for _, tensor in kept]
    assert 0 < sum(on_gpu) < len(kept)
    assert on_gpu == sorted(on_gpu, reverse=True)
    assert "come by host memory" in caplog.text
    loaded = {name: driver.bytes_of(tensor) if is_there else raw(tensor)
              for (name, tensor), is_there in zip(kept, on_gpu, strict=True)}
    assert loaded == bytes_in(tensors)


@pytest.mark.parametrize(("device", "cuda", "expected"), [
    ("cuda", "13.0", "cuda"), ("cuda:1", "13.0", "cuda:1"), ("cuda", None, "cpu"), ("cpu", "13.0", "cpu"),
    ("xpu", None, "cpu"), ("meta", "13.0", "cpu"),
])
def test_where_tensors_are_handed_over(monkeypatch, device, cuda, expected):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert _weights.engine_device(torch.device(device)) == expected


@pytest.mark.parametrize(("ranks", "gpus", "expected"), [(None, 8, 1), (16, 8, 8), (4, 8, 4), (2, 0, 1)])
def test_processes_of_this_machine(monkeypatch, ranks, gpus, expected):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: ranks is not None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert _weights._local_process_count() == expected


@pytest.mark.parametrize("name", ["INRUSH_PROCESSES", "LOCAL_WORLD_SIZE"])
def test_the_environment_knows_better_how_many_processes_there_are(make_checkpoint, monkeypatch, name):
    path = make_checkpoint("model.safetensors", TENSORS)
    made = []
    monkeypatch.setattr(_weights, "Loader", lambda **options: made.append(options) or inrush.Loader())
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    bytes_of(stream(parts_of(path.parent)))
    monkeypatch.setenv(name, "3")
    bytes_of(stream(parts_of(path.parent)))
    assert made == [{"processes": 1}, {}]


# The early start

@pytest.fixture(name="warmed")
def warmed_fixture(monkeypatch):
    folders = []
    monkeypatch.setattr(inrush, "warm", lambda path, *, background: folders.append((path, background)))
    return folders


def test_a_local_folder_is_warmed(warmed, tmp_path):
    assert _start.warm(str(tmp_path))
    assert warmed == [(str(tmp_path), True)]


@pytest.mark.parametrize("folder", [None, "", "meta-llama/Llama-3", "/absent/folder"])
def test_what_is_no_local_folder_is_not_warmed(warmed, folder):
    assert not _start.warm(folder)
    assert warmed == []


def test_a_folder_that_cannot_be_read_ahead_stops_nobody(tmp_path, caplog):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with caplog.at_level(logging.WARNING, logger="inrush"):
        assert not _start.warm(str(tmp_path))
    assert "is not read ahead" in caplog.text


def test_the_real_warm_is_called_as_it_wants_to_be(make_checkpoint, caplog):
    with caplog.at_level(logging.INFO, logger="inrush"):
        assert _start.warm(str(make_checkpoint("model", TENSORS, shards=2)))
        for thread in threading.enumerate():
            if thread.name == "inrush-warm":
                thread.join()
    assert "WarmReport" in caplog.text


def test_children_do_not_warm(warmed, tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: types.SimpleNamespace(pid=1))
    assert not _start.warm(str(tmp_path))
    assert warmed == []


@pytest.mark.parametrize(("arguments", "expected"), [
    (["prog", "--load-format", "x"], "x"), (["prog", "--load-format=x=y"], "x=y"),
    (["prog", "--load_format", "x"], "x"), (["prog", "--load-format", "x", "--load-format", "z"], "z"),
    (["prog", "--load-format"], ""), (["prog"], None), ([], None), (["prog", "load-format", "x"], None),
])
def test_options_of_a_command_line(arguments, expected):
    assert _start.CommandLine(arguments).option(["--load-format"]) == expected


@pytest.mark.parametrize(("arguments", "expected"), [
    (["/bin/vllm", "serve", "/m"], "/m"), (["vllm", "serve", "--port", "1"], None),
    (["vllm", "bench", "/m"], None), (["vllm", "serve"], None), (["vllm"], None),
])
def test_the_model_behind_a_command(arguments, expected):
    assert _start.CommandLine(arguments).after("serve") == expected


@pytest.fixture(name="logs")
def logs_fixture(monkeypatch):
    """Our logger, that of a framework, and what the framework's shows."""
    ours = logging.Logger("inrush")  # noqa: LOG001
    ours.setLevel(logging.DEBUG)
    ours.parent = logging.getLogger()
    theirs = logging.getLogger("framework")
    handler = logging.Handler()
    seen = []
    handler.emit = lambda record: seen.append(record.getMessage())
    monkeypatch.setattr(_start, "_log", ours)
    monkeypatch.setattr(theirs, "level", logging.INFO)
    monkeypatch.setattr(theirs, "handlers", [])
    theirs.manager._clear_cache()
    _start.share_log("framework")
    _start.share_log("framework")
    theirs.handlers.append(handler)  # vLLM sets its logger up after its plug-ins
    return types.SimpleNamespace(ours=ours, theirs=theirs, seen=seen)


def test_the_log_is_seen_where_the_frameworks_log_is(logs, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's
    logs.ours.info("said once")
    logs.ours.debug("below the framework's level")
    assert logs.seen == ["said once"]


def test_a_root_logger_that_somebody_set_up_is_enough(logs, monkeypatch):
    root = logging.Handler()
    by_root = []
    root.emit = lambda record: by_root.append(record.getMessage())
    monkeypatch.setattr(logging.getLogger(), "handlers", [root])
    logs.ours.warning("said")
    assert by_root == ["said"]
    assert logs.seen == []


def test_a_folder_of_a_thousand_tensors_keeps_its_order(tmp_path):
    tensors = {f"t{i}": random_tensor("U8", [i % 7 * 1000], seed=i) for i in range(1000)}
    write_checkpoint(tmp_path / "model", tensors, shards=6)
    loaded = bytes_of(stream(parts_of(tmp_path / "model")))
    assert loaded == bytes_in(tensors)
    assert list(loaded) == list(inrush.open(tmp_path / "model"))
