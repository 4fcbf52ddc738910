"""How a device may be spelt, what every error is besides inrush.Error, and what the logger "inrush" gets."""
import logging

import inrush
import inrush._errors
import inrush._inrush
import inrush.torch
import numpy
import pytest
import torch
from conftest import random_tensor
from fake_driver import LAUNCH_FAILED
from resources import write_sparse

ENTRY = random_tensor("F32", [4, 8])


def first_of_stream(*arguments, **more):
    return next(inrush.torch.stream(*arguments, **more))


LOADS = [inrush.load, inrush.torch.load, first_of_stream]


@pytest.fixture
def path(make_checkpoint):
    return make_checkpoint("model", {"weight": ENTRY})


@pytest.fixture
def gpus(driver):
    """A loader that sees two GPUs."""
    return inrush.Loader(cuda_library=driver.path, piece_bytes="2MiB")  # no windows, however few CPUs


def raised_by(call, *arguments, **more):
    with pytest.raises(inrush.Error) as raised:
        call(*arguments, **more)
    return raised.value


# --- devices ---


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)])
def test_spellings_of_the_cpu(path, device):
    assert isinstance(inrush.load(path, device)["weight"], numpy.ndarray)
    assert inrush.load(path, device=device).report.device == "cpu"
    assert inrush.torch.load(path, device)["weight"].device == torch.device("cpu")
    assert [tensor.device for _, tensor in inrush.torch.stream(path, device)] == [torch.device("cpu")]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1"), ("cuda:01", "cuda:1"),
        (0, "cuda:0"), (1, "cuda:1"),
        ("0", "cuda:0"), ("1", "cuda:1"), (numpy.int64(1), "cuda:1"), (torch.device("cuda"), "cuda:0"),
        (torch.device("cuda:1"), "cuda:1"), (torch.device("cuda", 1), "cuda:1"), (torch.device(1), "cuda:1"),
    ],
)
def test_spellings_of_a_gpu(path, gpus, device, name):
    tensors = inrush.load(path, device, loader=gpus)
    assert (tensors["weight"].device, tensors.report.device) == (name, name)
    assert gpus.copy_to_host(tensors["weight"]) == ENTRY[2]


def test_a_gpu_by_its_uuid(path, gpus):
    devices = gpus.devices()
    assert [name for name, _ in devices] == ["cuda:0", "cuda:1", "cpu"]
    assert [uuid[:4] for _, uuid in devices] == ["GPU-", "MIG-", ""]
    for name, uuid in devices[:2]:
        assert inrush.load(path, uuid, loader=gpus)["weight"].device == name


REFUSED = [
    "mps:0", "mps", "meta", "xpu", "gpu", "cuda:x", "cuda:", "cuda:-1", "cuda:0:0",
    "cuda:\N{ARABIC-INDIC DIGIT ONE}", "cpu:1", "CUDA:0", "Cuda", " cuda:0", "cuda:0\n", "", "-1", "1.0",
    True, False, None, -1, 1.0, b"cpu", [0], object(),
    torch.device("meta"), torch.device("mps"), torch.device("mps:0"),
]


@pytest.mark.parametrize("device", REFUSED, ids=repr)
@pytest.mark.parametrize("load", LOADS)
def test_what_is_no_device_is_refused(path, gpus, load, device):
    error = raised_by(load, path, device, loader=gpus)
    assert error.code == "invalid_request" and isinstance(error, ValueError)
    assert "not understood" in str(error) and "cuda:1" in str(error)


@pytest.mark.parametrize("device", [2**70, f"cuda:{2**70}", "9" * 4000])
def test_a_number_that_no_machine_counts_to_is_refused(path, gpus, device):
    assert raised_by(inrush.load, path, device, loader=gpus).code == "invalid_request"


