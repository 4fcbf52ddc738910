"""inrush.torch.load_async: tensors that are asked for while they are on their way."""
import ctypes
import gc
import inspect
import os
import threading
import weakref
from types import SimpleNamespace

import inrush
import inrush.torch
import pytest
import torch
from conftest import random_tensor, tensors_of_every_dtype, write_checkpoint
from fake_driver import LAUNCH_FAILED, POISON
from inrush.torch import _async
from resources import descriptor_count, thread_count, write_sparse

MIB = 1 << 20
UNFILLED = 0xFF  # what a load that failed leaves


def slow_loader(**more):
    """One that is met on its way: 4 KiB at a time."""
    return inrush.Loader(readers=1, piece_bytes=4096, io_uring=False, **more)


def raw(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_equal(loaded, tensors):
    assert set(loaded) == set(tensors)
    assert [name for name, (_, _, data) in tensors.items() if raw(loaded[name]) != data] == []


@pytest.fixture
def model(make_checkpoint):
    """(path, tensors): all that torch has a type for, over three files."""
    tensors = {name: entry for name, entry in tensors_of_every_dtype().items() if "F6" not in entry[0]}
    return make_checkpoint("model", tensors, shards=3, metadata={"made_by": "a test"}), tensors


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """(path, tensors): 16 MiB in 64 tensors."""
    tensors = {f"t{i:02}": random_tensor("BF16", [128, 1024], seed=i) for i in range(64)}
    return write_checkpoint(tmp_path_factory.mktemp("many") / "many.safetensors", tensors), tensors


@pytest.fixture
def long(tmp_path):
    """A file of 1 GiB, of which a slow loader has seconds."""
    return write_sparse(tmp_path / "long.safetensors", {f"t{i:02}": ("U8", [64 * MIB]) for i in range(16)})


@pytest.fixture
def cut(make_checkpoint):
    """(path, tensors, cut): 16 MiB in 64 tensors, of which cut() leaves nine."""
    tensors = {f"t{i:02}": random_tensor("BF16", [128, 1024], seed=i) for i in range(64)}
    path = make_checkpoint("cut.safetensors", tensors)
    return path, tensors, lambda: os.truncate(path, 9 * MIB)


# On the CPU

def test_every_dtype_is_exact(model):
    path, tensors = model
    with inrush.torch.load_async(path) as coming:
        whole = inrush.torch.load(path)
        assert list(coming) == list(whole) and len(coming) == len(whole)
        for name in reversed(list(tensors)):
            tensor = coming[name].wait()
            assert (tensor.dtype, tensor.shape, tensor.device) == (
                whole[name].dtype, whole[name].shape, torch.device("cpu"))
            assert raw(tensor) == tensors[name][2]
        assert_equal(coming.wait(), tensors)
    assert coming.report.complete and coming.report.tensor_count == len(tensors)
    assert coming.metadata == {"made_by": "a test"}


def test_what_is_known_before_the_bytes(many):
    coming = inrush.torch.load_async(many[0], loader=slow_loader())
    tensor = coming["t63"]
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, tensor.device) == (
        "t63", torch.bfloat16, (128, 1024), 256 << 10, "cpu")
    assert "t63" in coming and "t64" not in coming and 5 not in coming
    assert [name for name, _ in coming.items()] == list(many[1])
    with pytest.raises(KeyError):
        coming["t64"]
    coming.close()


def test_no_tensor_is_in_reach_before_its_wait(many):
    coming = inrush.torch.load_async(many[0], loader=slow_loader())
    for thing in (coming, coming["t63"]):
        for name in dir(thing):
            if not name.startswith("_"):
                value = getattr(thing, name)
                assert not isinstance(value, (torch.Tensor, inrush.Tensor)), name
                assert not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"), name
    assert not hasattr(coming["t63"], "data_ptr")
    coming.close()


def test_a_wait_ends_when_the_tensor_is_there_and_not_the_load(many, long):
    with inrush.torch.load_async(long, loader=slow_loader(), only="t0[01]") as coming:
        assert not coming.done
        assert not coming["t00"].wait().any()
        loaded, planned = coming.progress
        assert 64 * MIB <= loaded <= planned == 128 * MIB
        assert not coming.done, "the load was too fast to show anything"
    assert coming.done


