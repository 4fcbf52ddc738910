#!/usr/bin/env python3
"""Measures inrush beside every loader that is installed, and beside what the machine allows.

    bench.py --out FOLDER [--quick] [--rows warm-gib,warm-large] [--state cold] [--seconds 500] [--scale 1]

Writes FOLDER/trials.jsonl and limits.jsonl (a line a trial, as it ends), table.md (after each case) and at
the end picture.png, also after --seconds or SIGTERM. What trials.jsonl has is not run again, so a full run
can be made a state a call. Each trial is a process of its own, trials of all
loaders are interleaved round by round, and every byte is compared after the clock has stopped. Without a GPU
it runs on the CPU target and says so everywhere. docs/performance.md explains the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import checkpoints
import commands
import counters
import machine
import matrix
import page_cache
import report
from matrix import Case
from outcomes import UNAVAILABLE, WHOLE_CASE, Results
from processes import Trials, combined
from rivals import Rival, all_rivals

QUICK_SECONDS = 470
REPORT_SECONDS = 8  # of the time, for the table and the picture
QUICK_POINT_SECONDS = 0.1
GIVE_UP_AFTER = 2  # failures of one loader in one case
# One process asks all; where a library ends it, another asks the rest.
PROBE = """
import sys, json
sys.path.insert(0, sys.argv[1])
from rivals import all_rivals
for name in sys.argv[3:]:
    print("\\nasking:" + name, flush=True)
    print("\\nresult:" + json.dumps(all_rivals()[name].why_not(sys.argv[2])), flush=True)
