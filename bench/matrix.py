"""What is compared: shapes of checkpoints, states of the page cache, CPU sets, processes; and who. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

import commands

GIB = 1 << 30
STATES = ("warm", "cold", "half", "tmpfs", "restart")
OURS = {"load": "inrush", "fill": "inrush-into", "cold": "inrush-bypass"}

# Strongest first, as measured on an H200 (the facts of issue 6): what --quick takes the first three from.
# Those that cannot run on a device are passed over, and listed all the same.
STRONGEST = {
    "warm": (
        "instanttensor-mmap", "safetensors-prefetch", "kvikio", "instanttensor-uring-buffered",
        "safetensors-threads", "flashpack", "naive-read", "safetensors", "model-streamer",
    ),
    "many": (  # small tensors, of which InstantTensor does 14,000 a second
        "safetensors-prefetch", "kvikio", "naive-read", "flashpack", "safetensors-threads", "safetensors",
        "instanttensor-mmap", "model-streamer",
    ),
    "cold": (
        "fastsafetensors-nogds", "safetensors-prefetch", "model-streamer", "instanttensor-uring", "kvikio",
        "naive-read", "safetensors-threads", "safetensors",
    ),
}  # fmt: skip
# On the CPU these give mappings of the page cache and copy nothing: --quick compares with those that load.
MAPPINGS_ON_CPU = ("safetensors", "safetensors-threads", "torch-mmap")
STRONGEST_FILLS = ("instanttensor-mmap-into", "instanttensor-uring-buffered-into")


@dataclass(frozen=True)
class Shape:
    """A checkpoint that tools/make_checkpoint.py makes; `words` are its options at a scale of 1."""

    name: str
    about: str
    layout: str
    files: int
    sizes: tuple[tuple[str, int], ...]

    def words(self, scale: float) -> list[str]:
        """Its options at a scale: fewer bytes, the tensors as large as they are."""
        sizes = dict(self.sizes)
        for name in ("file-bytes", "total-bytes", "tensors"):
            if name in sizes:
                sizes[name] = max(int(sizes[name] * scale), 1)
        if "tensor-bytes" in sizes:  # whole tensors, and one at least
            count = max(sizes["file-bytes"] // sizes["tensor-bytes"], 1)
            sizes["file-bytes"] = count * sizes["tensor-bytes"]
        if "layers" in sizes:
            _shrink_model(sizes, scale)
        words = ["--layout", self.layout, "--files", str(self.files)]
        for name, value in sizes.items():
            words += [f"--{name}", str(value)]
        return words


def _shrink_model(sizes: dict[str, int], scale: float) -> None:
    """Fewer layers; of a quarter of the width where even one would be too large."""
    if scale < 0.25:
        sizes["hidden"], sizes["intermediate"] = 1024, 3584
        scale *= 16
    sizes["layers"] = max(round(sizes["layers"] * min(scale, 1)), 1)
    sizes["vocab"] = max(round(sizes["vocab"] * min(scale, 1)), 1000)


def _equal(name: str, about: str, files: int, file_bytes: int, tensor_bytes: int = 32 << 20) -> Shape:
    return Shape(name, about, "equal", files, (("file-bytes", file_bytes), ("tensor-bytes", tensor_bytes)))


_LLAMA = (("layers", 32), ("hidden", 4096), ("intermediate", 14336), ("vocab", 128256))
SHAPES = {
    shape.name: shape
    for shape in (
        _equal("large", "16 GB in 4 files, tensors of 32 MiB", 4, 15 * GIB // 4),
        _equal("large-1", "16 GB in 1 file, tensors of 32 MiB", 1, 15 * GIB),
        _equal("large-16", "16 GB in 16 files, tensors of 32 MiB", 16, 15 * GIB // 16),
        _equal("gib", "one file of 1 GiB, tensors of 32 MiB", 1, GIB),
        _equal("small", "32,768 tensors of 64 KiB", 1, 2 * GIB, 64 << 10),
        Shape("scalars", "40,000 tensors, half of them 4-byte scalars, odd sizes and order", "scalars", 4,
              (("tensors", 40000), ("total-bytes", 8000000000))),
        Shape("llama", "a Llama of 8B parameters in 4 files", "llama", 4, _LLAMA),
        Shape("moe", "a mixture of 8 experts in 4 files", "moe", 4,
              (("layers", 4), *_LLAMA[1:], ("experts", 8))),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One table: a state and a shape, and how it is loaded."""

    state: str
    shape: str
    cpus: int = 0  # 0: all
    processes: int = 1
    part: tuple[int, int] | None = None  # (dimension, parts) of *_proj.weight
    fill: bool = False  # into tensors that exist
    is_command: bool = False  # the command `inrush load`, beside processes that load nothing
    rivals_max: int | None = None  # in --quick

    @property
    def key(self) -> str:
        words = [self.state, self.shape]
        words += [f"{self.cpus}cpu"] if self.cpus else []
        words += [f"{self.processes}processes"] if self.processes > 1 else []
        words += [f"slice{self.part[0]}of{self.part[1]}"] if self.part else []
        words += ["into"] if self.fill else []
        words += ["command"] if self.is_command else []
        return "-".join(words)

    @property
    def title(self) -> str:
        words = [f"{self.state}, {SHAPES[self.shape].about}" if self.shape in SHAPES else self.shape]
        if self.cpus:
            words.append(f"{self.cpus} CPU" + "s" * (self.cpus > 1))
        if self.processes > 1:
            words.append(f"{self.processes} processes, a file each")
        if self.part:
            words.append(f"1/{self.part[1]} of dimension {self.part[0]} of each projection")
        if self.fill:
            words.append("into tensors that exist")
        if self.is_command:
            words.append("the command, from exec")
        return ", ".join(words)

    @property
    def ours(self) -> str:
        if self.is_command:
            return commands.COMMAND
        if self.state == "cold" and not self.fill and not self.part:
            return OURS["cold"]
        return OURS["fill" if self.fill else "load"]

    @property
    def all_ours(self) -> list[str]:
        """With --quick: its name, and in a cold state the one that leaves the cache warm, too."""
        return [self.ours, *([OURS["load"]] if self.ours == OURS["cold"] else [])]