def test_a_tensor_is_the_same_each_time(many):
    with inrush.torch.load_async(many[0]) as coming:
        first = coming["t00"].wait()
        assert coming["t00"].wait() is first and coming.wait()["t00"] is first


def test_tensors_outlive_all(many):
    path, tensors = many
    coming = inrush.torch.load_async(path, loader=inrush.Loader())
    kept = coming.wait()
    coming.close()
    gone = weakref.ref(coming)
    del coming
    gc.collect()
    assert gone() is None
    assert_equal(kept, tensors)


def test_one_tensor_keeps_the_load(many):
    tensor = inrush.torch.load_async(many[0], loader=slow_loader())["t63"]
    gc.collect()
    assert raw(tensor.wait()) == many[1]["t63"][2]


def test_only_and_slices(many):
    path, tensors = many
    with inrush.torch.load_async(path, only=["t0*"], slices={"t03": (0, 5, 7)}) as coming:
        loaded = coming.wait()
    assert list(loaded) == [f"t0{i}" for i in range(10)]
    assert loaded["t03"].shape == (7, 1024) and raw(loaded["t03"]) == tensors["t03"][2][5 * 2048:12 * 2048]
    assert raw(loaded["t04"]) == tensors["t04"][2]


@pytest.mark.parametrize("only", [[], "*.empty"])
def test_nothing_to_read(model, only):
    with inrush.torch.load_async(model[0], only=only) as coming:
        assert all(tensor.numel() == 0 for tensor in coming.wait().values())
        assert coming.done
        assert len(coming) == (len([name for name in model[1] if name.endswith(".empty")]) if only else 0)


def test_a_thousand_times_the_bytes_are_there(make_checkpoint):
    tensors = {f"t{i}": random_tensor("U8", [70_001 if i % 2 else 3], seed=i) for i in range(10)}
    path = make_checkpoint("small.safetensors", tensors)
    checkpoint, loader, wrong = inrush.open(path), inrush.Loader(readers=2, piece_bytes="16KiB"), 0
    for number in range(1000):
        coming = inrush.torch.load_async(checkpoint, loader=loader)
        name = f"t{number % 10}"
        wrong += raw(coming[name].wait()) != tensors[name][2]
        if number % 3 == 0:
            coming.finish()
        elif number % 3 == 1:
            coming.close()
    assert wrong == 0


def test_several_at_once(many):
    path, tensors = many
    loader = inrush.Loader(piece_bytes="64KiB", staging_bytes="256MiB")
    several = [inrush.torch.load_async(path, loader=loader) for _ in range(6)]
    for coming in several[::2]:
        assert_equal(coming.wait(), tensors)
    several[1].cancel()
    for coming in several[3::2]:
        assert_equal(coming.wait(), tensors)
        coming.finish()


# How it fails, on the CPU

