#!/usr/bin/env python3
"""Measures inrush beside every loader that is installed, and beside what the machine allows.

    bench.py --out FOLDER [--quick] [--state warm]... [--shape large]... [--folder FOLDER] [--scale 1.0]

Writes FOLDER/trials.jsonl (a line a trial), limits.jsonl, table.md and picture.png. What trials.jsonl has is
not run again, so a full run can be made a state a call. Each trial is a process of its own, trials of all
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
import machine
import matrix
import page_cache
import processes
import report
from matrix import Case
from outcomes import UNAVAILABLE, WHOLE_CASE, Results
from rivals import Rival, all_rivals

QUICK_SECONDS = 460  # of the 8 minutes, the rest for what runs when the time is over
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
        self.deadline = time.monotonic() + arguments.seconds if arguments.seconds else None
        self.machine: dict[str, Any] = arguments.machine
        self.run_id = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.limits: dict[str, Any] = {}
        self.refused: set[tuple[str, str]] = set()  # (case, loader): asked in this call, and cannot run
        self.rivals = all_rivals()
        self.unfit = self._probe()

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
        if not self.arguments.quick:
            return usable
        others = [name for name in usable if not name.startswith("inrush")]
        if self.arguments.device == "cpu" and not case.part:
            others = [name for name in others if name not in matrix.MAPPINGS_ON_CPU]
        return [case.ours] * (case.ours in usable) + matrix.strongest(case, others, case.rivals_max or 3)

    # One case

    def run_case(self, case: Case, pair: checkpoints.Pair, share: float | None) -> None:
        limits = self._limits(case, pair)
        for name in sorted(set(self.fitting(case)) & set(self.unfit)):
            self.add(case, name, 0, {"outcome": UNAVAILABLE, "reason": self.unfit[name], "loads": []}, {})
        entered, until = self.entered(case), time.monotonic() + share if share else None
        print(f"{case.key}: {', '.join(entered)}", flush=True)
        for round_ in range(self.arguments.pairs):
            turn = round_ % max(len(entered), 1)
            for name in entered[turn:] + entered[:turn]:  # nobody is always first
                if self.is_late() or (until and time.monotonic() > until and round_ >= 1):
                    print(f"{case.key}: the time is over after {round_} rounds", flush=True)
                    return
                self._run_one(case, pair, name, (round_, limits))

    def _run_one(self, case: Case, pair: checkpoints.Pair, name: str, turn: tuple[int, Any]) -> None:
        round_, limits = turn
        if self.results.has(self._key(case, name, round_)) or self._has_given_up(case, name):
            return
        files = pair.files_for(name, self.rivals[name].convert is not None)
        if isinstance(files, str):
            row: dict[str, Any] = {"outcome": UNAVAILABLE, "reason": files, "loads": []}
        else:
            row = self._trial(case, (files, pair.files), name)
            if row["outcome"] == "wrong state":  # somebody else on this machine dropped or read them
                row = self._trial(case, (files, pair.files), name)
        self.add(case, name, round_, row, limits)
        seconds = [f"{load['seconds']:.3f}" for load in row["loads"]]
        print(f"  {name} {row['outcome']} {' '.join(seconds)} {row.get('reason', '')}".rstrip(), flush=True)

    def _trial(self, case: Case, files: tuple[list[list[str]], list[list[str]]], name: str) -> dict[str, Any]:
        read, source = files
        rival, count = self.rivals[name], case.processes
        if count > 1 and (rival.convert or len(read[0]) < count):
            return {"outcome": UNAVAILABLE, "reason": f"not {count} files to share", "loads": []}
        try:
            for paths in read:
                page_cache.bring(paths, case.state, whole_machine=self.arguments.drop_caches)
        except (page_cache.WrongState, OSError) as error:
            return {"outcome": "wrong state", "reason": str(error), "loads": []}
        environment = dict(rival.environment)
        if count > 1:  # what launchers set, and by which loaders share a machine
            environment["LOCAL_WORLD_SIZE"] = str(count)
        shares = [[checkpoints.share(paths, count) for paths in both] for both in (read, source)]
        specifications = [
            {
                "rival": name, "device": self.arguments.device, "cpus": case.cpus, "part": case.part,
                "state": case.state, "gate": count > 1, "result": str(self.scratch / f"{time.time_ns()}.{i}"),
                "files": [parts[i] for parts in shares[0]], "source": [parts[i] for parts in shares[1]],
            }
            for i in range(count)
        ]  # fmt: skip
        rows = processes.run(specifications, environment, self.scratch, self.arguments.timeout)
        return processes.combined(rows)

    def _key(self, case: Case, name: str, round_: int) -> list[Any]:
        return [case.key, self.arguments.scale, self.arguments.device, name, round_]

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
            "settings": self.rivals[name].settings if name in self.rivals else "",
            "limits": {what: found.get("best") for what, found in limits.items()}, **row,
            "machine": self.machine,
        })  # fmt: skip

    # Limits

    def _limits(self, case: Case, pair: checkpoints.Pair) -> dict[str, Any]:
        """Measured once a call for each state, place and number of CPUs."""
        what = {"warm": "page_cache,pinned", "tmpfs": "page_cache,pinned", "cold": "storage,pinned",
                "half": "storage,page_cache,pinned"}[case.state]  # fmt: skip
        key = f"{case.state}-{case.cpus}"
        if key not in self.limits:
            # What reads the page cache finds it warm; O_DIRECT goes around it.
            page_cache.bring(pair.files[0], "tmpfs" if case.state == "tmpfs" else "warm")
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("limits.py")), "--what", what, "--cpus",
                 str(case.cpus), "--device", self.arguments.device, *pair.files[0]],
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


def wanted(arguments: argparse.Namespace) -> list[Case]:
    cases = list(matrix.QUICK) if arguments.quick else matrix.full()
    cpus = len(os.sched_getaffinity(0))
    cases = [case for case in cases if case.cpus < cpus and case.processes <= cpus]
    if arguments.state:
        cases = [case for case in cases if case.state in arguments.state]
    if arguments.shape:
        cases = [case for case in cases if case.shape in arguments.shape]
    return cases


def run(bench: Bench, cases: list[Case]) -> None:
    """Shape by shape, so that one pair of checkpoints is there at a time; cases keep their order."""
    arguments = bench.arguments
    places = [(case.shape, case.state == "tmpfs") for case in cases]
    left = len(cases)
    for shape, in_memory in dict.fromkeys(places):
        mine = [case for case, place in zip(cases, places) if place == (shape, in_memory)]
        folder = arguments.tmpfs if in_memory else arguments.folder
        pair = None
        try:
            checkpoints.refuse_without_room(folder, shape, arguments.scale)
            pair = checkpoints.Pair(folder, shape, arguments.scale)
            for case in mine:
                # A case may take double its share of what is left, since others take less.
                share = 2 * (bench.deadline - time.monotonic()) / left if bench.deadline else None
                left -= 1
                bench.run_case(case, pair, share)
        except checkpoints.NoRoom as error:
            print(f"{', '.join(case.key for case in mine)}: left out: {error}", flush=True)
            for case in mine:
                left -= 1
                row = {"outcome": UNAVAILABLE, "reason": str(error), "loads": []}
                bench.add(case, WHOLE_CASE, 0, row, {})
        finally:
            if pair is not None and not arguments.keep:
                pair.close()
        if bench.is_late():
            break


def parse() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="at most 8 minutes, the three strongest rivals")
    parser.add_argument("--state", action="append", choices=matrix.STATES)
    parser.add_argument("--shape", action="append", choices=matrix.SHAPES)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/checkpoints"))
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--scale", type=float, help="1: sizes of the issue; GPU 0.25 with --quick, CPU 0.06")
    parser.add_argument("--device", default="auto", help="cuda:0, cpu; auto: the GPU if there is one")
    parser.add_argument("--pairs", type=int, default=5, help="rounds; 5 make a claim")
    parser.add_argument("--only", action="append", help="these loaders; ours must be among them")
    parser.add_argument("--timeout", type=float, default=180, help="seconds of one trial")
    parser.add_argument("--seconds", type=float, help="start nothing after so many; --quick: 460")
    parser.add_argument("--drop-caches", action="store_true", help="cold: the whole page cache too (root)")
    parser.add_argument("--keep", action="store_true", help="the checkpoints, for the next call")
    parser.add_argument("--report", action="store_true", help="only table and picture of what is there")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    arguments.machine = machine.ask(arguments.device, arguments.folder)
    arguments.device = arguments.machine["device"]
    if arguments.scale is None:
        arguments.scale = 0.06 if arguments.device == "cpu" else 0.25 if arguments.quick else 1.0
    if arguments.quick and arguments.seconds is None:
        arguments.seconds = QUICK_SECONDS
    return arguments


def main() -> int:
    arguments = parse()
    # An end from outside is one as by Ctrl-C: the trial that runs ends too, and the checkpoints go.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        with tempfile.TemporaryDirectory(prefix="inrush-bench-") as scratch:
            bench = Bench(arguments, Path(scratch))
            print(json.dumps(bench.machine), flush=True)
            run(bench, wanted(arguments))
    rows = Results(arguments.out / "trials.jsonl").rows
    table = report.table(rows)
    (arguments.out / "table.md").write_text(table)
    print(table)
    drawn = report.draw(rows, arguments.out / "picture.png")
    print(f"{arguments.out}/table.md, {drawn}")
    ours = [row for row in rows if row["rival"].startswith("inrush")]
    return int(any(row["outcome"] in ("wrong bytes", "crashed", "timed out", "failed") for row in ours))


if __name__ == "__main__":
    sys.exit(main())
