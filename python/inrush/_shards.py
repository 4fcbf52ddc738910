"""`inrush.ShardSpec`: the part of each tensor that one rank of a tensor-parallel group loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Union

from inrush import _errors
from inrush._inrush import Checkpoint, TensorInfo


class Slice(NamedTuple):
    """Elements [start, start + length) of one dimension of a tensor, all of the others."""

    dimension: int
    start: int
    length: int


class Shard(NamedTuple):
    """Part `rank` of `world` equal parts of a dimension, which counts from the end where it is negative."""

    dimension: int
    rank: int
    world: int


Part = Union[int, tuple[int, int, int], None]


class ShardSpec:
    """Says by name patterns which dimension of a tensor is divided among ranks; for any `slices=` argument.

        spec = inrush.ShardSpec({"*.q_proj.weight": 0, "*.o_proj.weight": 1}, rank=1, world=4)
        weights = inrush.torch.load("/models/llama", "cuda:1", slices=spec)

    patterns: by name or glob a dimension, or (dimension, rank, world) where a tensor is divided among fewer
        than all, or None for a tensor that is whole on each rank. The first pattern that matches counts; a
        tensor that none matches is whole.
    unmatched: "error" refuses a pattern that matches no tensor of the checkpoint, "ignore" takes it as said
        for other models.
    A dimension that `world` does not divide, or a tensor without that dimension, is an error of the load.
    Of a tensor that is divided by its first dimension only the rank's rows are read; of another the rows
    that hold its columns, and only the columns go to the device.
    """

    def __init__(
        self, patterns: Mapping[str, Part], *, rank: int, world: int, unmatched: str = "error"
    ) -> None:
        if unmatched not in ("error", "ignore"):
            raise _errors.make_error("invalid_request", f'unmatched={unmatched!r}: say "error" or "ignore"')
        self._shards = {pattern: _shard(pattern, part, rank, world) for pattern, part in patterns.items()}
        self._unmatched = unmatched

    def __repr__(self) -> str:
        return f"<inrush.ShardSpec of {len(self._shards)} patterns>"

    def slices(self, checkpoint: Checkpoint, only: list[str] | None = None) -> dict[str, Slice]:
        """What is to be loaded of each tensor that the globs `only` name and that is not whole."""
        wanted = None if only is None else {entry.name for entry in checkpoint.selection(only)}
        slices: dict[str, Slice] = {}
        decided: set[str] = set()
        for pattern, shard in self._shards.items():
            for entry in self._matches(checkpoint, pattern):
                if entry.name in decided:
                    continue
                decided.add(entry.name)
                if shard is not None and shard.world > 1 and (wanted is None or entry.name in wanted):
                    slices[entry.name] = _slice(entry, shard, pattern)
        return slices

    def _matches(self, checkpoint: Checkpoint, pattern: str) -> list[TensorInfo]:
        try:
            return checkpoint.selection([pattern])
        except _errors.RequestError as error:  # it matches nothing
            if self._unmatched == "ignore":
                return []
            raise _errors.make_error(
                "invalid_request", f'ShardSpec: {error}; unmatched="ignore" lets it pass'
            ) from error


def _shard(pattern: str, part: Part, rank: int, world: int) -> Shard | None:
    if part is None:
        return None
    try:
        shard = Shard(part, rank, world) if isinstance(part, int) else Shard(*part)
        is_sound = all(isinstance(number, int) for number in shard) and 0 <= shard.rank < shard.world
    except TypeError:
        is_sound = False
    if not is_sound:
        raise _errors.make_error(
            "invalid_request",
            f"ShardSpec[{pattern!r}] is {part!r} (rank {rank!r} of {world!r}): say a dimension, or "
            "(dimension, rank, world) with rank below world, or None",
        )
    return shard


def _slice(entry: TensorInfo, shard: Shard, pattern: str) -> Slice:
    shape = list(entry.shape)
    if not -len(shape) <= shard.dimension < len(shape):
        raise _errors.make_error(
            "invalid_request",
            f"{entry.file}: tensor {entry.name!r} has shape {shape} and no dimension {shard.dimension} "
            f"(ShardSpec[{pattern!r}])",
        )
    dimension = shard.dimension % len(shape)
    extent = shape[dimension]
    if extent % shard.world:
        raise _errors.make_error(
            "invalid_request",
            f"{entry.file}: tensor {entry.name!r} has shape {shape}: dimension {dimension} does not "
            f"divide into {shard.world} equal parts (ShardSpec[{pattern!r}]); give its part by slices=, "
            "or None to load it whole",
        )
    length = extent // shard.world
    return Slice(dimension, shard.rank * length, length)
