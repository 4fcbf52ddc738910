"""The element types of the file format in torch, and what torch cannot express."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from inrush import _errors
from inrush._inrush import TensorInfo

# None: this torch is too old for it, or no torch has it.
DTYPES: dict[str, torch.dtype | None] = {
    "BOOL": torch.bool,
    "F4": getattr(torch, "float4_e2m1fn_x2", None),  # two elements each
    "F6_E2M3": None,
    "F6_E3M2": None,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": getattr(torch, "float8_e8m0fnu", None),
    "F8_E4M3FNUZ": getattr(torch, "float8_e4m3fnuz", None),
    "F8_E5M2FNUZ": getattr(torch, "float8_e5m2fnuz", None),
    "I16": torch.int16,
    "U16": getattr(torch, "uint16", None),
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": getattr(torch, "uint32", None),
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": getattr(torch, "uint64", None),
}

# Those that torch may not be able to express.
DOUBTFUL = frozenset({"F4"} | {name for name, element in DTYPES.items() if element is None})


def torch_form(dtype: str, shape: tuple[int, ...]) -> tuple[torch.dtype, tuple[int, ...]] | None:
    """Element type and shape in torch; None where torch cannot express it.

    F4 has two elements to a byte: [2, 8] in the file is [2, 4] of float4_e2m1fn_x2, and an odd last dimension
    has no form.
    """
    element = DTYPES[dtype]
    if element is None:
        return None
    if dtype != "F4":
        return element, shape
    if not shape or shape[-1] % 2:
        return None
    return element, (*shape[:-1], shape[-1] // 2)


def form_or_bytes(dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[torch.dtype, tuple[int, ...]]:
    """As torch_form(), but a flat array of the bytes where torch cannot express it."""
    return torch_form(dtype, shape) or (torch.uint8, (nbytes,))


def refuse_inexpressible(entries: Iterable[TensorInfo], unsupported: str) -> None:
    """Before any I/O: raises for what torch cannot express, unless the caller wants its bytes."""
    if unsupported not in ("error", "uint8"):
        raise _errors.make_error("invalid_request", f'unsupported={unsupported!r}: say "error" or "uint8"')
    if unsupported == "uint8":
        return
    for entry in entries:
        if torch_form(entry.dtype, entry.shape) is None:
            why = (
                "with an odd last dimension"
                if entry.dtype == "F4" and DTYPES["F4"]
                else f"in torch {torch.__version__}"
            )
            raise _errors.make_error(
                "invalid_request",
                f"{entry.file}: tensor {entry.name!r}: there is no {entry.dtype} {list(entry.shape)} {why}; "
                'pass unsupported="uint8" for a flat array of its bytes, or leave it out by only=',
            )
