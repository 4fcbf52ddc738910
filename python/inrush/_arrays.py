"""Loaded tensors as arrays of NumPy, CuPy and JAX, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

from inrush import _errors
from inrush._inrush import Tensor, TensorInfo

# Element types that NumPy has itself.
_NUMPY = {
    "BOOL": "bool", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4",
    "U32": "<u4", "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}  # fmt: skip
# Those of the package ml_dtypes, which JAX brings along.
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_SIZES = {name: 2 if name == "BF16" else 1 for name in _ML_DTYPES}
# Elements that share a byte: no array library but torch (pairs of F4) has a type for them as they are stored.
PACKED = frozenset({"F4", "F6_E2M3", "F6_E3M2"})
# Libraries that know one kind of memory only.
_MEMORY = {"numpy": "cpu", "cupy": "cuda"}


def refuse_device(framework: str, device: str) -> None:
    """Before any I/O: raises where arrays of the framework cannot lie on that device, "cpu" or "cuda:N"."""
    memory = _MEMORY.get(framework)
    if memory and not device.startswith(memory):
        raise _errors.make_error(
            "invalid_request",
            f'{framework} has no arrays on {device}: say device="{memory}", or framework="dlpack"',
        )


def refuse_packed(entries: Iterable[TensorInfo], framework: str) -> None:
    """Before any I/O: raises for what the framework has no type for; `entries` are the packed ones."""
    for entry in entries:
        raise _errors.make_error(
            "invalid_request",
            f"{entry.file}: tensor {entry.name!r}: {framework} has no type for {entry.dtype}, whose elements "
            'share bytes; pass unsupported="uint8" for a flat array of its bytes, or leave it out by only=',
        )


def converter(framework: str) -> Callable[[Tensor], Any]:
    """From a loaded tensor to an array of "numpy", "cupy" or "jax"; "dlpack" leaves it as it is."""
    makers: dict[str, Callable[[], Callable[[Tensor], Any]]] = {
        "dlpack": lambda: lambda tensor: tensor, "numpy": _numpy, "cupy": _cupy, "jax": _jax,
    }  # fmt: skip
    if framework not in makers:
        known = ", ".join(makers)
        raise _errors.make_error(
            "invalid_request", f"framework={framework!r} is none of {known}; for torch: inrush.torch.load"
        )
    return makers[framework]()


def _numpy_dtypes() -> dict[str, Any]:
    import numpy

    dtypes: dict[str, Any] = {name: numpy.dtype(spelling) for name, spelling in _NUMPY.items()}
    # The bytes of each element, under the name of what they are.
    for name, size in _SIZES.items():
        dtypes[name] = numpy.dtype((numpy.void, size), metadata={"dtype": name})
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        for name, attribute in _ML_DTYPES.items():
            if hasattr(ml_dtypes, attribute):  # old ones lack F8_E8M0
                dtypes[name] = numpy.dtype(getattr(ml_dtypes, attribute))
    for name in PACKED:
        dtypes[name] = numpy.dtype("u1")
    return dtypes


def refuse_uncountable(tensor: Tensor) -> None:
    """Raises where a tensor without elements has a dimension that no array library can count."""
    if any(length >= 2**63 for length in tensor.shape):
        raise _errors.make_error(
            "invalid_request",
            f"tensor {tensor.name!r} has shape {list(tensor.shape)}: a dimension of 2^63 or more has no form "
            'in any array library; leave it out by only=, or take it by framework="dlpack"',
        )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    if tensor.nbytes == 0:
        refuse_uncountable(tensor)
    return (tensor.nbytes,) if tensor.dtype in PACKED else tensor.shape


def _numpy() -> Callable[[Tensor], Any]:
    import numpy

    dtypes = _numpy_dtypes()
    return lambda tensor: numpy.ndarray(_shape(tensor), dtypes[tensor.dtype], buffer=memoryview(tensor))


def _cupy() -> Callable[[Tensor], Any]:
    import cupy  # type: ignore[import-not-found,unused-ignore]

    dtypes = _numpy_dtypes()

    def convert(tensor: Tensor) -> Any:
        number = int(tensor.device.partition(":")[2] or 0)
        memory = cupy.cuda.UnownedMemory(tensor.data_ptr, tensor.nbytes, tensor, number)
        return cupy.ndarray(_shape(tensor), dtypes[tensor.dtype], cupy.cuda.MemoryPointer(memory, 0))

    return convert


def _jax() -> Callable[[Tensor], Any]:
    import jax.dlpack

    def convert(tensor: Tensor) -> Any:
        if tensor.nbytes == 0:
            refuse_uncountable(tensor)
        # Where x64 is off, as it is by default, JAX would bring elements of 64 bits down to 32.
        with _jax_x64():
            return jax.dlpack.from_dlpack(tensor.as_bytes() if tensor.dtype in PACKED else tensor)

    return convert


def _jax_x64() -> AbstractContextManager[Any]:
    import jax

    if hasattr(jax, "enable_x64"):
        return cast(AbstractContextManager[Any], jax.enable_x64(True))
    from jax.experimental import enable_x64  # type: ignore[attr-defined,unused-ignore]  # older JAX

    return cast(AbstractContextManager[Any], enable_x64())


def framework_for(device: str) -> str:
    """What load() gives where nobody asks for a framework: NumPy arrays on the CPU, Tensors elsewhere."""
    return "numpy" if device == "cpu" else "dlpack"
