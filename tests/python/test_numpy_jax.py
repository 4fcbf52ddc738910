"""inrush.load() on the CPU: arrays of NumPy and of JAX, what they have no type for, who owns the memory."""
import copy
import gc
import pickle
import sys

import inrush
import jax
import jax.numpy
import ml_dtypes
import numpy
import pytest
from conftest import DTYPE_BITS, random_tensor
from resources import resident_bytes

MIB = 1 << 20
NUMPY = {
    "BOOL": numpy.bool_, "U8": numpy.uint8, "I8": numpy.int8, "I16": numpy.int16, "U16": numpy.uint16,
    "F16": numpy.float16, "BF16": ml_dtypes.bfloat16, "I32": numpy.int32, "U32": numpy.uint32,
    "F32": numpy.float32, "C64": numpy.complex64, "F64": numpy.float64, "I64": numpy.int64,
    "U64": numpy.uint64, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
ML_DTYPES = {dtype: element for dtype, element in NUMPY.items() if element.__module__.startswith("ml_dtypes")}
PACKED = {"F4", "F6_E2M3", "F6_E3M2"}


def expressible(tensors):
    return {name: tensor for name, tensor in tensors.items() if tensor[0] not in PACKED}


def packed(tensors):
    return {name: tensor for name, tensor in tensors.items() if tensor[0] in PACKED}


def assert_arrays_equal(arrays, tensors):
    """In type, shape and every byte."""
    assert list(arrays) == list(tensors)
    for name, (dtype, shape, data) in tensors.items():
        array = numpy.asarray(arrays[name])
        assert (array.dtype, array.shape) == (NUMPY[dtype], tuple(shape)), name
        assert array.tobytes() == data, name


def raised_by(*arguments, **more):
    with pytest.raises(inrush.Error) as raised:
        inrush.load(*arguments, **more)
    return raised.value


def test_the_tables_know_every_element_type():
    assert NUMPY.keys() | PACKED == DTYPE_BITS.keys()
    assert len(ML_DTYPES) == 6


# --- NumPy ---


@pytest.mark.parametrize("shards", [0, 3])
def test_every_element_type_comes_exactly(make_checkpoint, every_dtype, shards):
    tensors = expressible(every_dtype)
    arrays = inrush.load(make_checkpoint("model", tensors, shards=shards, metadata={"format": "np"}))
    assert all(type(array) is numpy.ndarray for array in arrays.values())
    assert_arrays_equal(arrays, {name: tensors[name] for name in arrays})
    assert set(arrays) == set(tensors)
    assert arrays.dtypes == {name: dtype for name, (dtype, _, _) in tensors.items()}
    assert arrays.metadata == {"format": "np"}
    assert arrays.report.complete


def test_the_order_is_that_of_the_checkpoint(make_checkpoint):
    # Tensors without bytes arrive first, large ones last.
    tensors = {
        "z": ("U8", [9 * MIB]), "none": ("F32", [0]), "small": ("U8", [3]), "a": ("F64", []),
        "m": ("F32", [MIB]),
    }
    path = make_checkpoint("model", tensors)
    assert list(inrush.load(path)) == list(inrush.open(path)) == list(tensors)


def test_scalars_and_empty_tensors_alone(make_checkpoint):
    tensors = {"scalar": random_tensor("F64", []), "empty": random_tensor("BF16", [0, 5])}
    for name in tensors:
        path = make_checkpoint(name, {name: tensors[name]})
        assert_arrays_equal(inrush.load(path), {name: tensors[name]})
    assert inrush.load(make_checkpoint("nothing", {})) == {}


def test_odd_offsets_in_the_file_are_even_ones_in_memory(make_checkpoint):
    tensors = {
        "odd": random_tensor("U8", [3]), "float": random_tensor("F32", [4]),
        "double": random_tensor("F64", [2]), "more": random_tensor("U8", [5]),
        "complex": random_tensor("C64", [3]),
    }
    arrays = inrush.load(make_checkpoint("model", tensors))
    assert_arrays_equal(arrays, tensors)
    assert [array.ctypes.data % 256 for array in arrays.values()] == [0] * 5


def test_arrays_are_plain_and_may_be_written_to(make_checkpoint, every_dtype):
    tensors = expressible(every_dtype)
    path = make_checkpoint("model", tensors)
    content = path.read_bytes()
    arrays = inrush.load(path)
    for name, array in arrays.items():
        assert array.flags.writeable and array.flags.c_contiguous and array.flags.aligned, name
        before = {other: value.tobytes() for other, value in arrays.items() if other != name}
        array.reshape(-1).view(numpy.uint8)[:] ^= 0xFF if tensors[name][0] != "BOOL" else 1
        assert {other: arrays[other].tobytes() for other in before} == before
    assert path.read_bytes() == content
    assert_arrays_equal(inrush.load(path), tensors)


def test_an_array_outlives_everything(make_checkpoint):
    tensors = {f"tensor {number}": random_tensor("F32", [100, 100], number) for number in range(9)}
    path = make_checkpoint("model", tensors)
    loader = inrush.Loader()
    arrays = inrush.load(path, loader=loader)
    kept = arrays["tensor 4"]
    del arrays, loader
    path.unlink()
    inrush.release()
    gc.collect()
    # What was freed is used again.
    others = [inrush.load(make_checkpoint(f"other {number}", tensors)) for number in range(3)]
    assert kept.tobytes() == tensors["tensor 4"][2]
    assert len(others) == 3


def test_what_is_dropped_is_freed(make_checkpoint):
    path = make_checkpoint("model", {"one": ("U8", [8 * MIB]), "two": ("U8", [8 * MIB])})
    inrush.load(path)
    before = resident_bytes()
    for _ in range(50):
        inrush.load(path)
    assert resident_bytes() - before < 160 * MIB  # of 800 that were loaded


def test_what_is_copied_or_pickled_is_a_dict_without_the_report(make_checkpoint):
    tensors = {"a": random_tensor("F32", [3, 5]), "b": random_tensor("BF16", [2])}
    arrays = inrush.load(make_checkpoint("model", tensors))
    for passed in (copy.deepcopy(arrays), pickle.loads(pickle.dumps(arrays))):
        assert isinstance(passed, dict) and not isinstance(passed, inrush.Tensors)
        assert_arrays_equal(passed, tensors)
        assert not numpy.shares_memory(passed["a"], arrays["a"])


WITHOUT_ML_DTYPES = """
import sys
import numpy
{setting}
import inrush
for name, array in inrush.load(sys.argv[1]).items():
    dtype = array.dtype
    kind = dtype.metadata["dtype"] if dtype.kind == "V" and dtype.metadata else dtype.name
    print(name, kind, array.dtype.itemsize, list(array.shape), array.tobytes().hex())
assert (sys.modules.get("ml_dtypes") is None) == {is_absent}
"""


def names_in_numpy():
    return {dtype: numpy.dtype(element).name for dtype, element in NUMPY.items()}


def lines_of(tensors, kinds):
    lines = ""
    for name, (dtype, shape, data) in tensors.items():
        lines += f"{name} {kinds[dtype]} {DTYPE_BITS[dtype] // 8} {shape} {data.hex()}\n"
    return lines


def test_without_ml_dtypes_there_are_raw_elements_with_the_name(make_checkpoint, every_dtype, run_python):
    tensors = expressible(every_dtype)
    path = make_checkpoint("model", tensors)
    kinds = names_in_numpy() | {dtype: dtype for dtype in ML_DTYPES}
    code = WITHOUT_ML_DTYPES.format(setting="sys.modules['ml_dtypes'] = None", is_absent=True)
    assert run_python(code, path).check().stdout == lines_of(tensors, kinds)


def test_an_ml_dtypes_that_lacks_one_type_serves_the_others(make_checkpoint, every_dtype, run_python):
    tensors = expressible(every_dtype)
    path = make_checkpoint("model", tensors)
    kinds = names_in_numpy() | {"F8_E8M0": "F8_E8M0"}
    setting = "import ml_dtypes; del ml_dtypes.float8_e8m0fnu"
    code = WITHOUT_ML_DTYPES.format(setting=setting, is_absent=False)
    assert run_python(code, path).check().stdout == lines_of(tensors, kinds)


# --- what a framework has no type for ---


@pytest.mark.parametrize("framework", ["numpy", "jax"])
@pytest.mark.parametrize("dtype", sorted(PACKED))
def test_packed_elements_are_refused_before_anything_is_read(make_checkpoint, framework, dtype):
    tensors = {"fine": random_tensor("F32", [2]), "packed": random_tensor(dtype, [4, 8])}
    path = make_checkpoint("model.safetensors", tensors)
    checkpoint = inrush.open(path)
    path.unlink()  # so that a load which got as far as the file would say something else
    error = raised_by(checkpoint, framework=framework)
    assert error.code == "invalid_request" and error.report is None
    for part in (str(path), "packed", dtype, framework, 'unsupported="uint8"'):
        assert part in str(error)
    assert isinstance(raised_by(checkpoint, framework=framework, only="fine"), FileNotFoundError)
    assert isinstance(raised_by(checkpoint, framework=framework, unsupported="uint8"), FileNotFoundError)


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_packed_elements_come_as_bytes_on_request(make_checkpoint, every_dtype, framework):
    tensors = packed(every_dtype)
    tensors |= {"plain": random_tensor("F32", [2, 2]), "odd": random_tensor("F4", [2, 7])}
    arrays = inrush.load(make_checkpoint("model", tensors), framework=framework, unsupported="uint8")
    for name, (dtype, _, data) in packed(tensors).items():
        array = numpy.asarray(arrays[name])
        assert (array.dtype, array.shape, array.tobytes()) == (numpy.uint8, (len(data),), data), name
        assert arrays.dtypes[name] == dtype
    assert arrays["plain"].shape == (2, 2)


def test_packed_elements_may_be_left_out(make_checkpoint, every_dtype):
    path = make_checkpoint("model", every_dtype)
    arrays = inrush.load(path, only=lambda name: not name.startswith(tuple(PACKED)))
    assert_arrays_equal(arrays, expressible(every_dtype))


def test_another_word_for_unsupported_is_refused(make_checkpoint):
    error = raised_by(make_checkpoint("model", {"a": ("F32", [2])}), unsupported="float8")
    assert error.code == "invalid_request" and "float8" in str(error)


@pytest.mark.parametrize("framework", ["jax", "cupy"])
def test_a_framework_that_is_not_installed_is_an_import_error(make_checkpoint, monkeypatch, framework):
    path = make_checkpoint("model", {"a": ("F32", [2])})
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError, match=framework):
        inrush.load(path, "cpu" if framework == "jax" else "cuda:0", framework=framework)


