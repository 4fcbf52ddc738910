#!/usr/bin/env python3
"""What this machine allows: storage, page cache, pinned memory to the device. Prints one JSON object.

    limits.py --what storage,page_cache,pinned --cpus 0 --device cpu FILE...

storage     O_DIRECT reads, size x depth by io_uring where inrush_bench_storage (bench/load/storage.cpp) is
            built, else size x threads; the page cache is neither used nor filled
page_cache  buffered reads of the first half of each file, which must be resident, into memory that is reused
pinned      copies of 1, 4, 16 and 64 MiB from pinned memory on one stream, through torch
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import commands

MIB = 1 << 20


class Reads(NamedTuple):
    """How files are read to find a rate."""

    files: list[str]
    direct: bool
    seconds: float  # a point


def read_rate(reads: Reads, threads: int, size: int) -> float:
    """Bytes per second of so many threads, each with its own part of the files."""
    files, direct, point_seconds = reads
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    descriptors = [os.open(path, flags) for path in files]
    places = [(descriptor, offset) for descriptor in descriptors
              for offset in range(0, _end(descriptor, size, direct), size)]  # fmt: skip
    counts, stop = [0] * threads, threading.Event()
    errors: list[OSError] = []

    def read(index: int) -> None:
        buffer = mmap.mmap(-1, size)  # aligned to pages, as O_DIRECT wants it
        view = memoryview(buffer)
        view[:] = bytes(size)  # faulted in before the clock
        barrier.wait()
        try:
            turn = index * len(places) // threads
            while not stop.is_set():
                descriptor, offset = places[turn % len(places)]
                counts[index] += os.preadv(descriptor, [view], offset)
                turn += 1
        except OSError as error:
            errors.append(error)

    barrier = threading.Barrier(threads + 1)
    workers = [threading.Thread(target=read, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = time.perf_counter()
    stop.wait(point_seconds)
    stop.set()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - start
    for descriptor in descriptors:
        os.close(descriptor)
    if errors:
        raise errors[0]
    return sum(counts) / seconds


def _end(descriptor: int, size: int, direct: bool) -> int:
    """Whole reads only: of all of a file, or of its first half."""
    length = os.fstat(descriptor).st_size
    end = length if direct else length // 2
    return max(end // size * size, size)


def sweep(reads: Reads, counts: list[int], sizes: list[int]) -> list[dict[str, Any]]:
    return [
        {"threads": threads, "size": size,
         "gb_per_s": round(read_rate(reads, threads, size) / 1e9, 3)}
        for threads in counts for size in sizes
    ]  # fmt: skip


def storage(files: list[str], seconds: float) -> list[dict[str, Any]]:
    program = commands.built("inrush_bench_storage")
    if program is not None:
        done = subprocess.run([program, str(seconds), *files], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return [json.loads(line) for line in done.stdout.splitlines()]
        print(f"limits: {done.stderr.strip()}; threads read instead", file=sys.stderr)
    return sweep(Reads(files, True, seconds), [1, 4, 16], [MIB, 4 * MIB, 16 * MIB])


def page_cache(files: list[str], seconds: float) -> list[dict[str, Any]]:
    cpus = len(os.sched_getaffinity(0))
    counts = sorted({count for count in (1, 2, 4, 8, 12, 16) if count <= cpus} | {min(cpus, 32)})
    return sweep(Reads(files, False, seconds), counts, [MIB, 4 * MIB])


def pinned(device: str) -> list[dict[str, Any]]:
    import torch

    source = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    rows = []
    for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB):
        best = 0.0
        for _ in range(3):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            for begin in range(0, 4 * source.nbytes, size):
                at = begin % source.nbytes
                target[at : at + size].copy_(source[at : at + size], non_blocking=True)
            torch.cuda.synchronize(device)
            best = max(best, 4 * source.nbytes / (time.perf_counter() - start))
        rows.append({"size": size, "gb_per_s": round(best / 1e9, 3)})
    return rows


def measure(what: str, files: list[str], device: str, seconds: float) -> dict[str, Any]:
    """{"best": bytes per second, "points": [...]}, or {"why": why it could not be measured}."""
    ways: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "storage": lambda: storage(files, seconds),
        "page_cache": lambda: page_cache(files, seconds),
        "pinned": lambda: pinned(device),
    }
    try:
        points = ways[what]()
    except OSError as error:  # a file system without O_DIRECT
        return {"why": f"{what}: {error}"}
    return {"best": max(point["gb_per_s"] for point in points) * 1e9, "points": points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--what", default="storage,page_cache,pinned")
    parser.add_argument("--cpus", type=int, default=0, help="0: all that are allowed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--point-seconds", type=float, default=0.25)
    arguments = parser.parse_args()
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[: arguments.cpus or len(allowed)])
    found = {
        what: measure(what, arguments.files, arguments.device, arguments.point_seconds)
        for what in arguments.what.split(",")
        if what != "pinned" or arguments.device != "cpu"
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
