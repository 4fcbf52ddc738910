"""inrush.Tensor: DLPack and the buffer protocol, by what imports them and by their rules."""
import ctypes
import gc
import threading

import inrush
import jax.dlpack
import numpy
import pytest
import torch
from conftest import DTYPE_BITS, random_tensor
from resources import resident_bytes

MIB = 1 << 20
# DLDataType: code, bits, lanes. None: DLPack has no type that consumers agree on.
DLPACK = {
    "BOOL": (6, 8, 1), "F4": (17, 4, 2), "F6_E2M3": None, "F6_E3M2": None, "U8": (1, 8, 1), "I8": (0, 8, 1),
    "F8_E5M2": (12, 8, 1), "F8_E4M3": (10, 8, 1), "F8_E8M0": (14, 8, 1), "F8_E4M3FNUZ": (11, 8, 1),
    "F8_E5M2FNUZ": (13, 8, 1), "I16": (0, 16, 1), "U16": (1, 16, 1), "F16": (2, 16, 1), "BF16": (4, 16, 1),
    "I32": (0, 32, 1), "U32": (1, 32, 1), "F32": (2, 32, 1), "C64": (5, 64, 1), "F64": (2, 64, 1),
    "I64": (0, 64, 1), "U64": (1, 64, 1),
}
NUMPY_LACKS = {"BF16", "F4"} | {dtype for dtype in DLPACK if dtype.startswith(("F6", "F8"))}
JAX_LACKS = {"F4", "F6_E2M3", "F6_E3M2"}
INEXPRESSIBLE = {"F6_E2M3", "F6_E3M2"}
IMPORTERS = [numpy.from_dlpack, torch.from_dlpack, jax.dlpack.from_dlpack, memoryview]
CPU = (1, 0)


@pytest.fixture
def load(make_checkpoint):
    def load_tensors(tensors, **arguments):
        return inrush.load(make_checkpoint("model", tensors), framework="dlpack", **arguments)

    return load_tensors


@pytest.fixture
def tensor(load):
    return load({"weight": random_tensor("F32", [3, 4])})["weight"]


# --- what a tensor says of itself ---


def test_attributes(load, every_dtype):
    tensors = load(every_dtype)
    assert list(tensors) == list(every_dtype)
    for name, (dtype, shape, data) in every_dtype.items():
        tensor = tensors[name]
        assert isinstance(tensor, inrush.Tensor)
        assert (tensor.name, tensor.dtype, tensor.shape) == (name, dtype, tuple(shape))
        assert (tensor.nbytes, tensor.device, tensor.owner) == (len(data), "cpu", None)
        assert tensor.data_ptr % 256 == 0 and (tensor.data_ptr == 0) == (data == b"")
        assert tensor.__dlpack_device__() == CPU
        assert repr(tensor) == f"<inrush.Tensor {name}: {dtype} {shape} on cpu>"


def test_memoryview_is_the_bytes(load, every_dtype):
    for name, tensor in load(every_dtype).items():
        view = memoryview(tensor)
        assert (view.format, view.itemsize, view.ndim, view.readonly) == ("B", 1, 1, False)
        assert view.contiguous and view.nbytes == tensor.nbytes
        assert bytes(view) == bytes(tensor) == every_dtype[name][2]


def test_a_memoryview_owns_the_memory(load):
    entry = random_tensor("U8", [MIB])
    view = memoryview(load({"weight": entry}).pop("weight"))
    inrush.release()
    gc.collect()
    load({"other": random_tensor("U8", [MIB], seed=2)})
    assert bytes(view) == entry[2]
    view[0] = entry[2][0] ^ 1
    assert view[0] != entry[2][0]


def test_as_bytes_is_the_same_memory_without_a_type(load, every_dtype):
    for name, tensor in load(every_dtype).items():
        flat = tensor.as_bytes()
        assert (flat.name, flat.dtype, flat.shape) == (name, "U8", (tensor.nbytes,))
        assert flat.data_ptr == tensor.data_ptr
        assert numpy.from_dlpack(flat).tobytes() == every_dtype[name][2]
    with pytest.raises(BufferError, match="as_bytes"):
        tensor = load({"packed": ("F6_E2M3", [4])})["packed"]
        tensor.__dlpack__()


