"""The row "command": `inrush load` from exec to its last byte, beside processes that load nothing.

Each process is measured once with each checkpoint of the pair. Its clock runs from before exec to the first
byte that it prints, which the command does once the load is complete; the context prints its own seconds,
without those of Python's start, so that the difference is not flattered by them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMAND, TINY, CONTEXT = "inrush load", "inrush load, 4 KiB", "context alone"
NAMES = (COMMAND, TINY, CONTEXT)
SETTINGS = {
    COMMAND: "the command, all defaults, to its first byte of output",
    TINY: "the same of a checkpoint of 4 KiB",
    CONTEXT: "cuInit and cuDevicePrimaryCtxRetain in a process that does nothing else",
}
FOLDERS = ("release", "gpu", "dev")
MAKE_CONTEXT = """
import ctypes, sys, time
start = time.perf_counter()
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
for result in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1])),
               cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)):
    if result:
        sys.exit(f"CUDA error {result}")
print(time.perf_counter() - start)
"""


def find(asked: str | None) -> str | None:
    """The command: the one asked for, one built here, or the one on the path."""
    return asked or built("inrush") or shutil.which("inrush")


def built(name: str) -> str | None:
    """A program of this repository, from the first folder of build/ that has it."""
    places = [Path(__file__).parents[1] / "build" / folder / name for folder in FOLDERS]
    return next((str(place) for place in places if place.exists()), None)


def trial(name: str, command: str | None, folders: list[Path], device: str) -> dict[str, Any]:
    """A row as of a trial: "first" and "second" are two processes, a checkpoint each."""
    if name == CONTEXT and device == "cpu":
        return {"outcome": "unavailable", "reason": "no GPU, no context", "loads": []}
    if name != CONTEXT and command is None:
        return {"outcome": "unavailable", "reason": "no inrush command; --command names one", "loads": []}
    loads = []
    for which, folder in zip(("first", "second"), folders):
        words = [str(command), "load", str(folder), "--device", device, "--json"]
        if name == CONTEXT:
            words = [sys.executable, "-I", "-S", "-c", MAKE_CONTEXT, device.rpartition(":")[2]]
        done = _measure(words)
        if isinstance(done, str):
            return {"outcome": "failed", "reason": done, "loads": []}
        seconds, cpu_s, text = done
        if name == CONTEXT:
            load = {"seconds": float(text), "bytes": 0}
        else:
            report = json.loads(text)["loads"][0]["report"]
            load = {"seconds": seconds, "bytes": report["loaded_bytes"], "stages": report["seconds"]}
        loads.append({"which": which, **load, "cpu_s": cpu_s})
    return {"outcome": "ok", "loads": loads}


def check(command: str, folder: Path, device: str) -> str:
    """Why the bytes that the command loads are wrong, "" where every one is right. Not timed."""
    done = subprocess.run([command, "load", str(folder), "--device", device, "--check", "--quiet"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")[-300:]


def _measure(words: list[str]) -> tuple[float, float, str] | str:
    """(seconds to its first byte of output, CPU-seconds, all that it printed), or what went wrong."""
    before = os.times()
    start = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None and child.stderr is not None
        first = child.stdout.read(1)
        seconds = time.perf_counter() - start
        rest, errors = child.stdout.read(), child.stderr.read()
    after = os.times()
    if child.returncode != 0:
        return (errors.decode(errors="replace").strip() or f"exit code {child.returncode}")[-300:]
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return round(seconds, 5), round(used, 4), (first + rest).decode()
