"""Signals, threads, forks and the end of the interpreter while something is loaded.

A load is slow where the loader reads 4 KiB at a time: then a file of 1 GiB takes seconds.
"""
import inspect
import threading
from pathlib import Path

import inrush
import pytest
from conftest import random_tensor, write_checkpoint
from resources import descriptor_count, thread_count, write_sparse

MIB = 1 << 20
# In front of every script: its arguments are a file of 16 times 64 MiB and a small one of random tensors.
PRELUDE = '''\
import atexit, gc, os, signal, sys, threading, time
''' + inspect.getsource(thread_count) + '''\
if "early" in globals(): early()
import inrush
large, small = sys.argv[1:3]
def slow_loader(**more):
    return inrush.Loader(readers=1, piece_bytes=4096, **more)
def interrupt(after=0.2):
    """SIGINT for this process, as a terminal sends it; returns the list that the time of it goes into."""
    sent = []
    def send():
        time.sleep(after)
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
    return sent
'''


@pytest.fixture
def files(tmp_path):
    """(large, small, tensors of small)."""
    large = write_sparse(tmp_path / "large.safetensors", {f"t{i:02}": ("U8", [64 * MIB]) for i in range(16)})
    tensors = {f"s{i}": random_tensor("F32", [256, 16], seed=i) for i in range(32)}
    return large, write_checkpoint(tmp_path / "small.safetensors", tensors), tensors


@pytest.fixture
def run(run_python, files):
    """run(script, *arguments, early="", **env): a script that gets both files; `early` runs before inrush is
    imported."""
    def run(script, *arguments, early="", **env):
        head = f"def early():\n{early}\n" if early else ""
        return run_python(head + PRELUDE + script, *files[:2], *arguments, **env)
    return run


def assert_quiet(finished, stdout="", rc=0):
    assert (finished.rc, finished.stdout.strip(), finished.stderr) == (rc, stdout, "")


# Ctrl-C

