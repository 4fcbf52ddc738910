#!/usr/bin/env python3
"""Forks a process for each trial from one that has imported torch and nothing else, for processes.py.

Python and torch take 2 to 6 seconds to start, several times what a trial measures, and their time is in no
column. CUDA is not touched before the fork, and no thread is started, so that a trial finds what a process
finds that has just imported torch. Lines of JSON in, a line out for each: {"start": SPECIFICATION,
"environment": {}, "log": FILE, "gate": FIFO} -> {"pid": 1}; {"reap": 1} -> {"status": 0}, as of waitpid().
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
from typing import Any

import trial

PR_SET_PDEATHSIG = 1


def main() -> None:
    started = time.perf_counter()
    import torch  # noqa: F401  what this process is for

    import_torch_s = round(time.perf_counter() - started, 4)
    libc = ctypes.CDLL(None)
    gc.collect()
    gc.freeze()  # a collection in a trial copies no pages for these objects
    for line in sys.stdin.buffer:
        command = json.loads(line)
        if "reap" in command:
            answer = {"status": os.waitpid(command["reap"], 0)[1]}
        else:
            child = os.fork()
            if child == 0:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # this process ends with the bench
                _become_trial(command, import_torch_s)
            answer = {"pid": child}
        os.write(1, json.dumps(answer).encode() + b"\n")


def _become_trial(command: dict[str, Any], import_torch_s: float) -> None:
    code = 1
    try:
        os.setsid()
        # Open for writing too: the end of the gate then waits for nobody.
        gate = os.open(command["gate"] or os.devnull, os.O_RDWR)
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for source, target in ((gate, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(command["environment"])
        trial.main(command["start"], import_torch_s)
        code = 0
    except BaseException as error:  # noqa: BLE001  nothing may come back into the parent's loop
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
