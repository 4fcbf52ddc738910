"""FlashPack: one file of its own format, converted from the checkpoint before any clock starts.

Source: "Tuning" in the README of the 0.4.5 wheel, which names its defaults (16 threads, 64 MiB) as the best.
On the CPU FLASHPACK_CPU_PARALLEL_READ=1 is what it advises where all weights are read anyway.
"""

from __future__ import annotations

from pathlib import Path

from rivals.rival import Pairs, Rival


def _convert(files: list[str], folder: Path) -> list[str]:
    from flashpack import pack_to_file
    from safetensors.torch import load_file

    target = folder / "model.flashpack"
    tensors = {}
    for path in files:
        tensors.update(load_file(path))
    pack_to_file(tensors, str(target), None)
    return [str(target)]


def _pairs(files: list[str], device: str) -> Pairs:
    from flashpack.deserialization import iterate_from_flash_tensor, read_flashpack_file

    storage, metadata = read_flashpack_file(files[0], device)
    yield from iterate_from_flash_tensor(storage, metadata)


RIVALS = [
    Rival(
        "flashpack", "flashpack", "own format: read_flashpack_file, 16 threads of 64 MiB", ("flashpack",),
        {"FLASHPACK_CPU_PARALLEL_READ": "1"}, pairs=_pairs, convert=_convert,
    )
]  # fmt: skip