# --- importers ---


def test_numpy_imports_without_a_copy(load, every_dtype):
    for name, tensor in load(every_dtype).items():
        if tensor.dtype in NUMPY_LACKS:
            continue
        array = numpy.from_dlpack(tensor)
        assert (array.shape, array.tobytes()) == (tensor.shape, every_dtype[name][2])
        assert array.flags.writeable and array.flags.c_contiguous
        assert array.ctypes.data == tensor.data_ptr or not tensor.nbytes


def test_torch_imports_without_a_copy(load, every_dtype):
    for name, tensor in load(every_dtype).items():
        if tensor.dtype in INEXPRESSIBLE:
            continue
        imported = torch.from_dlpack(tensor)
        rows = list(tensor.shape)
        if tensor.dtype == "F4":
            rows[-1] //= 2  # pairs
        assert list(imported.shape) == rows
        assert imported.reshape(-1).view(torch.uint8).numpy().tobytes() == every_dtype[name][2]
        assert imported.data_ptr() == tensor.data_ptr


def test_jax_imports_without_a_copy(load, every_dtype):
    for name, tensor in load(every_dtype).items():
        if tensor.dtype in JAX_LACKS or DTYPE_BITS[tensor.dtype] == 64 and tensor.dtype != "C64":
            continue  # those of 64 bits: inrush.load(framework="jax")
        array = jax.dlpack.from_dlpack(tensor)
        assert (array.shape, numpy.asarray(array).tobytes()) == (tensor.shape, every_dtype[name][2])
        assert array.unsafe_buffer_pointer() == tensor.data_ptr or not tensor.nbytes


@pytest.mark.parametrize("importer", IMPORTERS)
def test_what_was_imported_outlives_everything(load, importer):
    entry = random_tensor("F32", [256, 1024])
    tensors = load({"before": random_tensor("F32", [9]), "weight": entry}, loader=inrush.Loader())
    imported = importer(tensors["weight"])
    del tensors
    inrush.release()
    gc.collect()
    load({"weight": random_tensor("F32", [256, 1024], seed=2)})
    assert numpy.asarray(imported).tobytes() == entry[2]


def test_memory_may_be_let_go_on_another_thread(load):
    tensors = load({"a": ("U8", [MIB]), "b": ("F32", [9])})
    imported = [numpy.from_dlpack(tensor) for tensor in tensors.values()]
    del tensors
    thread = threading.Thread(target=imported.clear)
    thread.start()
    thread.join()
    assert imported == []