WAYS = {
    "load": "inrush.load(large, loader=slow_loader())",
    "load, DLPack": "inrush.load(large, framework='dlpack', loader=slow_loader())",
    "torch.load": "inrush.torch.load(large, loader=slow_loader())",
    "torch.stream": "for _ in inrush.torch.stream(large, loader=slow_loader(), window_bytes=1 << 27): pass",
    "torch.load_into": """inrush.torch.load_into(
        large, {f't{i:02}': torch.empty(64 << 20, dtype=torch.uint8) for i in range(4)}, only='t0[0-3]',
        loader=slow_loader())""",
    "load, with progress": "inrush.load(large, loader=slow_loader(), progress=lambda *_: None)",
    "load, on a GPU":
        "inrush.load(large, 'cuda:0', only='t0*', loader=slow_loader(cuda_library=sys.argv[3]))",
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_ends_a_load_soon(run, way, fake_cuda):
    script = f'''
if "torch" in {way!r}:
    import inrush.torch, torch
inrush.load(small)  # NumPy starts threads of its own
inrush.release()
threads, descriptors = thread_count(), len(os.listdir("/proc/self/fd"))
try:
    sent = interrupt()
    {WAYS[way]}
    print("it was too quick")
except KeyboardInterrupt as error:
    print(f"{{(time.perf_counter() - sent[0]) * 1e3:.0f}}")
    del error
gc.collect()
assert len(os.listdir("/proc/self/fd")) == descriptors
until = time.monotonic() + 10  # the thread that sent the signal ends by itself
while thread_count() > threads and time.monotonic() < until: time.sleep(0.01)
assert thread_count() == threads
loader = slow_loader()
assert len(inrush.load(small, loader=loader)) == 32
'''
    milliseconds = int(run(script, fake_cuda).check().stdout)
    print(f"{way}: {milliseconds} ms from the signal to KeyboardInterrupt")
    assert milliseconds < 5000


def test_a_loader_is_usable_after_an_interrupt(run):
    run('''
loader = slow_loader()
inrush.load(small, loader=loader)  # an import of NumPy does not survive an interrupt
for _ in range(3):
    try:
        interrupt(0.1)
        inrush.load(large, loader=loader)
        sys.exit("it was too quick")
    except KeyboardInterrupt:
        pass
    assert len(inrush.load(small, loader=loader)) == 32
''').check()


def test_an_interrupt_ends_opening_many_files(run, tmp_path):
    folder = tmp_path / "many"
    write_checkpoint(folder, {f"t{i}": ("U8", [1]) for i in range(6000)}, shards=6000)
    (folder / "model.safetensors.index.json").unlink()
    finished = run('''
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
start = time.perf_counter()
try:
    inrush.open(sys.argv[3])
    print("it was too quick")
except KeyboardInterrupt:
    print(f"{(time.perf_counter() - start) * 1e3 - 10:.0f}")
assert len(inrush.open(sys.argv[3])) == 6000
''', folder).check()
    print(f"open: {finished.stdout.strip()} ms from the signal to KeyboardInterrupt")
    assert int(finished.stdout) < 5000


def test_signal_handlers_run_while_a_load_waits(run):
    assert_quiet(run('''
hits = []
signal.signal(signal.SIGALRM, lambda *_: hits.append(time.perf_counter()))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
tensors = inrush.load(large, only="t0[0-3]", loader=slow_loader())
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(tensors) == 4 and tensors.report.complete
print(len(hits) > 3)
'''), "True")


def test_a_handler_that_raises_something_else(run):
    assert_quiet(run('''
class Stop(Exception): pass
def stop(*_): raise Stop("now")
signal.signal(signal.SIGTERM, stop)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
try:
    inrush.load(large, loader=slow_loader())
except Stop as error:
    print(error)
'''), "now")


# Threads

def test_other_threads_run_while_a_load_waits(files):
    counted, done = 0, threading.Event()

    def count():
        nonlocal counted
        while not done.wait(0.001):
            counted += 1

    other = threading.Thread(target=count)
    other.start()
    inrush.load(files[0], only="t00", loader=inrush.Loader(readers=1, piece_bytes=4096))
    done.set()
    other.join()
    assert counted > 20


def test_threads_share_a_loader(files):
    _, small, tensors = files
    loader = inrush.Loader(staging_bytes="256MiB")
    wrong, barrier = [], threading.Barrier(8)

    def load(number):
        barrier.wait()
        for _ in range(10):
            loaded = inrush.load(small, loader=loader, only=None if number % 2 else "s1*")
            expected = [name for name in tensors if number % 2 or name.startswith("s1")]
            if list(loaded) != expected or any(loaded[name].tobytes() != tensors[name][2] for name in loaded):
                wrong.append(number)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_that_make_their_first_plain_call_together(run):
    assert_quiet(run('''
barrier, loaded = threading.Barrier(8), []
def load():
    barrier.wait()
    loaded.append(len(inrush.load(small)))
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
from inrush import _loaders
print(loaded == [32] * 8, len(_loaders._kept.loaders))
'''), "True 1")


def test_release_while_loads_run(files):
    _, small, tensors = files
    done, wrong = threading.Event(), []

    def load():
        while not done.is_set():
            loaded = inrush.load(small)
            wrong.extend(name for name in tensors if loaded[name].tobytes() != tensors[name][2])

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        inrush.release()
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_release_under_a_stream(files):
    import inrush.torch

    _, small, tensors = files
    stream = inrush.torch.stream(small, window_bytes=64 << 10)
    taken = dict([next(stream)])
    inrush.release()
    taken.update(stream)
    assert {name: tensor.numpy().tobytes() for name, tensor in taken.items()} == {
        name: data for name, (_, _, data) in tensors.items()
    }


def test_release_frees_threads_and_memory(files):
    inrush.release()
    threads, descriptors = thread_count(), descriptor_count()
    inrush.load(files[1])
    assert thread_count() > threads
    inrush.release()
    assert (thread_count(), descriptor_count()) == (threads, descriptors)
    assert len(inrush.load(files[1])) == 32


# The native load, which the plain functions wrap

def start(path, loader, only=None):
    request = inrush._inrush.Request()
    request.only = only
    return loader.start(inrush.open(path), request)


def test_a_loader_that_is_dropped_before_its_load(files):
    _, small, tensors = files
    load = start(small, inrush.Loader())
    loaded = {}
    while batch := load.take():
        loaded.update((tensor.name, bytes(memoryview(tensor))) for tensor in batch)
    assert loaded == {name: data for name, (_, _, data) in tensors.items()}
    assert load.done and load.report().complete


def test_one_load_has_one_consumer(files):
    load = start(files[0], inrush.Loader(readers=1, piece_bytes=4096))
    ended, is_waiting = [], threading.Event()

    def consume():
        is_waiting.set()
        try:
            while load.take():
                pass
            ended.append("it was too quick")
        except inrush.Error as error:
            ended.append(error.code)

    consumer = threading.Thread(target=consume)
    consumer.start()
    is_waiting.wait()
    refusals = 0
    while refusals == 0 and consumer.is_alive():  # between two calls of take() nobody waits
        for call in (load.take, load.close):
            try:
                call()
                ended.append(f"{call} went through")
            except inrush.Error as error:
                assert error.code == "invalid_request" and "another thread is waiting" in str(error)
                refusals += 1
    loaded, planned = load.progress
    assert loaded < planned == 1024 * MIB
    load.cancel()
    consumer.join(30)
    assert (refusals, ended) == (2, ["cancelled"])
    load.close()
    assert not load.report().complete


def test_a_load_that_was_closed(files):
    load = start(files[1], inrush.Loader())
    load.close()
    load.close()
    load.cancel()
    assert load.done
    for call in (load.take, lambda: load.progress):
        with pytest.raises(inrush.Error, match="was closed") as caught:
            call()
        assert caught.value.code == "invalid_request"


def test_a_callback_that_reaches_into_its_own_load(files):
    seen = []

    def reach(*_):
        try:
            load.take()
        except inrush.Error as error:
            seen.append(str(error))

    request = inrush._inrush.Request()
    request.only = ["t00"]
    request.on_progress = reach
    load = inrush.Loader(readers=1, piece_bytes=4096).start(inrush.open(files[0]), request)
    while load.take():
        pass
    assert seen and all("another thread is waiting" in message for message in seen)


def test_a_callback_that_loads_something_else(files):
    large, small, tensors = files
    loader, nested = inrush.Loader(readers=1, piece_bytes=4096), []

    def tell(*_):
        if len(nested) < 3:
            nested.append(inrush.load(small, loader=loader))

    loaded = inrush.load(large, only="t00", loader=loader, progress=tell)
    assert len(nested) == 3 and not loaded["t00"].any()
    assert all(again[name].tobytes() == data for again in nested for name, (_, _, data) in tensors.items())


# Callbacks that raise

class Oops(Exception):
    pass


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("way", ["load", "torch.load", "torch.stream"])
def test_a_progress_function_that_raises(files, way, when):
    import inrush.torch

    large, small, _ = files
    slow, raised = inrush.Loader(readers=1, piece_bytes=4096), Oops("from the callback")
    threads, descriptors = thread_count(), descriptor_count()

    def tell(loaded, planned):
        if when == "early" or loaded == planned:
            raise raised

    call = {"load": inrush.load, "torch.load": inrush.torch.load,
            "torch.stream": lambda *args, **more: list(inrush.torch.stream(*args, **more))}[way]
    with pytest.raises(Oops) as caught:
        call(large, only="t0[0-3]" if when == "early" else "t00", loader=slow, progress=tell)
    assert caught.value is raised and caught.value.__cause__ is None
    assert len(inrush.load(small, loader=slow)) == 32
    slow.release_idle()
    assert (thread_count(), descriptor_count()) == (threads, descriptors)


# Forks

def test_plain_calls_in_a_forked_child(run):
    assert_quiet(run('''
first = inrush.load(small)
parents = inrush.Loader()
inrush.load(small, loader=parents)
pid = os.fork()
if pid == 0:
    again = inrush.load(small)
    assert all(again[name].tobytes() == first[name].tobytes() for name in first)
    for use in (lambda: inrush.load(small, loader=parents), parents.devices, parents.release_idle):
        try:
            use()
            sys.exit(5)
        except inrush.Error as error:
            assert error.code == "invalid_request" and "spawn" in str(error), error
    inrush.release()
    sys.exit(0)  # and not os._exit(): the destructors run too
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert len(inrush.load(small, loader=parents)) == len(inrush.load(small)) == 32
print("both")
'''), "both")


def test_a_fork_while_another_thread_loads(run):
    finished = run('''
loader, loaded, is_loading = slow_loader(), [], threading.Event()
def load():
    loaded.append(inrush.load(large, only="t0[0-3]", loader=loader, progress=lambda *_: is_loading.set()))
thread = threading.Thread(target=load)
thread.start()
is_loading.wait()
children = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        assert len(inrush.load(small)) == 32
        del loader
        gc.collect()
        sys.exit(0)
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
thread.join()
print(len(loaded[0]), loaded[0].report.complete)
''').check()
    assert finished.stdout.splitlines() == ["[0, 0, 0, 0, 0]", "4 True"]


def test_a_fork_while_a_plain_call_sets_up(run):
    """The child must not inherit a lock that another thread holds."""
    finished = run('''
import numpy, ml_dtypes  # whose import must not be under way in a fork, as Python's own locks are no better
done = threading.Event()
def load():
    while not done.is_set():
        inrush.load(small)
        inrush.release()
threads = [threading.Thread(target=load) for _ in range(3)]
for thread in threads: thread.start()
codes = []
for _ in range(15):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        assert len(inrush.load(small)) == 32
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
done.set()
for thread in threads: thread.join()
print(set(codes))
''').check()
    assert finished.stdout.strip() == "{0}"


def test_a_fork_under_a_stream(run):
    finished = run('''
import inrush.torch
stream = inrush.torch.stream(small, window_bytes=64 << 10)
taken = [next(stream)]
for way in ("goes on", "closes", "drops", "leaves"):
    pid = os.fork()
    if pid == 0:
        if way == "goes on":
            try:
                for item in stream: pass
                os._exit(5)
            except inrush.Error as error:
                assert error.code == "invalid_request" and "spawn" in str(error), error
                os._exit(0)
        elif way == "closes":
            stream.close()
        elif way == "drops":
            del stream
            gc.collect()
        assert taken[0][1].isfinite().numel() == 4096
        sys.exit(0)
    print(way, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
taken += stream
print(len(taken))
''').check()
    assert finished.stdout.splitlines() == ["goes on 0", "closes 0", "drops 0", "leaves 0", "32"]


def test_a_fork_after_a_gpu_was_used(run, fake_cuda, source_folder):
    """CUDA does not survive a fork: the child is told so, and the CPU works there."""
    drivers = Path(__file__).parent, fake_cuda, source_folder / "tests/fakes/fake_cuda.hpp"
    finished = run('''
from pathlib import Path
sys.path.append(sys.argv[3])
from fake_driver import NOT_INITIALIZED, FakeDriver
driver = FakeDriver(*map(Path, sys.argv[4:]))
kept = inrush.load(small, "cuda:0")
assert kept["s0"].device == "cuda:0"
loader = inrush.Loader()
inrush.load(small, "cuda:0", loader=loader)
pid = os.fork()
if pid == 0:
    driver.fail(b"cuInit", 1, NOT_INITIALIZED)  # as the real one answers in a child
    try:
        inrush.load(small, "cuda:0")
        print("went through")
    except inrush.Error as error:
        print(error.code, "spawn" in str(error))
    for use in (lambda: inrush.load(small, "cuda:0", loader=loader), lambda: loader.copy_to_host(kept["s0"])):
        try:
            use()
        except inrush.Error as error:
            print(error.code, "spawn" in str(error))
    assert len(inrush.load(small)) == 32
    kept.clear()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
assert len(inrush.load(small, "cuda:0")) == 32
''', *drivers, LD_LIBRARY_PATH=fake_cuda.parent)
    assert finished.check().stdout.splitlines() == [
        "environment_unfit True", "invalid_request True", "invalid_request True", "0",
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_pool(run, method):
    finished = run(f'''
import multiprocessing
def load(name):
    return float(inrush.load(small, only=name)[name].view("u1").sum())
def fail(name):
    return inrush.load(small + ".absent")
if __name__ == "__main__":
    inrush.load(small)
    names = [f"s{{i}}" for i in range(8)]
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(load, names) == list(map(load, names)))
        try:
            pool.apply(fail, ("s0",))
        except FileNotFoundError as error:
            print(error.code)
''').check()
    assert finished.stdout.splitlines() == ["True", "not_found"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(run, method):
    finished = run(f'''
import torch, inrush.torch
class Weights(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, i): return inrush.torch.load(small, only=f"s{{i}}")[f"s{{i}}"]
if __name__ == "__main__":
    whole = inrush.torch.load(small)
    batches = torch.utils.data.DataLoader(
        Weights(), batch_size=4, num_workers=2, multiprocessing_context={method!r})
    seen = 0
    for batch in batches:
        for tensor in batch:
            seen += bool(torch.equal(tensor.view(torch.uint8), whole[f"s{{seen}}"].view(torch.uint8)))
    print(seen)
''').check()
    assert finished.stdout.strip() == "32"


# The end of the interpreter

DAEMONS = {
    "in a load": "inrush.load(large, loader=slow)",
    "in a load with progress": "inrush.load(large, loader=slow, progress=lambda *_: None)",
    "in a load on a GPU":
        "inrush.load(large, 'cuda:0', only='t0*', loader=slow_loader(cuda_library=sys.argv[3]))",
    "in a stream": "for _ in inrush.torch.stream(large, loader=slow, window_bytes=1 << 27): pass",
    "between tensors of a stream":
        "for _ in inrush.torch.stream(small, window_bytes=1 << 16): time.sleep(60)",
    "in a callback": "inrush.load(large, loader=slow, progress=lambda *_: time.sleep(60))",
}


@pytest.mark.parametrize("where", DAEMONS)
def test_daemon_threads_at_the_end(run, where, fake_cuda):
    finished = run(f'''
if "stream" in {where!r}: import inrush.torch
slow = slow_loader()
def work():
    try:
        {DAEMONS[where]}
        os.write(2, b"it was too quick")
    except inrush.Error as error:
        if error.code != "cancelled": os.write(2, str(error).encode())
for _ in range(4): threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
''', fake_cuda)
    assert_quiet(finished)


def test_a_daemon_thread_that_does_not_catch(run):
    finished = run('''
threading.Thread(target=lambda: inrush.load(large, loader=slow_loader()), daemon=True).start()
time.sleep(0.3)
''')
    assert finished.rc == 0
    # Python tells of the exception, where it comes to that before it ends the thread.
    assert finished.stderr == "" or "Exception in thread" in finished.stderr
    assert "Fatal" not in finished.stderr and "terminate" not in finished.stderr


BUSY = {
    "loading": "inrush.load(small)",
    "loading with progress": "inrush.load(small, progress=lambda *_: None)",
    "opening": "inrush.open(small)",
    "failing": "inrush.open(small + '.absent')",
    "listing devices": "inrush.Loader().devices()",
    "releasing": "inrush.release()",
}


@pytest.mark.parametrize("doing", BUSY)
def test_daemon_threads_that_go_on_and_on(run, doing):
    """They want the interpreter's lock at every moment, also when it begins to go."""
    script = f'''
def work():
    while True:
        try:
            {BUSY[doing]}
        except inrush.Error:
            pass
for _ in range(6): threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
'''
    for _ in range(3):
        assert_quiet(run(script))


def test_a_daemon_thread_in_a_callback_that_never_ends(run):
    assert_quiet(run('''
inside = threading.Event()
def tell(*_):
    inside.set()
    while True: time.sleep(0.001)
threading.Thread(target=lambda: inrush.load(large, loader=slow_loader(), progress=tell), daemon=True).start()
assert inside.wait(60)
'''))


def test_other_threads_are_waited_for(run):
    assert_quiet(run('''
def work():
    print(inrush.load(large, only="t00", loader=slow_loader()).report.complete)
threading.Thread(target=work).start()
'''), "True")


@pytest.mark.parametrize("script", [
    "inrush.load(large, loader=slow_loader(), progress=lambda *_: sys.exit(7))",
    "for item in inrush.torch.stream(large, loader=slow_loader(), window_bytes=1 << 27): sys.exit(7)",
    "stream = inrush.torch.stream(small, window_bytes=1 << 16)\nkept = [next(stream)]\nsys.exit(7)",
    "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\ninrush.load(large, loader=slow_loader())",
])
def test_sys_exit_in_the_middle(run, script):
    assert_quiet(run(("import inrush.torch\n" if "torch" in script else "") + script), rc=7)


def test_streams_are_alive_at_the_end(run):
    assert_quiet(run('''
import builtins, inrush.torch
def begin():
    stream = inrush.torch.stream(small, window_bytes=1 << 16)
    return stream, next(stream)
stream, first = begin()
builtins.streams = [begin(), begin()]
cycle = [*begin()]
cycle.append(cycle)
del cycle
'''))


def test_native_loads_are_alive_at_the_end(run):
    assert_quiet(run('''
import builtins
from inrush._inrush import Request
asked = Request()
asked.on_progress = print
load = slow_loader().start(inrush.open(large), asked)
builtins.loads = [load, inrush.Loader().start(inrush.open(small), Request())]
'''))


def test_tensors_are_alive_at_the_end(run, fake_cuda):
    assert_quiet(run('''
import builtins, numpy, torch, inrush.torch
arrays = inrush.load(small)
tensors = inrush.torch.load(small)
native = inrush.load(small, framework="dlpack")
capsule = native["s0"].__dlpack__()
view = memoryview(native["s1"])
imported = numpy.from_dlpack(native["s2"]), torch.from_dlpack(native["s3"])
on_device = inrush.load(small, "cuda:1", loader=inrush.Loader(cuda_library=sys.argv[3]))
builtins.kept = [arrays, tensors, native, capsule, view, imported, on_device]
sys.modules["kept"] = tensors
class Last:
    """Used when most is gone."""
    def __init__(self, *kept): self.kept = kept
    def __del__(self): assert bytes(self.kept[0]) and self.kept[1].tobytes() and self.kept[2].numel()
builtins.last = Last(view, arrays["s5"], tensors["s6"])
''', fake_cuda))


@pytest.mark.parametrize("registered", ["before inrush is imported", "after"])
@pytest.mark.parametrize("does", ["uses", "loads", "streams"])
def test_functions_that_run_at_exit(run, registered, does):
    body = {
        "uses": "print(len(tensors), int(tensors['s0'].view('u1').sum()) > 0)",
        "loads": "print(len(inrush.load(small)), inrush.load(small)['s0'].nbytes > 0)",
        "streams": "print(len(list(inrush.torch.stream(small))), True)",
    }[does]
    registration = f"    import atexit\n    atexit.register(lambda: exec({body!r}, globals()))"
    early, late = (registration, "") if registered.startswith("before") else ("", f"if True:\n{registration}")
    head = "import inrush.torch\n" if does == "streams" else ""
    assert_quiet(run(f"{head}tensors = inrush.load(small)\n{late}", early=early), "32 True")


def test_a_kept_loader_ends_with_the_process(run):
    assert_quiet(run('''
loaders = [inrush.Loader() for _ in range(4)]
for loader in loaders: inrush.load(small, loader=loader)
inrush.load(small)
'''))


def test_numbers_of_an_array_after_the_loader_is_gone(run):
    assert_quiet(run('''
def load():
    return inrush.load(small, loader=inrush.Loader())
arrays = load()
gc.collect()
inrush.release()
again = inrush.load(small)
print(all(array.tobytes() == again[name].tobytes() for name, array in arrays.items()))
'''), "True")