@pytest.mark.parametrize(
    ("device", "seen"),
    [("cuda:2", "cuda:2"), (7, "cuda:7"), ("GPU-f4ce", "GPU-f4ce"), ("MIG-", "MIG-")],
)
def test_a_gpu_that_is_not_here_names_those_that_are(path, gpus, device, seen):
    error = raised_by(inrush.load, path, device, loader=gpus)
    assert error.code == "environment_unfit" and not isinstance(error, ValueError)
    assert seen in str(error)
    assert all(name in str(error) and uuid in str(error) for name, uuid in gpus.devices()[:2])


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, "GPU-f4ce", "MIG-f4ce"])
def test_without_a_driver_the_message_says_why(path, device):
    loader = inrush.Loader(cuda_library="/absent/libcuda.so.1")
    assert loader.devices() == [("cpu", "")]
    error = raised_by(inrush.load, path, device, loader=loader)
    assert error.code == "environment_unfit" and "/absent/libcuda.so.1" in str(error)
    assert inrush.load(path, loader=loader)["weight"].tobytes() == ENTRY[2]


@pytest.mark.parametrize("refusal", [RuntimeError("no driver"), AssertionError("not compiled")])
def test_a_torch_without_cuda_has_no_current_device(path, monkeypatch, refusal):
    def current_device():
        raise refusal

    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    for device in ("cuda", torch.device("cuda")):
        error = raised_by(inrush.torch.load, path, device)
        assert error.code == "environment_unfit" and str(refusal) in str(error)


@pytest.mark.parametrize(("framework", "device"), [("numpy", "cuda:0"), ("cupy", "cpu")])
def test_a_framework_that_has_no_arrays_there_is_refused_first(path, gpus, framework, device):
    checkpoint = inrush.open(path)
    path.unlink()
    error = raised_by(inrush.load, checkpoint, device, framework=framework, loader=gpus)
    assert error.code == "invalid_request"
    assert framework in str(error) and device in str(error)


# --- words ---


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ({"transfer": "fast"}, ["auto", "staged", "gds"]), ({"transfer": ""}, ["auto"]),
        ({"page_cache": "drop"}, ["auto", "keep", "bypass"]), ({"page_cache": "AUTO"}, ["auto"]),
        ({"unsupported": "bytes"}, ["uint8", "error"]),
    ],
)
@pytest.mark.parametrize("load", LOADS)
def test_a_word_that_is_not_known_is_refused_with_those_that_are(path, load, arguments, known):
    error = raised_by(load, path, **arguments)
    assert error.code == "invalid_request"
    ((argument, word),) = arguments.items()
    assert argument in str(error) and word in str(error) and all(word in str(error) for word in known)


@pytest.mark.parametrize("arguments", [{"transfer": "fast"}, {"page_cache": "drop"}])
def test_load_into_refuses_words_too(path, arguments):
    target = {"weight": torch.full((4, 8), 7.0)}
    assert raised_by(inrush.torch.load_into, path, target, **arguments).code == "invalid_request"
    assert target["weight"].eq(7).all()


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "NumPy"])
def test_a_framework_that_is_not_known_is_refused(path, framework):
    error = raised_by(inrush.load, path, framework=framework)
    assert error.code == "invalid_request"
    assert all(word in str(error) for word in (framework, "numpy", "cupy", "jax", "dlpack", "inrush.torch"))


def test_a_way_that_cannot_be_is_an_error_and_no_fallback(path):
    error = raised_by(inrush.load, path, transfer="gds")
    assert error.code == "environment_unfit" and "gds" in str(error)


@pytest.mark.parametrize(
    "options",
    [{"piece_bytes": "8 parsecs"}, {"staging_bytes": -1}, {"piece_bytes": 1.5}, {"staging_bytes": 1 << 64},
     {"piece_bytes": ""}, {"staging_bytes": "-1"}, {"piece_bytes": b"8MiB"}],
)
def test_a_size_that_is_none_is_refused(options):
    error = raised_by(inrush.Loader, **options)
    assert error.code == "invalid_request" and "size" in str(error)


def test_staging_too_small_to_load_by_is_refused_by_the_load(path):
    error = raised_by(inrush.load, path, loader=inrush.Loader(staging_bytes=1))
    assert error.code == "invalid_request" and "staging" in str(error)


# --- errors ---

BUILT_IN = {
    "invalid_request": ValueError, "not_found": FileNotFoundError, "timed_out": TimeoutError,
    "out_of_memory": MemoryError, "environment_unfit": None, "corrupt_checkpoint": None,
    "storage_failed": None, "device_failed": None, "cancelled": None, "internal": None,
}