REFUSALS = {
    "a stream of the CPU": ({"stream": 0}, "invalid_request", "no streams"),
    "no device": ({"device": None}, "invalid_request", "device None"),
    "no time": ({"timeout": 0}, "invalid_request", "timeout"),
    "a name that is no text": ({"only": [5]}, "invalid_request", "only="),
    "a way that is none": ({"transfer": "fast"}, "invalid_request", "transfer"),
    "a tensor that is not there": ({"slices": {"absent": (0, 0, 1)}}, "invalid_request", "absent"),
    "what is to be done with F6": ({"unsupported": "float"}, "invalid_request", "unsupported"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_it_refuses(many, what):
    arguments, code, words = REFUSALS[what]
    with pytest.raises(inrush.Error, match=words) as caught:
        inrush.torch.load_async(many[0], **arguments)
    assert caught.value.code == code


def test_what_torch_has_no_type_for(make_checkpoint):
    tensors = {"f6": random_tensor("F6_E2M3", [4, 8])}
    path = make_checkpoint("f6.safetensors", tensors)
    with pytest.raises(inrush.Error, match="F6_E2M3"):
        inrush.torch.load_async(path)
    with inrush.torch.load_async(path, unsupported="uint8") as coming:
        assert coming["f6"].dtype == torch.uint8
        assert_equal(coming.wait(), tensors)


def test_a_checkpoint_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        inrush.torch.load_async(tmp_path / "absent")


@pytest.mark.parametrize("stream", [0, SimpleNamespace(cuda_stream=5)])
def test_waits_of_streams_of_the_cpu(many, stream):
    with inrush.torch.load_async(many[0]) as coming:
        for wait in (coming["t00"].wait, coming.wait):
            with pytest.raises(inrush.Error, match="the CPU has no streams") as caught:
                wait(stream)
            assert caught.value.code == "invalid_request"


@pytest.mark.parametrize("call", ["finish", "wait", "wait for one"])
def test_a_file_that_is_cut_in_mid_load(cut, call):
    path, tensors, truncate = cut
    coming = inrush.torch.load_async(path, loader=slow_loader())
    first = coming["t00"].wait()
    truncate()
    calls = {"finish": coming.finish, "wait": coming.wait, "wait for one": lambda: coming["t63"].wait()}
    for _ in range(2):
        with pytest.raises(inrush.Error, match=path.name) as caught:
            calls[call]()
        assert caught.value.code == "corrupt_checkpoint"
        assert not caught.value.report.complete and caught.value.report.loaded_bytes >= 256 << 10
    assert coming.done and not coming.report.complete
    assert raw(first) == tensors["t00"][2]


def test_a_deadline(long):
    with pytest.raises(TimeoutError) as caught:  # by the call itself where allocating took as long
        inrush.torch.load_async(long, loader=slow_loader(), timeout=0.05).finish()
    assert caught.value.code == "timed_out" and "0.05 s" in str(caught.value)


def test_cancelled_by_another_thread(long):
    coming = inrush.torch.load_async(long, loader=slow_loader())
    other = threading.Timer(0.05, coming.cancel)
    other.start()
    with pytest.raises(inrush.Error) as caught:
        coming.finish()
    other.join()
    assert caught.value.code == "cancelled"
    assert coming.done
    with pytest.raises(inrush.Error):
        coming.wait()


def test_closed(long):
    coming = inrush.torch.load_async(long, loader=slow_loader())
    tensor = coming["t00"]
    coming.close()
    coming.close()
    coming.cancel()
    assert coming.done and not coming.report.complete and len(coming) == 16
    for call in (coming.wait, coming.finish, tensor.wait, lambda: coming["t00"], lambda: coming.progress):
        with pytest.raises(inrush.Error, match="was closed") as caught:
            call()
        assert caught.value.code == "invalid_request"


def test_a_block_that_raises_ends_the_load(long):
    coming = inrush.torch.load_async(long, loader=slow_loader())
    with pytest.raises(ZeroDivisionError), coming:
        1 / 0  # noqa: B018
    assert not coming.report.complete


def test_a_block_that_ends_says_what_went_wrong(cut):
    path, _, truncate = cut
    with pytest.raises(inrush.Error, match=path.name), inrush.torch.load_async(path, loader=slow_loader()):
        truncate()


def test_one_thread_at_a_time(long):
    coming = inrush.torch.load_async(long, loader=slow_loader())
    ended = []

    def finish():
        while not ended:
            try:
                coming.finish()
            except inrush.Error as error:
                if error.code != "invalid_request":  # it may be the other one that is refused
                    ended.append(error.code)

    other = threading.Thread(target=finish)
    other.start()
    refusals = 0
    while not refusals and other.is_alive():
        try:
            coming["t00"].wait()
        except inrush.Error as error:
            assert error.code == "invalid_request" and "another thread is waiting" in str(error)
            refusals += 1
    assert not coming.done and coming.progress[0] < coming.progress[1]
    coming.cancel()
    other.join(30)
    assert (refusals, ended) == (1, ["cancelled"])


@pytest.mark.parametrize("end", ["finish", "close", "drop", "fail"])
def test_nothing_is_left(many, long, end):
    gc.collect()  # loads of other tests
    inrush.release()
    loader = slow_loader()
    with inrush.torch.load_async(many[0], loader=loader):
        pass
    loader.release_idle()
    threads, descriptors = thread_count(), descriptor_count()
    coming = inrush.torch.load_async(many[0] if end == "finish" else long, loader=loader)
    if end == "finish":
        coming.finish()
    elif end == "close":
        coming.close()
    elif end == "fail":
        coming.cancel()
        with pytest.raises(inrush.Error) as caught:
            coming.finish()
        del caught
    del coming
    gc.collect()
    loader.release_idle()
    assert (thread_count(), descriptor_count()) == (threads, descriptors)


def test_repr(many, long):
    coming = inrush.torch.load_async(long, loader=slow_loader())
    tensor = coming["t00"]
    assert repr(tensor) == "<inrush.torch.AsyncTensor 't00': torch.uint8 [67108864] on cpu>"
    assert repr(coming).startswith("<inrush.torch.AsyncTensors 16 on cpu, loading, ")
    coming.close()
    assert repr(coming) == "<inrush.torch.AsyncTensors 16 on cpu, closed>"
    assert repr(tensor).endswith(" on cpu>")
    with inrush.torch.load_async(many[0]) as coming:
        coming.finish()
        assert repr(coming) == "<inrush.torch.AsyncTensors 64 on cpu, done>"


# Signals, forks and the end of the interpreter

PRELUDE = '''\
import gc, os, signal, sys, threading, time
import inrush, inrush.torch, torch
''' + inspect.getsource(slow_loader) + '''
def begin(device="cpu", **more):
    library = {} if device == "cpu" else {"cuda_library": sys.argv[2]}
    return inrush.torch.load_async(sys.argv[1], device, loader=slow_loader(**library), **more)
'''


@pytest.fixture
def run(run_python, long, fake_cuda):
    """run(script): what it writes, once it has ended well and without a word of complaint."""
    def run(script):
        finished = run_python(PRELUDE + script, long, fake_cuda).check()
        assert finished.stderr == ""
        return finished.stdout.strip()
    return run


@pytest.mark.parametrize("call", ["coming.finish()", "coming.wait()", "coming['t15'].wait()"])
def test_an_interrupt_ends_a_wait_soon(run, call):
    milliseconds = run(f'''
coming = begin()
sent = []
def send():
    time.sleep(0.2)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=send, daemon=True).start()
try:
    {call}
    sys.exit("it was too quick")
except KeyboardInterrupt:
    print(f"{{(time.perf_counter() - sent[0]) * 1e3:.0f}}")
assert not coming.done  # it is the wait that ended
loaded = coming.progress[0]
while coming.progress[0] == loaded: pass
coming.close()
assert coming.done
''')
    print(f"{call}: {milliseconds} ms from the signal to KeyboardInterrupt")
    assert int(milliseconds) < 5000


def test_an_interrupt_in_a_block_ends_the_load(run):
    assert run('''
try:
    with begin() as coming:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        coming.wait()
except KeyboardInterrupt:
    print(coming.done, coming.report.complete)
''') == "True False"


ALIVE = {
    "a load": "kept = begin()",
    "a load out of reach": "import builtins; builtins.kept = begin()",
    "a load in a cycle": "kept = [begin()]; kept.append(kept); del kept",
    "a tensor to come": "kept = begin()['t15']",
    "a load with tensors": "coming = begin(only='t0*'); kept = coming, coming['t00'].wait()",
    "a load on a GPU": "kept = native()",
    "streams that wait": "kept = native('value'); kept.wait_all(0)",
    "a thread in finish": "in_thread(begin().finish)",
    "a thread in wait": "in_thread(begin().wait)",
}


@pytest.mark.parametrize("what", ALIVE)
def test_alive_at_the_end(run, what):
    assert run(f'''
def native(wait="event"):
    request = inrush._inrush.Request()
    request.device, request.only = "cuda:0", ["t0*"]
    return slow_loader(cuda_library=sys.argv[2]).load_async(inrush.open(sys.argv[1]), request, wait)
def quietly(call):
    try:
        call()
        os.write(2, b"it was too quick")
    except inrush.Error as error:
        if error.code != "cancelled": os.write(2, str(error).encode())
def in_thread(call):
    threading.Thread(target=quietly, args=(call,), daemon=True).start()
    time.sleep(0.2)
{ALIVE[what]}
''') == ""


def test_a_fork_under_a_load(run):
    assert run('''
coming = begin(only="t00")
tensor = coming["t00"]
for way in ("uses", "closes", "drops", "leaves"):
    pid = os.fork()
    if pid == 0:
        if way == "uses":
            for use in (tensor.wait, coming.finish, lambda: coming.done, lambda: coming.report):
                try:
                    use()
                    os._exit(5)
                except inrush.Error as error:
                    assert error.code == "invalid_request" and "spawn" in str(error), error
            coming.cancel()
            assert repr(coming).endswith("of the parent process>")
        elif way == "closes":
            coming.close()
        elif way == "drops":
            del coming, tensor
            gc.collect()
        sys.exit(0)
    print(way, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(bool(tensor.wait().any()))
coming.finish()
''').splitlines() == ["uses 0", "closes 0", "drops 0", "leaves 0", "False"]


# On a GPU

class Gpu:
    """A fake one with number 1, torch's memory on it, and streams of the caller's."""

    number = 1

    def __init__(self, driver, allocations, recorded):
        self.driver = driver
        self.allocations = allocations
        self.recorded = recorded  # (bytes of the storage, address of the stream)
        self._streams = []

    def begin(self, path, *, slow=False, **more):
        make = slow_loader if slow else inrush.Loader
        loader = make(cuda_library=self.driver.path)
        return inrush.torch.load_async(path, f"cuda:{self.number}", loader=loader, **more)

    def stream(self):
        handle = ctypes.c_void_p()
        self.driver.retain(self.number)
        with self.driver.current(self.number):
            self.driver._call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(1))
        self._streams.append(handle)
        return SimpleNamespace(cuda_stream=handle.value, device=torch.device("cuda", self.number))

    def seen_by(self, stream, tensors):
        """What work that is queued on the stream now sees: bytes by name. Waits for it."""
        driver, copies = self.driver, {}
        for name, tensor in tensors.items():
            if tensor.nbytes:
                copy = copies[name] = driver.empty(tensor.nbytes, self.number)
                with driver.current(self.number):
                    driver._call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(copy.data_ptr()),
                                 ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes),
                                 ctypes.c_void_p(stream.cuda_stream))
        with driver.current(self.number):
            driver._call("cuStreamSynchronize", ctypes.c_void_p(stream.cuda_stream))
        return {name: driver.bytes_of(copies[name]) if name in copies else b"" for name in tensors}

    def bytes_of(self, tensors):
        """What the default stream sees. A failing test must print these: the tensors are not to be read."""
        return {name: self.driver.bytes_of(tensor) for name, tensor in tensors.items()}

    def close(self):
        for handle in self._streams:
            with self.driver.current(self.number):
                self.driver._call("cuStreamDestroy_v2", handle)
            self.driver.release(self.number)


