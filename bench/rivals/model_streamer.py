"""Model Streamer (runai-model-streamer), to the device itself, tensors owned by the caller.

Source: safetensors_streamer.py of the 0.17.1 wheel: owned=True (the default) needs no copy by the caller;
RUNAI_STREAMER_CONCURRENCY is the number of reading threads (16: its documented default for files);
RUNAI_STREAMER_MEMORY_LIMIT=-1 lets it read all files at once, which its documentation names the fastest.
"""

from __future__ import annotations

from rivals.rival import Pairs, Rival


def _pairs(files: list[str], device: str) -> Pairs:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files, device=device)
        yield from streamer.get_tensors()


RIVALS = [
    Rival(
        "model-streamer", "runai-model-streamer",
        "stream_files to the device, concurrency 16, no memory limit",
        ("runai_model_streamer",), pairs=_pairs,
        environment={
            "RUNAI_STREAMER_CONCURRENCY": "16", "RUNAI_STREAMER_MEMORY_LIMIT": "-1",
            "RUNAI_STREAMER_LOG_LEVEL": "WARNING",
        },
    )
]  # fmt: skip