"""


class Bench:
    """One call: what is asked for, what is known already, and where it all is."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.arguments = arguments
        self.scratch = scratch
        self.out: Path = arguments.out
        self.results = Results(self.out / "trials.jsonl")
        self.deadline: float | None = arguments.deadline
        self.machine: dict[str, Any] = arguments.machine
        pinned_counter = self.machine.get("counters", {}).get("pinned_counter")
        self.trials = Trials(scratch, counters.PINNED.get(pinned_counter))
        self.command = commands.find(arguments.command)
        self.run_id = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.limits: dict[str, Any] = {}
        self.refused: set[tuple[str, str]] = set()  # (case, loader): asked in this call, and cannot run
        self.rivals = all_rivals()
        self.unfit = self._probe()
        self.checked = False  # the command, that its bytes are right
        self.tiny = _write_tiny(scratch / "tiny")
        self._started = 0

    def _probe(self) -> dict[str, str]:
        """Why a loader cannot run here, by name."""
        names = [name for name in self.rivals if not self.arguments.only or name in self.arguments.only]
        found: dict[str, str | None] = {}
        while left := [name for name in names if name not in found]:
            done = subprocess.run(
                [sys.executable, "-c", PROBE, str(Path(__file__).parent), self.arguments.device, *left],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            asked = left[0]
            for line in done.stdout.splitlines():
                if line.startswith("asking:"):
                    asked = line.removeprefix("asking:")
                    found[asked] = f"its import ended Python with {done.returncode}"
                elif line.startswith("result:"):
                    found[asked] = json.loads(line.removeprefix("result:"))
            found.setdefault(asked, (done.stderr.strip().splitlines() or ["Python did not start"])[-1])
        return {name: why + self._not_installed(name) for name, why in found.items() if why}

    def _not_installed(self, name: str) -> str:
        """What bench/setup.sh wrote down about its package."""
        path = Path(sys.prefix) / "not_installed"
        lines = path.read_text().splitlines() if path.exists() else []
        said = [line.split("\t")[1] for line in lines if line.split("\t")[0] == self.rivals[name].package]
        return f" (its installation: {said[0]})" if said else ""

    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def fitting(self, case: Case) -> list[str]:
        """All loaders whose interface has what this case is about."""
        if case.is_command:
            return list(commands.NAMES)

        def fits(rival: Rival) -> bool:
            if self.arguments.only and rival.name not in self.arguments.only:
                return False
            if case.part:
                return rival.slice is not None
            return (rival.fill is not None) == case.fill

        return [name for name, rival in self.rivals.items() if fits(rival)]

    def entered(self, case: Case) -> list[str]:
        """Those that run: ours first, and with --quick the strongest that can."""
        usable = [name for name in self.fitting(case) if name not in self.unfit]
        if not self.arguments.quick or case.is_command:
            return usable
        others = [name for name in usable if not name.startswith("inrush")]
        if self.arguments.device == "cpu" and not case.part:
            others = [name for name in others if name not in matrix.MAPPINGS_ON_CPU]
        ours = [name for name in case.all_ours if name in usable]
        return ours + matrix.strongest(case, others, case.rivals_max or 3)

    # One case

    def run_case(self, case: Case, pair: checkpoints.Pair) -> bool:
        """Whether every trial of it has been run, now or before."""
        limits = self._limits(case, pair)
        for name in sorted(set(self.fitting(case)) & set(self.unfit)):
            self.add(case, name, 0, {"outcome": UNAVAILABLE, "reason": self.unfit[name], "loads": []}, {})
        entered = self.entered(case)
        print(f"{case.key}: {', '.join(entered)}", flush=True)
        for round_ in range(self.arguments.pairs):
            turn = round_ % max(len(entered), 1)
            for name in entered[turn:] + entered[:turn]:  # nobody is always first
                if self.is_late() or not self._run_one(case, pair, name, (round_, limits)):
                    print(f"{case.key}: the time is over after {round_} rounds", flush=True)
                    return False
        return True

    def _run_one(self, case: Case, pair: checkpoints.Pair, name: str, turn: tuple[int, Any]) -> bool:
        """False where the time of the call was over before the trial was: that is no result."""
        round_, limits = turn
        if self.results.has(self._key(case, name, round_)) or self._has_given_up(case, name):
            return True
        row = self._row(case, pair, name)
        if row["outcome"] == "wrong state":  # somebody else on this machine dropped or read them
            row = self._row(case, pair, name)
        if row["outcome"] == "timed out" and self.is_late():
            return False
        self.add(case, name, round_, row, limits)
        seconds = [f"{load['seconds']:.3f}" for load in row["loads"]]
        print(f"  {name} {row['outcome']} {' '.join(seconds)} {row.get('reason', '')}".rstrip(), flush=True)
        return True

    def _row(self, case: Case, pair: checkpoints.Pair, name: str) -> dict[str, Any]:
        if case.is_command:
            return self._command(case, pair, name)
        files = pair.files_for(name, self.rivals[name].convert is not None)
        if isinstance(files, str):
            return {"outcome": UNAVAILABLE, "reason": files, "loads": []}
        return self._trial(case, (files, pair.files), name)

    def _command(self, case: Case, pair: checkpoints.Pair, name: str) -> dict[str, Any]:
        """The command is not asked to compare while it is timed: once in a call it does just that."""
        for paths in pair.files:
            page_cache.bring(paths, case.state)
        folders, device = [Path(paths[0]).parent for paths in pair.files], self.arguments.device
        if name == commands.COMMAND and self.command and not self.checked:
            self.checked = True
            if why := commands.check(self.command, folders[0], device):
                return {"outcome": "wrong bytes", "reason": why, "loads": []}
        folders = [self.tiny] * 2 if name == commands.TINY else folders
        return commands.trial(name, self.command, folders, device)

    def _trial(self, case: Case, files: tuple[list[list[str]], list[list[str]]], name: str) -> dict[str, Any]:
        read, _ = files
        rival, count = self.rivals[name], case.processes
        if count > 1 and (rival.convert or len(read[0]) < count):
            return {"outcome": UNAVAILABLE, "reason": f"not {count} files to share", "loads": []}
        state = "cold" if case.state == "restart" else case.state
        try:
            for paths in read:
                page_cache.bring(paths, state, whole_machine=self.arguments.drop_caches)
        except (page_cache.WrongState, OSError) as error:
            return {"outcome": "wrong state", "reason": str(error), "loads": []}
        environment = dict(rival.environment)
        if count > 1:  # what launchers set, and by which loaders share a machine
            environment["LOCAL_WORLD_SIZE"] = str(count)
        specifications = self._specifications(case, files, name)
        timeout = self.arguments.timeout
        if self.deadline is not None:
            timeout = min(timeout, max(self.deadline - time.monotonic(), 0.1))
        if case.state == "restart":
            first = {**specifications[0], "state": state, "which": ["first"]}
            second = {**specifications[0], "state": "any", "which": ["second"], "result": self._result_path()}
            return self.trials.run_restart((first, second), environment, timeout)
        return combined(self.trials.run(specifications, environment, timeout))

    def _specifications(
        self, case: Case, files: tuple[list[list[str]], list[list[str]]], name: str
    ) -> list[dict[str, Any]]:
        """What trial.py is told, for each process."""
        count = case.processes
        shares = [[checkpoints.share(paths, count) for paths in both] for both in files]
        return [
            {
                "rival": name, "device": self.arguments.device, "cpus": case.cpus, "part": case.part,
                "state": case.state, "gate": count > 1, "result": self._result_path(),
                "pcie_counter": self.machine.get("counters", {}).get("pcie_counter"),
                "files": [parts[i] for parts in shares[0]], "source": [parts[i] for parts in shares[1]],
            }
            for i in range(count)
        ]  # fmt: skip

    def _result_path(self) -> str:
        self._started += 1
        return str(self.scratch / f"trial-{self._started}")

    def _key(self, case: Case, name: str, round_: int) -> list[Any]:
        return [case.key, self.arguments.scale, self.arguments.device, name, round_]

    def _settings(self, name: str) -> str:
        return self.rivals[name].settings if name in self.rivals else commands.SETTINGS.get(name, "")

    def _title(self, case: Case) -> str:
        """The names of the shapes say what they are at a scale of 1."""
        scale = self.arguments.scale
        return case.title if scale == 1 else f"{case.title}; SCALE {scale:g}: smaller than that"

    def _has_given_up(self, case: Case, name: str) -> bool:
        bad = [row for row in self.results.rows if row["key"][:4] == self._key(case, name, 0)[:4]
               and row["outcome"] not in ("ok", UNAVAILABLE)]  # fmt: skip
        return len(bad) >= GIVE_UP_AFTER or (case.key, name) in self.refused

    def add(self, case: Case, name: str, round_: int, row: dict[str, Any], limits: Any) -> None:
        if row["outcome"] == UNAVAILABLE:
            self.refused.add((case.key, name))
        self.results.add({
            "key": self._key(case, name, round_), "case": case.key, "title": self._title(case),
            "state": case.state, "rival": name, "ours": case.ours, "round": round_, "run": self.run_id,
            "settings": self._settings(name),
            "limits": {what: found.get("best") for what, found in limits.items()}, **row,
            "machine": self.machine,
        })  # fmt: skip

    # Limits

    def _limits(self, case: Case, pair: checkpoints.Pair) -> dict[str, Any]:
        """Measured once a call for each state, place and number of CPUs."""
        what = {"warm": "page_cache,pinned", "tmpfs": "page_cache,pinned",
                "cold": "storage,pinned"}.get(case.state, "storage,page_cache,pinned")  # fmt: skip
        key = f"{case.state}-{case.cpus}"
        if key not in self.limits:
            # What reads the page cache finds it warm; O_DIRECT goes around it.
            page_cache.bring(pair.files[0], "tmpfs" if case.state == "tmpfs" else "warm")
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("limits.py")), "--what", what, "--cpus",
                 str(case.cpus), "--device", self.arguments.device, "--point-seconds",
                 str(QUICK_POINT_SECONDS if self.arguments.quick else 0.25), *pair.files[0]],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            lines = done.stdout.strip().splitlines()
            why = {"limits": {"why": done.stderr.strip()[-300:]}}
            self.limits[key] = json.loads(lines[-1]) if done.returncode == 0 else why
            with (self.out / "limits.jsonl").open("a") as file:
                row = {"run": self.run_id, "state": case.state, "cpus": case.cpus, **self.limits[key]}
                file.write(json.dumps({**row, "machine": self.machine}) + "\n")
            best = {name: f"{found['best'] / 1e9:.2f} GB/s"
                    for name, found in self.limits[key].items() if "best" in found}  # fmt: skip
            print(f"limits of {key}: {best or self.limits[key]}", flush=True)
        found: dict[str, Any] = self.limits[key]
        return found


