#!/usr/bin/env python3
"""Warm loads into torch memory beside the pinned host-to-device limit of the same process; every byte is
compared after the clock stopped. Prints one JSON line a measurement. Needs a GPU, torch and the wheel.

    torch_load.py CASE FOLDER_A [FOLDER_B] [--repeats 3]

CASE  whole    inrush.torch.load, all tensors kept: A first in the process (context alive, cold Loader), then
B, A, ... with
               what was loaded before dropped and torch's cache emptied
      stream   inrush.torch.stream copied tensor by tensor into a model that exists, and dropped
      into     inrush.torch.load_into the same model
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import inrush
import inrush.torch
import torch

PIECE_BYTES = 64 << 20


def pinned_limit() -> float:
    """Bytes per second from pinned memory, best of three rounds of 4 GiB in pieces of 64 MiB."""
    source = torch.empty(4 * PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cuda")
    best = 0.0
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(64):
            target.copy_(source[i % 4 * PIECE_BYTES : (i % 4 + 1) * PIECE_BYTES], non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, 64 * PIECE_BYTES / (time.perf_counter() - start))
    return best


def warm(checkpoint: inrush.Checkpoint) -> None:
    buffer = bytearray(16 << 20)
    for file in checkpoint.files:
        with open(file.path, "rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def count_wrong(checkpoint: inrush.Checkpoint, tensors: dict[str, torch.Tensor]) -> int:
    wrong = 0
    for name, entry in checkpoint.items():
        with open(entry.file, "rb") as opened:
            opened.seek(entry.offset)
            expected = torch.frombuffer(bytearray(opened.read(entry.nbytes)), dtype=torch.uint8).cuda()
        wrong += not torch.equal(tensors[name].reshape(-1).view(torch.uint8), expected)
    return wrong


def used_bytes() -> int:
    """Of the device's memory, by everybody: this process is alone on it."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def tell(
    what: str, limit: float, seconds: float, checkpoint: inrush.Checkpoint, more: dict[str, Any]
) -> None:
    row = {
        "what": what, "seconds": round(seconds, 4), "bytes": checkpoint.nbytes,
        "gb_per_s": round(checkpoint.nbytes / seconds / 1e9, 2), "limit_gb_per_s": round(limit / 1e9, 2),
        "score": round(checkpoint.nbytes / seconds / limit, 3), "tensors": len(checkpoint), **more,
    }  # fmt: skip
    print(json.dumps(row), flush=True)


def drop_cache() -> None:
    torch.cuda.empty_cache()
    time.sleep(0.3)  # the driver clears what was freed, and that takes from the next load (4 % at 12.9 GB)


def bench_whole(checkpoints: list[inrush.Checkpoint], repeats: int, limit: float) -> None:
    for round_ in range(repeats):
        checkpoint = checkpoints[round_ % len(checkpoints)]
        warm(checkpoint)
        before = used_bytes()
        start = time.perf_counter()
        tensors = inrush.torch.load(checkpoint, "cuda")
        seconds = time.perf_counter() - start
        beyond = used_bytes() - before - checkpoint.nbytes
        more = {
            "wrong": count_wrong(checkpoint, tensors), "gpu_bytes_beyond": beyond,
            "stages": stages(tensors.report), "pinned_bytes": tensors.report.pinned_peak_bytes,
        }  # fmt: skip
        tell("first" if round_ == 0 else "later", limit, seconds, checkpoint, more)
        del tensors
        drop_cache()


def stages(report: inrush.Report) -> dict[str, float]:
    names = ("open", "plan", "allocate", "first_byte", "first_tensor", "last_byte")
    return {name: round(getattr(report.seconds, name), 4) for name in names}


def empty_model(checkpoint: inrush.Checkpoint) -> dict[str, torch.Tensor]:
    like = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8}
    return {n: torch.full(e.shape, 1, dtype=like[e.dtype], device="cuda") for n, e in checkpoint.items()}


def bench_model(case: str, checkpoints: list[inrush.Checkpoint], repeats: int, limit: float) -> None:
    model = empty_model(checkpoints[0])
    drop_cache()
    for round_ in range(repeats):
        checkpoint = checkpoints[round_ % len(checkpoints)]
        warm(checkpoint)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, peak = torch.cuda.memory_reserved(), 0
        start = time.perf_counter()
        if case == "into":
            inrush.torch.load_into(checkpoint, model)
        else:
            for name, tensor in inrush.torch.stream(checkpoint, "cuda"):
                model[name].copy_(tensor)
                del tensor
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_reserved() - before
        more = {"wrong": count_wrong(checkpoint, model), "gpu_bytes_beyond_model": peak}
        tell(f"{case} {'first' if round_ == 0 else 'later'}", limit, seconds, checkpoint, more)
        drop_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", choices=["whole", "stream", "into"])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    checkpoints = [inrush.open(folder) for folder in arguments.folders]
    limit = pinned_limit()
    torch._C._host_emptyCache()
    drop_cache()
    if arguments.case == "whole":
        bench_whole(checkpoints, arguments.repeats, limit)
    else:
        bench_model(arguments.case, checkpoints, arguments.repeats, limit)


if __name__ == "__main__":
    main()
