"""What can be counted from outside of a loader: pinned memory, and bytes that cross PCIe to the GPU.

No counter is documented to have all that drivers pin. So each is tried on memory of known size first, by
facts(), in a process of its own; what does not show that is not used, and the table says so once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

TRIED_BYTES = 256 << 20
COPIED_BYTES = 8 << 30  # a counter of 32 bits would wrap
SLACK = 0.1
PAGE_BYTES = mmap.PAGESIZE
# Of /proc/meminfo, what is counted by use. Without the free pages that each CPU has on lists of its own, at
# times hundreds of megabytes, the rest of the memory is what drivers took for themselves: cudaHostAlloc has
# its pages there. While 256 MiB of a program's memory came and went it moved by 3 MiB at most (Linux 6.18).
TRACKED = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables",
           "SecPageTables")  # fmt: skip


def _numbers(path: str) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    rows = [line.replace(":", " ").split() for line in Path(path).read_text().splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def pinned_by_process(process: int) -> int:
    """What the kernel counts as locked or pinned for a process."""
    status = _numbers(f"/proc/{process}/status")
    return (status["VmLck"] + status["VmPin"]) << 10


def pinned_by_machine(process: int) -> int:
    """Of all processes: user memory that is pinned, and what drivers took. Only its growth says something."""
    memory, events = _numbers("/proc/meminfo"), _numbers("/proc/vmstat")
    untracked = memory["MemTotal"] - sum(memory.get(name, 0) for name in TRACKED)
    pinned = events.get("nr_foll_pin_acquired", 0) - events.get("nr_foll_pin_released", 0)
    zones = (line.split() for line in Path("/proc/zoneinfo").read_text().splitlines())
    free_of_cpus = sum(int(words[1]) for words in zones if words[0] == "count:")
    return (untracked << 10) + (pinned - free_of_cpus) * PAGE_BYTES


PINNED = {"process": pinned_by_process, "machine": pinned_by_machine}


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t of nvml.h."""

    _fields_ = [
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong), ("kind", ctypes.c_uint), ("result", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]  # fmt: skip


class Pcie:
    """The driver's counters of bytes over PCIe, of a GPU. received() is None where there is none."""

    FIELDS = (197, 198)  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES and ..._RX_BYTES, as the link or the GPU sees them
    KINDS = (2, 3, 4)  # of 64 bits

    def __init__(self, device: str) -> None:
        import torch

        self._nvml = None
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self._handle = ctypes.c_void_p()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            handle = ctypes.byref(self._handle)
            if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(uuid, handle) == 0:
                self._nvml = nvml
        except (OSError, AttributeError):  # no such library, or an older one
            pass

    def count(self, field: int) -> int | None:
        if self._nvml is None:
            return None
        value = _FieldValue(field=field)
        if self._nvml.nvmlDeviceGetFieldValues(self._handle, 1, ctypes.byref(value)) or value.result:
            return None
        return int(value.value) if value.kind in self.KINDS else None


def facts(device: str) -> dict[str, Any]:
    """{"pinned_counter": "process", "machine" or None, "pcie_counter": field or None} and what was seen."""
    try:
        return _try_all(device)
    except Exception as error:  # noqa: BLE001  /proc of some containers, drivers that lack a counter
        why = f"{type(error).__name__}: {error}"
        return {"pinned_counter": None, "pinned_seen": {}, "pcie_counter": None, "pcie_seen": {}, "why": why}


def _try_all(device: str) -> dict[str, Any]:
    import torch

    torch.empty(1, device=device)
    torch.cuda.synchronize(device)
    registered = mmap.mmap(-1, TRIED_BYTES)
    registered[::PAGE_BYTES] = b"\1" * len(range(0, TRIED_BYTES, PAGE_BYTES))
    view = torch.frombuffer(registered, dtype=torch.uint8)
    seen: dict[str, list[float]] = {}
    kept = []  # memory that is let go would be handed out again, pinned
    for name, count in PINNED.items():
        before = count(os.getpid())
        torch.cuda.cudart().cudaHostRegister(view.data_ptr(), TRIED_BYTES, 0)
        seen[name] = [(count(os.getpid()) - before) / TRIED_BYTES]
        torch.cuda.cudart().cudaHostUnregister(view.data_ptr())
        before = count(os.getpid())
        kept.append(torch.empty(TRIED_BYTES, dtype=torch.uint8, pin_memory=True))
        seen[name].append((count(os.getpid()) - before) / TRIED_BYTES)
    fits = [name for name, parts in seen.items() if all(abs(part - 1) <= SLACK for part in parts)]
    pcie = _pcie_seen(device, kept[0])
    fields = [field for field, part in pcie.items() if part is not None and abs(part - 1) <= SLACK]
    return {
        "pinned_counter": fits[0] if fits else None, "pinned_seen": seen,
        "pcie_counter": fields[0] if fields else None, "pcie_seen": pcie,
    }  # fmt: skip


def _pcie_seen(device: str, source: Any) -> dict[int, float | None]:
    """For each field, what it counted of a copy to the device."""
    import torch

    pcie, target = Pcie(device), torch.empty_like(source, device=device)
    before = {field: pcie.count(field) for field in Pcie.FIELDS}
    for _ in range(COPIED_BYTES // source.nbytes):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    found: dict[int, float | None] = {}
    for field, old in before.items():
        new = pcie.count(field)
        found[field] = None if old is None or new is None else round((new - old) / COPIED_BYTES, 3)
    return found