@pytest.fixture
def gpu(driver, nothing_left, fake_torch, monkeypatch):
    recorded = []
    monkeypatch.setattr(_async._Target, "torch_stream", lambda self, device: self.pointer)
    monkeypatch.setattr(_async, "record_stream", lambda tensor, stream: recorded.append(
        (tensor.untyped_storage().nbytes(), stream)))
    fake = Gpu(driver, fake_torch.allocations, recorded)
    yield fake
    fake.close()


def wrong_names(seen, tensors):
    return [name for name, data in seen.items() if data != tensors[name][2]]


def assert_right_or_unfilled(seen, tensors):
    """Nothing that was there before the load. Returns how many are unfilled."""
    wrong = wrong_names(seen, tensors)
    assert [name for name in wrong if set(seen[name]) != {UNFILLED}] == []
    return len(wrong)


def test_torch_gives_the_memory_at_once(gpu, many):
    path, tensors = many
    coming = gpu.begin(path, slow=True)
    assert sum(size for size, _, _ in gpu.allocations) >= 16 * MIB
    assert {(number, thread) for _, number, thread in gpu.allocations} == {(1, threading.get_ident())}
    count = len(gpu.allocations)
    seen = gpu.bytes_of(coming.wait())
    assert wrong_names(seen, tensors) == [] and len(seen) == 64
    assert len(gpu.allocations) == count


