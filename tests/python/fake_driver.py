"""Our own libcuda (tests/fakes/fake_cuda.hpp) as Python steers it, and tensors in memory that it gives out.

Its device memory has addresses that fault when the CPU touches them: only the driver gets at the bytes.
"""
import contextlib
import ctypes
import re
import threading
import types
import weakref
from pathlib import Path

import torch

# CUresult
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
LAUNCH_FAILED = 719

POISON = 0xA5  # what fresh memory of the fake holds

_RESULT = ctypes.c_int


class Live(ctypes.Structure):
    """What is alive in the driver."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "contexts", "allocations", "allocated_bytes", "registrations", "registered_bytes", "streams",
        "events", "modules",
    )]

    def __eq__(self, other):
        return bytes(self) == bytes(other)

    def __repr__(self):
        return str({name: getattr(self, name) for name, _ in self._fields_})


# Of the controls that the tests use: result, arguments.
_CONTROLS = {
    "reset": (None,), "set_delay_max": (None, ctypes.c_uint32), "set_device_bytes": (None, ctypes.c_uint64),
    "set_pinned_bytes_max": (None, ctypes.c_uint64), "set_driver_version": (None, ctypes.c_int),
    "set_device_count": (None, ctypes.c_int), "fail": (None, ctypes.c_char_p, ctypes.c_uint64, _RESULT),
    "fail_from": (None, ctypes.c_char_p, ctypes.c_uint64, _RESULT),
    "fail_copy": (None, ctypes.c_uint64, _RESULT), "hold": (None, ctypes.c_void_p),
    "let_go": (None, ctypes.c_void_p), "live": (Live,), "misuse_count": (ctypes.c_uint64,),
    "last_misuse": (ctypes.c_char_p,), "copy_count": (ctypes.c_uint64,),
}


def copy_aside(library, folder):
    """A copy of the fake under a SONAME of its own. CUDA's runtime, which torch brings along, would take a
    loaded library that is called libcuda.so.1 for the real driver."""
    name, other = b"libcuda.so.1\0", b"libfake.so.1\0"
    data = library.read_bytes()
    assert data.count(name) == 1
    copied = Path(folder) / "libfake.so.1"
    copied.write_bytes(data.replace(name, other))
    return copied


class FakeDriver:
    """The controls of the fake in this process, and calls of the driver as others make them.

    `header`: tests/fakes/fake_cuda.hpp, which says in which order the controls lie.
    """

    def __init__(self, library, header):
        self.path = str(library)
        self._library = ctypes.CDLL(self.path)
        struct = re.search(r"struct FakeCudaControl \{(.*?)\n\};", header.read_text(), re.DOTALL)[1]
        names = re.findall(r"\(\*(\w+)\)\(", struct)
        self._library.fake_cuda_control.restype = ctypes.POINTER(ctypes.c_void_p * len(names))
        pointers = self._library.fake_cuda_control().contents
        for name, signature in _CONTROLS.items():
            setattr(self, name, ctypes.CFUNCTYPE(*signature)(pointers[names.index(name)]))
        self._places = {}  # address: bytes, device
        self._call("cuInit", ctypes.c_uint(0))

    def _call(self, entry, *arguments):
        result = getattr(self._library, entry)(*arguments)
        assert result == 0, f"{entry}: {result}"

    def retain(self, device=0):
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
        return context

    def release(self, device=0):
        self._call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(device))

    @contextlib.contextmanager
    def current(self, device=0):
        """The device's primary context is current on this thread, as after torch.cuda.set_device()."""
        context = self.retain(device)
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(context))
            self.release(device)

    @contextlib.contextmanager
    def busy(self, device=0):
        """The default stream of the device, which torch works on, has work that does not end in the block."""
        self.retain(device)
        with self.current(device):
            self.hold(None)
        try:
            yield
        finally:
            with self.current(device):
                self.let_go(None)
            self.release(device)

    def allocate(self, nbytes, device=0):
        address = ctypes.c_uint64()
        self.retain(device)
        with self.current(device):
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self._places[address.value] = (nbytes, device)
        return address.value

    def free(self, address):
        _, device = self._places.pop(address)
        with self.current(device):
            self._call("cuMemFree_v2", ctypes.c_uint64(address))
        self.release(device)

    def device_of(self, address):
        """Number of the device whose memory from allocate() this is; None for other memory."""
        for start, (nbytes, device) in self._places.items():
            if start <= address < start + nbytes:
                return device
        return None

    def read(self, address, nbytes, device):
        data = ctypes.create_string_buffer(nbytes)
        if nbytes:
            with self.current(device):
                self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return data.raw

    def bytes_of(self, tensor):
        """The bytes of a contiguous torch tensor in memory from empty()."""
        if tensor.nbytes == 0:
            return b""
        return self.read(tensor.data_ptr(), tensor.nbytes, self.device_of(tensor.data_ptr()))

    def empty(self, nbytes, device=0):
        """A torch tensor of bytes in memory of the device, which torch itself takes for memory of the CPU."""
        address = self.allocate(nbytes, device)
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        weakref.finalize(memory, self.free, address)
        return torch.frombuffer(memory, dtype=torch.uint8)


class TorchOnFake:
    """Stands in for the module torch where inrush.torch makes device memory: what would lie on CUDA devices
    lies in memory of the fake. The stream of the caller is the default stream."""

    def __init__(self, driver):
        self._driver = driver
        self.allocations = []  # (bytes, device, thread) of each
        self.cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=0))

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, size, *, dtype, device):
        if device.type != "cuda" or not isinstance(size, int):
            return torch.empty(size, dtype=dtype, device="cpu")
        self.allocations.append((size, device.index, threading.get_ident()))
        return self._driver.empty(size, device.index)
