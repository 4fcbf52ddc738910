"""One trial, in a process of its own: a first load and a second one of another checkpoint of the same shape.

starter.py forks it. The specification says what to load; what happened is written as JSON to the file that
its "result" names, so that nothing a library prints can be mistaken for it. Clocks run from the call to when
the last byte is on the device and the caller holds every tensor. On the CPU that is when a byte of every page
was read, for all loaders alike: a mapping has read nothing until then.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import counters
import page_cache
import verification
from rivals import Rival, all_rivals
from rivals.rival import Tensors, first_line

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Ended(Exception):
    """The trial ends here, with this outcome and reason."""


def main(specification_path: str, import_torch_s: float) -> None:
    specification = json.loads(Path(specification_path).read_text())
    row: dict[str, Any] = {"outcome": "ok", "loads": [], "import_torch_s": import_torch_s}
    try:
        _run(specification, row)
    except Ended as end:
        row["outcome"], row["reason"] = end.args
    except Exception as error:  # noqa: BLE001  the loader's own, whatever it is
        row["outcome"], row["reason"] = "failed", f"{type(error).__name__}: {first_line(error)}"
    result = Path(specification["result"])
    result.with_suffix(".part").write_text(json.dumps(row))
    result.with_suffix(".part").rename(result)
    sys.stdout.flush()
    os._exit(0)  # how a library tears itself down is not measured here


def _run(specification: dict[str, Any], row: dict[str, Any]) -> None:
    import torch

    allowed = sorted(os.sched_getaffinity(0))
    used = allowed[: specification["cpus"] or len(allowed)]
    if len(used) < len(allowed):
        torch.set_num_threads(len(used))  # as where torch is imported with so many CPUs
    device = specification["device"]
    rival = _rival(specification)
    os.sched_setaffinity(0, used)
    started = time.perf_counter()
    why = rival.why_not(device)
    row["import_s"] = round(time.perf_counter() - started, 4)
    if why:
        raise Ended("unavailable", why)
    row["version"] = rival.version()
    row["context_s"] = _start_device(device)
    field = specification.get("pcie_counter")
    pcie = counters.Pcie(device) if field else None
    for turn, which in enumerate(specification.get("which", ("first", "second"))):
        os.sched_setaffinity(0, used)
        tensors, load = _load(rival, specification, turn, lambda: pcie.count(field) if pcie else None)
        row["loads"].append({"which": which, **load})
        if specification.get("hold"):
            _wait_at_gate(specification, "loaded")
        os.sched_setaffinity(0, allowed)  # comparing is not what the CPUs are counted for
        source = specification["source"][turn]
        part = specification.get("part")
        verdict = verification.compare(source, tensors, tuple(part) if part else None)
        row["loads"][-1] |= {"verdict": verdict.reason(), "reshaped": verdict.reshaped}
        if not verdict.is_right:
            raise Ended("wrong bytes", f"{which} load: {verdict.reason()}")
        del tensors


def _rival(specification: dict[str, Any]) -> Rival:
    if specification.get("rivals_folder"):  # the tests bring their own
        sys.path.insert(0, specification["rivals_folder"])
        found = importlib.import_module("test_rivals").RIVALS
        return next(rival for rival in found if rival.name == specification["rival"])
    return all_rivals()[specification["rival"]]


def _start_device(device: str) -> float:
    import torch

    started = time.perf_counter()
    torch.empty(1, device=device)
    _synchronize(device)
    return round(time.perf_counter() - started, 4)


def _synchronize(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize(device)


def _load(
    rival: Rival, specification: dict[str, Any], turn: int, crossed: Callable[[], int | None]
) -> tuple[Tensors, dict[str, Any]]:
    """One load: state checked, memory poisoned, timed."""
    device, part = specification["device"], specification.get("part")
    files, source = specification["files"][turn], specification["source"][turn]
    _settle(device, sum(map(os.path.getsize, source)))
    targets = verification.poisoned(source, device) if rival.fill else {}
    try:
        resident = page_cache.check(files, specification["state"])
    except page_cache.WrongState as error:
        raise Ended("wrong state", str(error)) from error
    if specification.get("gate"):  # where several processes load at once they start when all are ready
        _wait_at_gate(specification, f"ready{turn}")
    before = _Before(device, crossed)
    tensors, first_tensor_s = _call(rival, files, device, targets, part)
    returned = time.perf_counter()
    _finish(tensors, device)
    measured = before.measure(returned, sum(tensor.nbytes for tensor in tensors.values()))
    return tensors, {
        **measured, "first_tensor_s": first_tensor_s and round(first_tensor_s - before.start, 5),
        "resident_before": round(resident, 4), "tensors": len(tensors), "details": rival.details(),
    }  # fmt: skip


def _call(
    rival: Rival, files: list[str], device: str, targets: Tensors, part: list[int] | None
) -> tuple[Tensors, float | None]:
    """All tensors, and when the first one was there, where the interface says so."""
    if part:
        assert rival.slice is not None
        return rival.slice(files, device, (part[0], part[1])), None
    if rival.fill:
        rival.fill(files, targets)
        return targets, None
    if not rival.pairs:
        return rival.run(files, device), None
    first, tensors = None, {}
    for name, tensor in rival.pairs(files, device):
        first = first or time.perf_counter()
        tensors[name] = tensor
    return tensors, first


def _finish(tensors: Tensors, device: str) -> None:
    """Waits until the last byte is there."""
    if device != "cpu":
        _synchronize(device)
        return
    import numpy

    ranges: list[list[int]] = []
    for start, size in sorted((tensor.data_ptr(), tensor.nbytes) for tensor in tensors.values()):
        if ranges and start <= ranges[-1][1] + PAGE_BYTES:
            ranges[-1][1] = max(ranges[-1][1], start + size)
        elif size:
            ranges.append([start, start + size])
    for start, end in ranges:
        memory = (ctypes.c_ubyte * (end - start)).from_address(start)
        numpy.frombuffer(memoryview(memory), dtype=numpy.uint8)[::PAGE_BYTES].max()


class _Before:
    """What was used before the load, and the clock."""

    def __init__(self, device: str, crossed: Callable[[], int | None]) -> None:
        self.device = device
        self._crossed = crossed
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
        self.memory, self.mapped = _status("VmRSS"), _status("RssFile")
        self.gpu = _gpu_used(device)
        self.pcie = crossed()
        self.cpu = _cpu_seconds()
        self.monotonic = time.monotonic()
        self.start = time.perf_counter()

    def measure(self, returned: float, loaded_bytes: int) -> dict[str, Any]:
        end = time.perf_counter()
        cpu = _cpu_seconds() - self.cpu
        pcie = self._crossed()
        peak = _status("VmHWM") - self.memory
        on_gpu = self.device != "cpu"
        return {
            "seconds": round(end - self.start, 5), "returned_s": round(returned - self.start, 5),
            "cpu_s": round(cpu, 4), "bytes": loaded_bytes, "host_peak_bytes": peak,
            # Mappings of the page cache and no copies: no other loader on the CPU can be as fast as that.
            "mapped": not on_gpu and _status("RssFile") - self.mapped > loaded_bytes / 2,
            "gpu_beyond_bytes": _gpu_used(self.device) - self.gpu - loaded_bytes if on_gpu else None,
            "pcie_bytes": pcie - self.pcie if pcie is not None and self.pcie is not None else None,
            "began": self.monotonic, "ended": self.monotonic + end - self.start,
        }  # fmt: skip


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"no {name} in /proc/self/status")


def _gpu_used(device: str) -> int:
    import torch

    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _settle(device: str, size: int) -> None:
    """Nothing of an earlier load is left; on a GPU what comes next finds memory with other bytes in it."""
    gc.collect()
    if device == "cpu":
        return
    import torch

    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info(device)[0] > 1.1 * size:
        torch.full((size,), verification.POISON, dtype=torch.uint8, device=device)
        torch.cuda.empty_cache()
    _synchronize(device)
    time.sleep(0.3)  # the driver clears what was freed, and that takes from the next load (4 % at 12.9 GB)


def _wait_at_gate(specification: dict[str, Any], reached: str) -> None:
    """Says how far this process is, and waits until the bench lets it go on."""
    Path(f"{specification['result']}.{reached}").touch()
    os.read(0, 1)