def test_every_dtype_on_a_gpu(gpu, model):
    path, tensors = model
    with gpu.begin(path) as coming:
        stream = gpu.stream()
        loaded = coming.wait(stream)
        seen = gpu.seen_by(stream, loaded)
        assert wrong_names(seen, tensors) == [] and set(seen) == set(tensors)
        assert {coming[name].device for name in coming} == {"cuda:1"}
    assert coming.report.complete
    assert coming.report.pinned_peak_bytes + coming.report.window_peak_bytes > 0


def test_without_a_wait_a_stream_sees_old_memory(gpu, many):
    """So that the tests below can fail."""
    coming = gpu.begin(many[0], slow=True)
    last = gpu.driver.read(coming._running.loaded["t63"].data_ptr, 256 << 10, 1)
    assert set(last) == {POISON}
    coming.close()


@pytest.mark.parametrize("by", ["event", "value"])
def test_three_hundred_times_a_stream_sees_what_it_waited_for(gpu, make_checkpoint, by):
    gpu.driver.set_delay_max(500)
    tensors = {f"t{i}": random_tensor("U8", [70_001 if i % 2 else 3], seed=i) for i in range(10)}
    checkpoint = inrush.open(make_checkpoint("small.safetensors", tensors))
    wrong, streams = [], [gpu.stream() for _ in range(3)]
    for number in range(30):
        stream = streams[number % 3]
        with gpu.begin(checkpoint, stream=stream if by == "value" else None) as coming:
            for name in reversed(list(coming)):
                wrong += wrong_names(gpu.seen_by(stream, {name: coming[name].wait(stream)}), tensors)
    assert wrong == []


