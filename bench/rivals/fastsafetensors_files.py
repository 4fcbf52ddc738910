"""fastsafetensors: its pipeline with what it documents as the fastest way for tensors that are kept.

Source: parallel_loader.py of the 0.5.0 wheel: bbuf_size_kb=16384 and max_threads=16 are the defaults;
queue_size > 0 lets batches be read ahead (three more of them in device memory at most), overlap_io is on.
"""

from __future__ import annotations

from contextlib import closing

from rivals.rival import Pairs, Rival, needs_gds


def _pairs(files: list[str], device: str, nogds: bool) -> Pairs:
    from fastsafetensors import ParallelLoader

    loader = ParallelLoader(
        None, files, queue_size=1, use_tqdm_on_load=False, device=device, bbuf_size_kb=16 * 1024,
        max_threads=16, nogds=nogds,
    )  # fmt: skip
    with closing(loader), closing(loader.iterate_weights()) as weights:
        yield from weights


def _nogds(files: list[str], device: str) -> Pairs:
    return _pairs(files, device, True)


def _gds(files: list[str], device: str) -> Pairs:
    return _pairs(files, device, False)


_SETTINGS = "ParallelLoader, queue_size 1, 16 threads, 16 MiB bounce buffers, "
RIVALS = [
    Rival(
        "fastsafetensors-nogds", "fastsafetensors", _SETTINGS + "nogds", ("fastsafetensors",), pairs=_nogds
    ),
    Rival(
        "fastsafetensors-gds", "fastsafetensors", _SETTINGS + "cuFile", ("fastsafetensors",), pairs=_gds,
        unfit=needs_gds,
    ),
]  # fmt: skip