@pytest.mark.parametrize(("code", "built_in"), BUILT_IN.items())
def test_each_code_is_one_built_in_error_at_most(code, built_in):
    error = inrush._errors.make_error(code, "the message")
    assert isinstance(error, inrush.Error)
    assert (error.code, str(error), error.report) == (code, "the message", None)
    others = {ValueError, OSError, MemoryError, RuntimeError}
    others |= {FileNotFoundError, PermissionError, TimeoutError}
    if built_in is not None:
        others -= set(built_in.__mro__)
        assert isinstance(error, built_in)
    assert not isinstance(error, tuple(others))


def test_out_of_memory_is_a_memory_error_before_anything_is_allocated(tmp_path):
    path = write_sparse(tmp_path / "model", {"weight": ("U8", [1 << 40])})
    error = raised_by(inrush.load, path)
    assert error.code == "out_of_memory" and isinstance(error, MemoryError)
    assert "1.10 TB" in str(error) and str(path) in str(error)


def test_a_cancelled_load_says_so(path):
    load = inrush.Loader().start(inrush.open(path), inrush._inrush.Request())
    load.cancel()

    def take_all():
        while load.take():
            pass

    assert raised_by(take_all).code == "cancelled"
    load.close()
    load.close()
    assert not load.report().complete
    assert raised_by(load.take).code == "invalid_request"


def test_errors_of_a_device(path, driver, gpus):
    driver.set_device_bytes(64)
    error = raised_by(inrush.load, path, "cuda:0", loader=gpus)
    assert error.code == "out_of_memory" and isinstance(error, MemoryError)
    assert "cuda:0" in str(error) and str(path) in str(error)
    driver.reset()
    driver.fail_copy(1, LAUNCH_FAILED)
    error = raised_by(inrush.load, path, "cuda:0", loader=gpus)
    assert error.code == "device_failed" and not error.report.complete
    assert "cuda:0" in str(error) and str(path) in str(error)
    driver.reset()
    assert gpus.copy_to_host(inrush.load(path, "cuda:1", loader=gpus)["weight"]) == ENTRY[2]


def test_an_error_of_a_load_carries_its_report(tmp_path):
    path = write_sparse(tmp_path / "model", {"weight": ("U8", [1 << 30])})
    error = raised_by(inrush.load, path, timeout=1e-9)
    assert error.report.planned_bytes == 1 << 30 and not error.report.complete
    assert str(error.report).startswith("incomplete")


# --- log ---

def test_a_fallback_is_a_warning_of_the_logger_inrush(path, driver, gpus, caplog):
    driver.set_pinned_bytes_max(0)
    report = inrush.load(path, "cuda:0", loader=gpus).report
    (fallback,) = report.fallbacks
    assert (fallback.what, fallback.count) == ("pinned memory", 1)
    assert fallback.reason in str(report) and "cuMemHostRegister" in fallback.reason
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("inrush", "WARNING")
    for part in (fallback.what, fallback.reason, str(path)):
        assert part in record.getMessage()
    assert gpus.take_log() == []


def test_a_load_that_fails_logs_its_fallbacks_too(path, driver, gpus, caplog):
    driver.set_pinned_bytes_max(0)
    driver.fail_copy(1, LAUNCH_FAILED)
    assert raised_by(inrush.load, path, "cuda:0", loader=gpus).code == "device_failed"
    assert [record.name for record in caplog.records] == ["inrush"]


NO_LOGGING = """
import ctypes, sys
import inrush

control = ctypes.CDLL(sys.argv[1]).fake_cuda_control
control.restype = ctypes.POINTER(ctypes.c_void_p)
set_pinned_bytes_max = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(control()[4])
set_pinned_bytes_max(0)
loader = inrush.Loader(cuda_library=sys.argv[1], piece_bytes="2MiB")
report = inrush.load(sys.argv[2], "cuda:0", loader=loader).report
print(len(report.fallbacks))
"""


def test_a_program_that_sets_up_no_logging_sees_nothing(path, fake_cuda, run_python):
    result = run_python(NO_LOGGING, fake_cuda, path).check()
    assert (result.stdout, result.stderr) == ("1\n", "")


def test_a_load_that_had_no_fallback_logs_nothing(path, caplog):
    with caplog.at_level(logging.INFO, logger="inrush"):
        inrush.load(path)
    assert [record for record in caplog.records if record.name == "inrush"] == []