def test_a_stream_that_was_given_sees_all_and_nobody_blocks(gpu, many):
    path, tensors = many
    stream, other = gpu.stream(), gpu.stream()
    coming = gpu.begin(path, slow=True, stream=stream)
    loaded = {name: coming[name].wait(other.cuda_stream) for name in coming}
    loaded_bytes, planned_bytes = coming.progress
    assert not coming.done and loaded_bytes < planned_bytes, "the load was too fast to show anything"
    seen = gpu.seen_by(stream, loaded), gpu.seen_by(other, loaded)
    assert [wrong_names(one, tensors) for one in seen] == [[], []]
    coming.finish()


def test_the_current_stream_waits_by_default(gpu, many):
    path, tensors = many
    coming = gpu.begin(path, slow=True)
    tensor = coming["t63"].wait()
    seen = gpu.bytes_of({"t63": tensor})
    assert wrong_names(seen, tensors) == []
    assert gpu.recorded == []
    coming.close()


def test_other_streams_are_recorded(gpu, many):
    """Torch's allocator must not give memory away that they still read."""
    path, _ = many
    stream, other = gpu.stream(), gpu.stream()
    with gpu.begin(path, stream=stream) as coming:
        coming.wait()
        storages = sorted(size for size, _, _ in gpu.allocations)
        assert sorted(gpu.recorded) == [(size, stream.cuda_stream) for size in storages]
        coming.wait(other)
        coming["t00"].wait(other)
        assert len(gpu.recorded) == 2 * len(storages)
        assert {address for _, address in gpu.recorded} == {stream.cuda_stream, other.cuda_stream}


@pytest.mark.parametrize("stream", [
    True, -1, 1 << 64, "stream", 1.5, SimpleNamespace(cuda_stream="0"),
    SimpleNamespace(cuda_stream=0, device=torch.device("cuda", 0)),
])
def test_what_is_no_stream_of_the_device(gpu, many, stream):
    with gpu.begin(many[0]) as coming:
        for call in (coming["t00"].wait, coming.wait, lambda bad: gpu.begin(many[0], stream=bad)):
            with pytest.raises(inrush.Error, match="stream=") as caught:
                call(stream)
            assert caught.value.code == "invalid_request"


def test_streams_that_cannot_wait_for_values(gpu, many):
    gpu.driver.fail(b"cuStreamWaitValue32", 1, 801)
    with pytest.raises(inrush.Error, match="cannot wait for values") as caught:
        gpu.begin(many[0], stream=0)
    assert caught.value.code == "environment_unfit"
    with gpu.begin(many[0], stream=0) as coming:
        seen = gpu.bytes_of({"t05": coming["t05"].wait()})
    assert wrong_names(seen, many[1]) == []


