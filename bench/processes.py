"""Starts trials as processes of their own, ends those that hang, and says what became of each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

STARTER = Path(__file__).with_name("starter.py")
LOG_CHARACTERS = 300
SAMPLE_SECONDS = 0.02  # one takes 0.3 ms


class Process:
    """One running trial."""

    def __init__(self, specification: dict[str, Any], environment: dict[str, str], trials: Trials) -> None:
        self._trials = trials
        self.result = Path(specification["result"])
        self.log = self.result.with_suffix(".log")
        self._gate = Path(f"{self.result}.gate")
        os.mkfifo(self._gate)
        path = trials.scratch / (self.result.name + ".specification")
        path.write_text(json.dumps(specification))
        self.pid: int = trials.ask({
            "start": str(path), "environment": environment, "log": str(self.log), "gate": str(self._gate)
        })["pid"]  # fmt: skip
        self._ended = os.pidfd_open(self.pid)  # readable when it has ended; nobody reaps it before end()
        self.status: int | None = None

    def has_reached(self, what: str) -> bool:
        return Path(f"{self.result}.{what}").exists()

    def go(self) -> None:
        """Opens the gate once."""
        with open(self._gate, "r+b", buffering=0) as gate:
            gate.write(b"\n")

    def has_ended(self, seconds: float = 0) -> bool:
        return self.status is not None or bool(select.select([self._ended], [], [], seconds)[0])

    def end(self) -> None:
        """Ends it and what it started. Not reaped before, so the group is still its own."""
        if self.status is not None:
            return
        for send in (os.killpg, os.kill):  # it may not have a group of its own yet
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGKILL)
        self.status = self._trials.ask({"reap": self.pid})["status"]
        os.close(self._ended)

    def outcome(self, timed_out: bool, timeout: float) -> dict[str, Any]:
        """Its row, or one that says why there is none. After end()."""
        if self.result.exists():
            row: dict[str, Any] = json.loads(self.result.read_text())
            return row
        if timed_out:
            return {"outcome": "timed out", "reason": f"no end within {timeout:.0f} s", "loads": []}
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"outcome": "crashed", "reason": f"{how}: {self._last_words()}", "loads": []}

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1][-LOG_CHARACTERS:] if lines else "it said nothing"


class Trials:
    """The process that forks them, and a folder for what they write."""

    def __init__(self, scratch: Path, sample: Callable[[int], int] | None = None) -> None:
        self.scratch = scratch
        self._sample = sample  # bytes that are pinned, for a process, where that can be told from outside
        self._starter: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._starter is not None:
            self._starter.kill()
            self._starter.communicate()
            self._starter = None

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        if self._starter is None:
            self._starter = subprocess.Popen(
                [sys.executable, str(STARTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        assert self._starter.stdin is not None and self._starter.stdout is not None
        self._starter.stdin.write(json.dumps(command).encode() + b"\n")
        self._starter.stdin.flush()
        line = self._starter.stdout.readline()
        if not line:
            raise RuntimeError(f"bench/starter.py ended with {self._starter.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(
        self, specifications: list[dict[str, Any]], environment: dict[str, str], timeout: float
    ) -> list[dict[str, Any]]:
        """Runs these trials at once and waits for all of them; for each its row."""
        samples: list[tuple[float, int]] = []
        started: list[Process] = []
        deadline = time.monotonic() + timeout
        try:
            started += (Process(specification, environment, self) for specification in specifications)
            if specifications[0].get("gate"):
                for turn in range(2):
                    _open_gate(started, turn, deadline)
            late = [not self._ends_before(process, deadline, samples) for process in started]
        finally:
            for process in started:
                process.end()
        rows = [process.outcome(is_late, timeout) for process, is_late in zip(started, late)]
        for row in rows:
            for load in row["loads"]:
                _add_pinned(load, samples)
        return rows

    def run_restart(
        self, pair: tuple[dict[str, Any], dict[str, Any]], environment: dict[str, str], timeout: float
    ) -> dict[str, Any]:
        """A load, and when its last byte has come another process that loads the same: one row of both. The
        first one compares its bytes at the end, since that reads the files."""
        started: list[Process] = []
        deadline, late = time.monotonic() + timeout, [False, False]
        try:
            started.append(Process({**pair[0], "hold": True}, environment, self))
            while not started[0].has_reached("loaded") and not started[0].has_ended(0.001):
                if time.monotonic() > deadline:
                    late[0] = True
                    break
            if not late[0] and not started[0].has_ended():
                started.append(Process(pair[1], environment, self))
                late[1] = not self._ends_before(started[1], deadline, [])
            started[0].go()
            late[0] = late[0] or not self._ends_before(started[0], deadline, [])
        finally:
            for process in started:
                process.end()
        rows = [process.outcome(is_late, timeout) for process, is_late in zip(started, late)]
        for load in (load for row in rows for load in row["loads"]):
            _add_pinned(load, [])
        bad = [row for row in rows if row["outcome"] != "ok"]
        return bad[0] if bad else {**rows[0], "loads": rows[0]["loads"] + rows[1]["loads"]}

    def _ends_before(self, process: Process, deadline: float, samples: list[tuple[float, int]]) -> bool:
        while not process.has_ended(SAMPLE_SECONDS):
            if time.monotonic() >= deadline:
                return False
            if self._sample is not None:
                samples.append((time.monotonic(), self._sample(process.pid)))
        return True


def _add_pinned(load: dict[str, Any], samples: list[tuple[float, int]]) -> None:
    """What was pinned at most by the load: as the loader says, or as it was seen beyond what was before."""
    before = [count for moment, count in samples if moment <= load["began"]]
    during = [count for moment, count in samples if load["began"] < moment <= load["ended"]]
    load["pinned_seen_bytes"] = max(max(during) - before[-1], 0) if before and during else None
    reported = load.get("details", {})
    load["pinned_bytes"] = reported.get("pinned_bytes", load["pinned_seen_bytes"])
    if load.get("pcie_bytes") is None:
        load["pcie_bytes"] = reported.get("copied_bytes")


def _open_gate(started: list[Process], turn: int, deadline: float) -> None:
    """Waits until all are ready, or one of them ended, or the time is over; then lets all go."""
    while time.monotonic() < deadline:
        if all(process.has_reached(f"ready{turn}") for process in started) or any(
            process.has_ended() for process in started
        ):
            break
        time.sleep(0.005)
    for process in started:
        process.go()


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
        if len(parts) > 1:  # counters of the whole machine have counted the others too
            load["pinned_bytes"] = load["pcie_bytes"] = None
        whole["loads"].append(load)
    return whole
