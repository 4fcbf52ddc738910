"""Starts trials as processes of their own, ends those that hang, and says what became of each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TRIAL = Path(__file__).with_name("trial.py")
LOG_CHARACTERS = 300


class Process:
    """One running trial."""

    def __init__(self, specification: dict[str, Any], environment: dict[str, str], scratch: Path) -> None:
        self.result = Path(specification["result"])
        self.log = self.result.with_suffix(".log")
        path = scratch / (self.result.name + ".specification")
        path.write_text(json.dumps(specification))
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, str(TRIAL), str(path)], stdin=subprocess.PIPE, stdout=log, stderr=log,
                env={**os.environ, **environment}, start_new_session=True, bufsize=0,
            )  # fmt: skip

    def is_ready(self, turn: int) -> bool:
        return Path(f"{self.result}.ready{turn}").exists()

    def go(self) -> None:
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(b"\n")

    def end(self) -> None:
        """Ends it and what it started. Not reaped before, so the group is still its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        if self.child.stdin:
            self.child.stdin.close()

    def outcome(self, timed_out: bool, timeout: float) -> dict[str, Any]:
        """Its row, or one that says why there is none. After end()."""
        if self.result.exists():
            row: dict[str, Any] = json.loads(self.result.read_text())
            return row
        if timed_out:
            return {"outcome": "timed out", "reason": f"no end within {timeout:.0f} s", "loads": []}
        code = self.child.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"outcome": "crashed", "reason": f"{how}: {self._last_words()}", "loads": []}

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-LOG_CHARACTERS:] if lines else "it said nothing"


def run(
    specifications: list[dict[str, Any]], environment: dict[str, str], scratch: Path, timeout: float
) -> list[dict[str, Any]]:
    """Runs these trials at once and waits for all of them; for each its row."""
    started = [Process(specification, environment, scratch) for specification in specifications]
    deadline = time.monotonic() + timeout
    try:
        if specifications[0].get("gate"):
            for turn in range(2):
                _open_gate(started, turn, deadline)
        late = [not _ends_before(process, deadline) for process in started]
    finally:
        for process in started:
            process.end()
    return [process.outcome(is_late, timeout) for process, is_late in zip(started, late)]


def _open_gate(started: list[Process], turn: int, deadline: float) -> None:
    """Waits until all are ready, or one of them ended, or the time is over; then lets all go."""
    while time.monotonic() < deadline:
        if all(process.is_ready(turn) for process in started) or any(map(_has_ended, started)):
            break
        time.sleep(0.005)
    for process in started:
        process.go()


def _has_ended(process: Process) -> bool:
    """Without reaping it."""
    return os.waitid(os.P_PID, process.child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ends_before(process: Process, deadline: float) -> bool:
    while not _has_ended(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def combined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of processes that ran at once as one: all bytes, from the first start to the last end."""
    for row in rows:
        if row["outcome"] != "ok":
            return row
    whole = dict(rows[0])
    whole["loads"] = []
    for parts in zip(*(row["loads"] for row in rows)):
        load = dict(parts[0])
        began, ended = min(part["began"] for part in parts), max(part["ended"] for part in parts)
        load["seconds"] = round(ended - began, 5)
        for name in ("bytes", "cpu_s", "host_peak_bytes", "tensors"):
            load[name] = sum(part[name] for part in parts)
        whole["loads"].append(load)
    return whole
