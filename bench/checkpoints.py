"""The checkpoints that the bench loads: made, converted for rivals with formats of their own, and removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from matrix import SHAPES

MAKER = Path(__file__).parents[1] / "tools" / "make_checkpoint.py"
CONVERT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from rivals import all_rivals
for path in all_rivals()[sys.argv[2]].convert(sys.argv[4:], Path(sys.argv[3])):
    print("written:", path)
"""
ROOM_SPARE_BYTES = 1 << 30


class NoRoom(RuntimeError):
    """The file system is too small for this shape at this scale."""


class NoTime(RuntimeError):
    """The time of the call is over."""


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.1)


class Pair:
    """Two checkpoints of one shape and different bytes, in a folder that goes with close()."""

    def __init__(self, folder: Path, shape: str, scale: float, until: float | None = None) -> None:
        """`until`: by time.monotonic(), when making it is given up."""
        self.folder = folder / f"inrush-bench-{shape}"
        self._until = until
        self._converted: dict[str, list[list[str]] | str] = {}
        words = SHAPES[shape].words(scale)
        self._mark = json.dumps([words, MAKER.stat().st_mtime])
        if not self._is_made():
            self.close()
            self._make(words)
        self.files = [sorted(map(str, (self.folder / part).glob("*.safetensors"))) for part in "ab"]
        self.bytes = sum(Path(path).stat().st_size for path in self.files[0])

    def _is_made(self) -> bool:
        mark = self.folder / "made"
        return mark.exists() and mark.read_text() == self._mark

    def _make(self, words: list[str]) -> None:
        self.folder.mkdir(parents=True)
        makers = [
            subprocess.Popen(
                [sys.executable, str(MAKER), str(self.folder / part), "--seed", str(seed), *words],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for seed, part in enumerate("ab", 1)
        ]  # fmt: skip
        errors = []
        try:
            for maker in makers:
                errors += maker.communicate(timeout=_left(self._until))[1].strip().splitlines()
        except subprocess.TimeoutExpired as error:
            raise NoTime("its checkpoints were not made in time") from error
        finally:
            for maker in makers:
                maker.kill()  # of one that has ended it does nothing
                maker.wait()
            if any(maker.returncode for maker in makers):
                self.close()
        if any(maker.returncode for maker in makers):
            raise NoRoom((errors or ["it said nothing"])[-1])
        (self.folder / "made").write_text(self._mark)

    def files_for(self, rival: str, converts: bool) -> list[list[str]] | str:
        """What this rival reads for the first and the second load, or why there is nothing."""
        if not converts:
            return self.files
        if rival not in self._converted:
            self._converted[rival] = self._convert(rival)
        return self._converted[rival]

    def _convert(self, rival: str) -> list[list[str]] | str:
        if shutil.disk_usage(self.folder).free < 2 * self.bytes + ROOM_SPARE_BYTES:
            return f"no room for its own format: {2 * self.bytes / 1e9:.1f} GB more"
        written = []
        for part, files in zip("ab", self.files):
            target = self.folder / f"{rival}-{part}"
            target.mkdir(exist_ok=True)
            done = subprocess.run(
                [sys.executable, "-c", CONVERT, str(Path(__file__).parent), rival, str(target), *files],
                capture_output=True, text=True, check=False, timeout=_left(self._until),
            )  # fmt: skip
            if done.returncode != 0:
                return "converting: " + (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
            written.append([line.removeprefix("written: ") for line in done.stdout.splitlines()
                            if line.startswith("written: ")])  # fmt: skip
        return written

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Pairs:
    """Those of one call. One that is there stays until another needs its room."""

    def __init__(self, scale: float, until: float | None) -> None:
        self._scale = scale
        self._until = until
        self._made: dict[tuple[Path, str], Pair] = {}

    def take(self, folder: Path, shape: str, coming: list[str]) -> Pair:
        """NoRoom or NoTime where there is none. The one whose shape comes last again goes first."""
        def turn(other: tuple[Path, str]) -> int:
            return coming.index(other[1]) if other[1] in coming else len(coming)

        key = folder, shape
        if key not in self._made:
            while (why := lacks_room(folder, shape, self._scale)) is not None:
                others = [other for other in self._made if other[0] == folder]
                if not others:
                    raise NoRoom(why)
                self._made.pop(max(others, key=turn)).close()
            self._made[key] = Pair(folder, shape, self._scale, self._until)
        return self._made[key]

    def close(self) -> None:
        for pair in self._made.values():
            pair.close()
        self._made.clear()


def share(paths: list[str], count: int) -> list[list[str]]:
    """These files of one folder divided among processes, each part in a folder of its own (by hard links): a
    loader that takes folders finds its part and no more.
    """
    if count == 1:
        return [paths]
    parts = []
    for index in range(count):
        folder = Path(paths[0]).parent / f"part-{index + 1}-of-{count}"
        folder.mkdir(exist_ok=True)
        parts.append([str(folder / Path(path).name) for path in paths[index::count]])
        for source, target in zip(paths[index::count], parts[-1]):
            if not os.path.exists(target):
                os.link(source, target)
    return parts


def needed_bytes(shape: str, scale: float) -> int:
    """Of the two, before they are made; an estimate for the models."""
    sizes = {"large": 16.1e9, "large-1": 16.1e9, "large-16": 16.1e9, "gib": 1.08e9, "small": 2.15e9,
             "scalars": 8e9, "llama": 16.1e9, "moe": 14e9}  # fmt: skip
    return int(2 * sizes[shape] * max(min(scale, 1), 0.002))


def fitting_scale(folder: Path) -> float:
    """1, or where the largest shape would find no room the hundredths of it that do."""
    room = shutil.disk_usage(folder).free - ROOM_SPARE_BYTES
    return min(max(int(100 * room / needed_bytes("large", 1)), 1) / 100, 1.0)


def lacks_room(folder: Path, shape: str, scale: float) -> str | None:
    """Why two of this shape do not fit there."""
    made = folder / f"inrush-bench-{shape}" / "made"
    free, needed = shutil.disk_usage(folder).free, needed_bytes(shape, scale)
    if made.exists() or free >= needed + ROOM_SPARE_BYTES // 4:
        return None
    return f"{folder} has {free / 1e9:.1f} GB free, two of {shape!r} need {needed / 1e9:.1f}"