def _write_tiny(folder: Path) -> Path:
    """A checkpoint of 4 KiB."""
    folder.mkdir()
    text = json.dumps({"weight": {"dtype": "U8", "shape": [4096], "data_offsets": [0, 4096]}}).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + os.urandom(4096))
    return folder


def wanted(arguments: argparse.Namespace) -> list[Case]:
    cases = list(matrix.QUICK) if arguments.quick else matrix.full()
    if arguments.rows:
        known = {case.key: case for case in (*matrix.full(), *matrix.QUICK)}
        keys = [key for words in arguments.rows for key in words.split(",")]
        if unknown := [key for key in keys if key not in known]:
            sys.exit(f"bench: no row {unknown[0]!r}; there are: {', '.join(known)}")
        cases = [known[key] for key in keys]
    cpus = len(os.sched_getaffinity(0))
    cases = [case for case in cases if case.cpus < cpus and case.processes <= cpus]
    if arguments.state:
        cases = [case for case in cases if case.state in arguments.state]
    if arguments.shape:
        cases = [case for case in cases if case.shape in arguments.shape]
    return cases


def run(bench: Bench, cases: list[Case]) -> list[str]:
    """Case by case until the time is over; the keys of those that are not done."""
    arguments = bench.arguments
    undone = [case.key for case in cases]
    pairs = checkpoints.Pairs(arguments.scale, bench.deadline)
    try:
        for index, case in enumerate(cases):
            if bench.is_late():
                break
            try:
                folder = arguments.tmpfs if case.state == "tmpfs" else arguments.folder
                started = time.monotonic()
                pair = pairs.take(folder, case.shape, [later.shape for later in cases[index:]])
                print(f"checkpoints of {case.key}: {time.monotonic() - started:.1f} s", flush=True)
                if bench.run_case(case, pair):
                    undone.remove(case.key)
            except checkpoints.NoRoom as error:
                print(f"{case.key}: left out: {error}", flush=True)
                row = {"outcome": UNAVAILABLE, "reason": str(error), "loads": []}
                bench.add(case, WHOLE_CASE, 0, row, {})
                undone.remove(case.key)
            except (checkpoints.NoTime, subprocess.TimeoutExpired) as error:
                print(f"{case.key}: {error}", flush=True)
            (arguments.out / "table.md").write_text(report.table(bench.results.rows))
    finally:
        bench.trials.close()
        if not arguments.keep:
            pairs.close()
    return undone


