"""KvikIO: a file's bytes into one device buffer by its thread pool; the tensors are views made here.

Source: kvikio/cufile.py and defaults.py of the 26.10 wheel, and its documentation: KVIKIO_NTHREADS (1 by
default; here 16), KVIKIO_TASK_SIZE (4 MiB, the default). All files are read at once: pread() gives a future.
Without libcuda.so.1 it refuses to read into host memory too (tried with 26.10.0), so it needs a GPU.
"""

from __future__ import annotations

import os

from rivals.rival import Rival, Tensors, entries_of, needs_gpu, views


def _load(files: list[str], device: str) -> Tensors:
    import kvikio
    import torch

    pending, tensors = [], {}
    for path in files:
        start, entries = entries_of(path)
        data = torch.empty(os.path.getsize(path) - start, dtype=torch.uint8, device=device)
        file = kvikio.CuFile(path, "r")
        pending.append((file, file.pread(data, data.nbytes, start), data, entries))
    for file, future, data, entries in pending:
        count = future.get()
        file.close()
        if count != data.nbytes:
            raise RuntimeError(f"kvikio read {count} of {data.nbytes} bytes")
        tensors.update(views(data, entries))
    return tensors


RIVALS = [
    Rival(
        "kvikio", "kvikio-cu13", "CuFile.pread of all files, 16 threads, tasks of 4 MiB; views by the bench",
        ("kvikio",), {"KVIKIO_NTHREADS": "16", "KVIKIO_TASK_SIZE": str(4 << 20)}, load=_load,
        unfit=needs_gpu,
    )
]  # fmt: skip