# --- the protocol ---


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("manager_context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]


def name_of(capsule):
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get_name(capsule).decode()


def content_of(capsule, structure):
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return structure.from_address(get_pointer(capsule, name_of(capsule).encode()))


def assert_describes(exported, tensor):
    shape = list(tensor.shape)
    code, bits, lanes = DLPACK[tensor.dtype]
    if lanes == 2:
        shape[-1] //= 2
    assert (exported.code, exported.bits, exported.lanes) == (code, bits, lanes)
    assert ((exported.data or 0) + exported.byte_offset, exported.ndim) == (tensor.data_ptr, len(shape))
    assert (exported.device_type, exported.device_id) == CPU
    assert exported.shape[: len(shape)] == shape
    strides, stride = [], 1
    for length in reversed(shape):
        strides.insert(0, stride)
        stride *= length
    assert exported.strides[: len(shape)] == strides


def test_a_capsule_describes_the_tensor(load, every_dtype):
    for tensor in load(every_dtype | {"deep": random_tensor("I16", [2, 3, 5, 7])}).values():
        if DLPACK[tensor.dtype] is None:
            continue
        capsule = tensor.__dlpack__()
        assert name_of(capsule) == "dltensor"
        assert_describes(content_of(capsule, DLManagedTensor).tensor, tensor)
        capsule = tensor.__dlpack__(max_version=(1, 0))
        assert name_of(capsule) == "dltensor_versioned"
        managed = content_of(capsule, DLManagedTensorVersioned)
        assert (managed.major, managed.flags) == (1, 0)
        assert_describes(managed.tensor, tensor)


@pytest.mark.parametrize(
    ("max_version", "name"),
    [(None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((1, 1), "dltensor_versioned"),
     ((2, 5), "dltensor_versioned")],
)
def test_the_version_is_one_that_the_consumer_knows(tensor, max_version, name):
    assert name_of(tensor.__dlpack__(max_version=max_version)) == name


@pytest.mark.parametrize("stream", [None, -1, 0, 1, 2, 1 << 40])
def test_any_stream_will_do(tensor, stream):
    assert name_of(tensor.__dlpack__(stream=stream)) == "dltensor"


def test_another_device_is_a_buffer_error(tensor):
    assert name_of(tensor.__dlpack__(dl_device=CPU)) == "dltensor"
    for device in ((2, 0), (1, 1)):
        with pytest.raises(BufferError, match="device"):
            tensor.__dlpack__(dl_device=device)


def test_a_copy_is_the_consumers_business(tensor):
    assert name_of(tensor.__dlpack__(copy=False)) == "dltensor"
    with pytest.raises(BufferError, match="copy"):
        tensor.__dlpack__(copy=True)
    assert numpy.from_dlpack(tensor, copy=False).ctypes.data == tensor.data_ptr


def test_arguments_go_by_name(tensor):
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("F6_E2M3", [4]), ("F6_E3M2", [0]), ("F4", [2, 7]), ("F4", [8, 1])]
)
def test_what_dlpack_cannot_say_is_a_buffer_error(load, dtype, shape):
    entry = random_tensor(dtype, shape)
    tensor = load({"weight": entry})["weight"]
    for max_version in (None, (1, 0)):
        with pytest.raises(BufferError, match=dtype):
            tensor.__dlpack__(max_version=max_version)
    assert bytes(memoryview(tensor)) == entry[2]


# --- no memory is lost ---


def leave(tensor):
    tensor.__dlpack__()
    tensor.__dlpack__(max_version=(1, 0))


@pytest.mark.parametrize("use", [leave, *IMPORTERS, inrush.Tensor.as_bytes])
def test_memory_is_flat(make_checkpoint, use):
    """A capsule that nobody took, or one that somebody took, keeps no memory alive."""
    path = make_checkpoint("model", {"weight": ("F32", [64 << 10])})  # 256 KiB

    def rounds(count):
        for _ in range(count):
            (tensor,) = inrush.load(path, framework="dlpack").values()
            for _ in range(3):
                use(tensor)

    rounds(20)
    before = resident_bytes()
    rounds(1000)
    assert resident_bytes() - before < 64 * MIB  # of 256 that were loaded


def test_the_descriptions_of_tensors_are_freed(tensor):
    before = resident_bytes()
    for _ in range(100_000):
        leave(tensor)
    assert resident_bytes() - before < 8 * MIB  # each description has over a hundred bytes


def test_a_dimension_that_nobody_can_count(make_checkpoint):
    tensors = {"huge": ("F32", [0, 2**63, 4], b""), "wide": ("F32", [0, 2**62, 8], b"")}
    path = make_checkpoint("m.safetensors", tensors)
    tensors = inrush.load(path, framework="dlpack")
    assert tensors["huge"].shape == (0, 2**63, 4)
    with pytest.raises(BufferError, match="2.63"):
        tensors["huge"].__dlpack__()
    tensors["wide"].__dlpack__()
    for framework in ("numpy", "jax"):
        with pytest.raises(inrush.Error, match="2.63") as caught:
            inrush.load(path, framework=framework, only="huge")
        assert caught.value.code == "invalid_request"
