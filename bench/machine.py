#!/usr/bin/env python3
"""Facts about the machine, for every line of a result.

    machine.py auto|cpu|cuda:N FOLDER

prints them as JSON. bench.py asks a process of its own, so that it has no CUDA context beside the trials.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import counters


def ask(device: str, folder: Path) -> dict[str, Any]:
    """The facts; "auto" is the first GPU that torch can use, or the CPU."""
    done = subprocess.run(
        [sys.executable, __file__, device, str(folder)], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def facts(device: str, folder: Path) -> dict[str, Any]:
    import torch

    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {
        "device": device, "cpus": len(os.sched_getaffinity(0)), "cpu": _cpu_model(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(), "python": platform.python_version(), "torch": torch.__version__,
        "file_system": file_system(folder),
    }  # fmt: skip
    if device == "cpu":
        found["note"] = "CPU TARGET: no GPU was used; nothing here says how fast a GPU is loaded"
        return found
    driver = Path("/proc/driver/nvidia/version")
    found["gpu"] = torch.cuda.get_device_name(device)
    found["driver"] = driver.read_text().splitlines()[0] if driver.exists() else "unknown"
    found["nvidia_fs"] = Path("/proc/driver/nvidia-fs/version").exists()
    return {**found, "counters": counters.facts(device)}


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def file_system(path: Path | str) -> str:
    """The kind of the file system that has this file or folder."""
    real, best = os.path.realpath(path) + "/", ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if real.startswith(place.rstrip("/") + "/") and len(place) >= len(best[0]):  # the last mount covers
            best = (place, kind)
    return best[1]


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1], Path(sys.argv[2]))))