# --- JAX ---


def test_jax_gets_every_element_type_exactly(make_checkpoint, every_dtype):
    tensors = expressible(every_dtype)
    assert not jax.config.jax_enable_x64  # where JAX itself would make 32 bits of 64
    arrays = inrush.load(make_checkpoint("model", tensors), framework="jax")
    assert all(isinstance(array, jax.Array) for array in arrays.values())
    assert_arrays_equal(arrays, tensors)
    assert not jax.config.jax_enable_x64
    assert jax.numpy.arange(3).dtype == numpy.int32


def test_jax_computes_with_what_was_loaded(make_checkpoint):
    data = numpy.arange(12, dtype=numpy.float32)
    tensors = {"a": ("F32", [3, 4], data.tobytes()), "i": ("I64", [1], b"\1" + bytes(7))}
    arrays = inrush.load(make_checkpoint("model", tensors), framework="jax")
    total = jax.jit(lambda tensors: tensors["a"].sum() + tensors["i"][0])(dict(arrays))
    assert float(total) == data.sum() + 1


def test_jax_arrays_outlive_everything(make_checkpoint):
    tensors = {f"tensor {number}": random_tensor("F32", [100, 100], number) for number in range(9)}
    path = make_checkpoint("model", tensors)
    arrays = inrush.load(path, framework="jax", loader=inrush.Loader())
    kept = arrays["tensor 4"]
    del arrays
    path.unlink()
    inrush.release()
    gc.collect()
    paths = [make_checkpoint(f"other {number}", tensors) for number in range(3)]
    others = [inrush.load(other, framework="jax") for other in paths]
    assert numpy.asarray(kept).tobytes() == tensors["tensor 4"][2]
    assert len(others) == 3