def test_a_wait_that_is_over_before_the_copies_are(gpu, many):
    """They are queued behind work of the default stream. What was waited for is not taken back by close()."""
    path, tensors = many
    closed = threading.Event()
    with gpu.driver.busy(1):
        coming = gpu.begin(path, only="t0[0-3]")  # one piece: more would wait for room in the ring
        loaded = coming.wait(gpu.stream())
        assert coming.progress[0] == 0

        def close():
            coming.close()
            closed.set()

        closer = threading.Thread(target=close)
        closer.start()
        assert not closed.wait(0.2)
    closer.join()
    assert not coming.report.complete
    seen = gpu.bytes_of(loaded)
    assert wrong_names(seen, tensors) == [] and len(seen) == 4


def test_a_load_that_is_dropped_while_streams_wait(gpu, many):
    """They get what they were promised, though nobody holds the load any more."""
    path, tensors = many
    stream = gpu.stream()
    loaded = gpu.begin(path, slow=True, stream=stream).wait()
    gc.collect()
    seen = gpu.seen_by(stream, loaded)
    assert wrong_names(seen, tensors) == [] and len(seen) == 64


def test_a_load_that_nobody_waited_for_is_dropped_at_once(gpu, many):
    coming = gpu.begin(many[0], slow=True, stream=gpu.stream())
    native = coming._running.native
    assert not coming.done
    del coming
    gc.collect()
    native.close()
    assert not native.report().complete


@pytest.mark.parametrize("by", ["event", "value"])
def test_a_file_that_is_cut_while_streams_wait(gpu, cut, by, caplog):
    path, tensors, truncate = cut
    stream = gpu.stream()
    coming = gpu.begin(path, slow=True, stream=stream if by == "value" else None)
    if by == "value":
        loaded = coming.wait()
        truncate()
        seen = gpu.seen_by(stream, loaded)
        assert assert_right_or_unfilled(seen, tensors) > 0
    else:
        first = coming["t00"].wait(stream)
        truncate()
    with pytest.raises(inrush.Error, match=path.name) as caught:
        coming.finish()
    assert caught.value.code == "corrupt_checkpoint" and not caught.value.report.complete
    if by == "event":
        seen = gpu.seen_by(stream, {"t00": first})
        assert wrong_names(seen, tensors) == []
        native = {name: gpu.driver.read(tensor.data_ptr, tensor.nbytes, 1)
                  for name, tensor in coming._running.loaded.items()}
        assert assert_right_or_unfilled(native, tensors) > 0
    with pytest.raises(inrush.Error, match=path.name):
        coming.wait(stream)
    del coming, caught
    gc.collect()
    assert "finish()" not in caplog.text


def test_a_failure_that_nobody_asked_for_is_logged(gpu, cut, caplog):
    path, _, truncate = cut
    coming = gpu.begin(path, slow=True, stream=gpu.stream())
    loaded = coming.wait()
    truncate()
    del coming
    gc.collect()
    assert path.name in caplog.text and "nobody called finish()" in caplog.text
    seen = gpu.bytes_of(loaded)
    assert set(seen["t63"]) == {UNFILLED}


def test_a_device_that_is_lost(gpu, many):
    coming = gpu.begin(many[0], slow=True)
    gpu.driver.fail_copy(5, LAUNCH_FAILED)
    with pytest.raises(inrush.Error) as caught:
        coming.finish()
    assert caught.value.code == "device_failed"
    del coming, caught
    gc.collect()
    gpu.driver.reset()


@pytest.mark.parametrize("stream", [None, 0])
def test_torch_has_no_memory(gpu, many, monkeypatch, stream):
    reason = torch.OutOfMemoryError("CUDA out of memory")

    def refuse(*_, **__):
        raise reason

    monkeypatch.setattr(_async.torch, "empty", refuse)
    monkeypatch.setattr("inrush.torch._memory.torch.empty", refuse)
    with pytest.raises(MemoryError) as caught:
        gpu.begin(many[0], stream=stream)
    assert caught.value.code == "out_of_memory" and caught.value.__cause__ is reason


def test_two_devices_at_once(gpu, many):
    path, tensors = many
    loader = inrush.Loader(cuda_library=gpu.driver.path)
    both = [inrush.torch.load_async(path, number, loader=loader, stream=0) for number in (0, 1)]
    for coming in both:
        seen = gpu.bytes_of(coming.wait())
        assert wrong_names(seen, tensors) == [] and len(seen) == 64
        coming.close()