def parse() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="at most 8 minutes, the three strongest rivals")
    parser.add_argument("--rows", action="append", help="these, by their names in the table, in this order")
    parser.add_argument("--state", action="append", choices=matrix.STATES)
    parser.add_argument("--shape", action="append", choices=matrix.SHAPES)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/checkpoints"))
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--scale", type=float, help="of all sizes; else 1 or what has room, CPU target 0.06")
    parser.add_argument("--device", default="auto", help="cuda:0, cpu; auto: the GPU if there is one")
    parser.add_argument("--pairs", type=int, default=5, help="rounds; 5 make a claim")
    parser.add_argument("--only", action="append", help="these loaders; ours must be among them")
    parser.add_argument("--timeout", type=float, default=180, help="seconds of one trial")
    parser.add_argument("--seconds", type=float, help="all of the call, the table included; --quick: 470")
    parser.add_argument("--command", help="the inrush command for the row of that name; else one built here")
    parser.add_argument("--drop-caches", action="store_true", help="cold: the whole page cache too (root)")
    parser.add_argument("--keep", action="store_true", help="the checkpoints, for the next call")
    parser.add_argument("--report", action="store_true", help="only table and picture of what is there")
    arguments = parser.parse_args()
    if arguments.quick and arguments.seconds is None:
        arguments.seconds = QUICK_SECONDS
    # Everything is counted in: asking the machine, making checkpoints, limits.
    arguments.deadline = time.monotonic() + arguments.seconds - REPORT_SECONDS if arguments.seconds else None
    arguments.folder.mkdir(parents=True, exist_ok=True)
    arguments.machine = machine.ask(arguments.device, arguments.folder)
    arguments.device = arguments.machine["device"]
    if arguments.scale is None:
        on_cpu = arguments.device == "cpu"
        arguments.scale = 0.06 if on_cpu else checkpoints.fitting_scale(arguments.folder)
    return arguments


def _write_report(out: Path, undone: list[str]) -> None:
    rows = Results(out / "trials.jsonl").rows
    table = report.table(rows)
    if undone:
        table += f"\nNot done in the time of the last call: {', '.join(undone)}.\n"
    (out / "table.md").write_text(table)
    print(table)
    print(f"{out}/table.md, {report.draw(rows, out / 'picture.png')}", flush=True)


def main() -> int:
    # An end from outside is one as by Ctrl-C: the trial that runs ends too, the checkpoints go, and what was
    # measured is reported.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    undone: list[str] = []
    try:
        if not arguments.report:
            with tempfile.TemporaryDirectory(prefix="inrush-bench-") as scratch:
                bench = Bench(arguments, Path(scratch))
                print(json.dumps(bench.machine), flush=True)
                undone = run(bench, wanted(arguments))
    finally:
        _write_report(arguments.out, undone)
    bad = ("wrong bytes", "crashed", "timed out", "failed")
    rows = Results(arguments.out / "trials.jsonl").rows
    return int(any(row["outcome"] in bad for row in rows if row["rival"].startswith("inrush")))


if __name__ == "__main__":
    sys.exit(main())