# The rows of the table that the bench was asked for, in the order in which they run until the time is over.
QUICK = (
    Case("warm", "gib", rivals_max=3),
    Case("warm", "large", rivals_max=3),
    Case("warm", "small", rivals_max=3),
    Case("warm", "scalars", rivals_max=2),
    Case("warm", "gib", is_command=True),
    Case("restart", "gib", rivals_max=2),
    Case("cold", "gib", rivals_max=2),
    Case("warm", "scalars", fill=True, rivals_max=1),
    Case("warm", "large", cpus=4, rivals_max=1),
    Case("warm", "large", cpus=2, rivals_max=1),
    Case("warm", "large", processes=4, rivals_max=1),
    Case("half", "gib", rivals_max=1),
    Case("tmpfs", "gib", rivals_max=2),
    Case("warm", "llama", part=(1, 8), rivals_max=1),
    Case("warm", "large", cpus=1, rivals_max=1),
)


def full() -> list[Case]:
    cases = [Case(state, shape) for state in STATES for shape in SHAPES if state != "restart"]
    cases += [Case("restart", shape) for shape in ("gib", "large", "llama")]
    cases += [Case("warm", "gib", is_command=True)]
    for state in ("warm", "cold", "half", "tmpfs"):
        cases += [Case(state, shape, fill=True) for shape in ("large", "scalars")]
    cases += [Case(state, "large", cpus=cpus) for state in ("warm", "cold", "tmpfs") for cpus in (1, 2, 4)]
    cases += [Case("warm", "large", processes=count) for count in (2, 4)]
    cases += [Case("warm", "llama", part=(axis, parts)) for axis in (0, 1) for parts in (2, 4, 8)]
    return cases


def strongest(case: Case, usable: list[str], count: int) -> list[str]:
    """Of the rivals that can run here, the strongest ones for this case."""
    if case.fill:
        order: tuple[str, ...] = STRONGEST_FILLS
    elif case.part:
        order = ("safetensors",)
    else:
        few = "many" if case.shape in ("small", "scalars") else "warm"
        order = STRONGEST["cold" if case.state in ("cold", "restart") else few]
    return [name for name in order if name in usable][:count]
