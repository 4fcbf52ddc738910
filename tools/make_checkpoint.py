#!/usr/bin/env python3
"""Writes a checkpoint of random bytes in one of several layouts, with or without an index.

Usage: make_checkpoint.py FOLDER [--layout equal] [--files 8] [--seed 1] [--index] ...
  equal    files and tensors of equal size: [--file-bytes 1610612736] [--tensor-bytes 33554432]
  llama    the tensors of a Llama of [--layers 32] [--hidden 4096] [--intermediate 14336] [--vocab 128256]
  moe      the same with [--experts 8] feed-forward parts a layer
  scalars  [--tensors 40000] tensors of [--total-bytes 8000000000]: every second one 4 bytes, the others of
           odd sizes, in an order of their own, as quantised checkpoints have
Random, not zeros: file systems, caches and compressors treat zeros specially. Standard library only.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import struct
import sys
from typing import NamedTuple

CHUNK_BYTES = 8 << 20
WRITERS = 4
DTYPE_BYTES = {"BF16": 2, "F32": 4, "U8": 1}


class Entry(NamedTuple):
    name: str
    dtype: str
    shape: list[int]

    @property
    def nbytes(self) -> int:
        count = DTYPE_BYTES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


def header(entries: list[Entry]) -> bytes:
    end, fields = 0, {}
    for entry in entries:
        fields[entry.name] = {"dtype": entry.dtype, "shape": entry.shape,
                              "data_offsets": [end, end + entry.nbytes]}
        end += entry.nbytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) + -len(text) % 8) + text + b" " * (-len(text) % 8)


def write_file(path: pathlib.Path, entries: list[Entry], source: random.Random, block: memoryview) -> None:
    """`block` has 2 * CHUNK_BYTES random bytes."""
    left = sum(entry.nbytes for entry in entries)
    with open(path, "wb", buffering=0) as file:
        write_all(file.fileno(), [memoryview(header(entries))])
        while left > 0:
            # A fresh start and another place in the block keep chunks apart, also those of small tensors that
            # are a chunk from one another, at a fraction of the cost of fresh bytes throughout.
            at = source.randrange(CHUNK_BYTES)
            size = min(CHUNK_BYTES, left)
            parts = [memoryview(source.randbytes(min(4096, size))), block[at:at + size - min(4096, size)]]
            write_all(file.fileno(), parts)
            left -= size
        os.fsync(file.fileno())


def write_all(descriptor: int, parts: list[memoryview]) -> None:
    while parts:
        count = os.writev(descriptor, parts)
        while parts and count >= len(parts[0]):
            count -= len(parts.pop(0))
        if count:
            parts[0] = parts[0][count:]


# The layouts: for each file its tensors.


def equal(arguments: argparse.Namespace) -> list[list[Entry]]:
    if arguments.tensor_bytes % 2 or arguments.file_bytes < arguments.tensor_bytes:
        sys.exit("--tensor-bytes must be even and at most --file-bytes")
    count = arguments.file_bytes // arguments.tensor_bytes
    return [[Entry(f"layers.{index}.weight.{i}", "BF16", [arguments.tensor_bytes // 2]) for i in range(count)]
            for index in range(arguments.files)]


def llama(arguments: argparse.Namespace) -> list[list[Entry]]:
    # The names and shapes that transformers wants stand where a whole model is made for it.
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "bench" / "frameworks"))
    import transformers_load

    config = transformers_load.config_of(arguments)
    return sharded([Entry(name, "BF16", shape) for name, shape in transformers_load.shapes_of(config)],
                   arguments.files)


def moe(arguments: argparse.Namespace) -> list[list[Entry]]:
    entries = []
    for entry in (entry for file in llama(arguments) for entry in file):
        if ".mlp." not in entry.name:
            entries.append(entry)
            continue
        before, after = entry.name.split(".mlp.")
        entries += [entry._replace(name=f"{before}.mlp.experts.{expert}.{after}")
                    for expert in range(arguments.experts)]
        if after.startswith("gate_proj"):
            entries.append(Entry(f"{before}.mlp.gate.weight", "BF16", [arguments.experts, arguments.hidden]))
    return sharded(entries, arguments.files)


def scalars(arguments: argparse.Namespace) -> list[list[Entry]]:
    """Weights of odd sizes with a scale each. The order is the same for every seed: a pair has one shape."""
    count = arguments.tensors // 2
    mean = (arguments.total_bytes - 4 * count) // count
    source = random.Random(count)
    entries = []
    for i in range(count):
        size = max(source.randrange(mean // 2, mean + mean // 2 + 1) | 1, 1)
        entries.append(Entry(f"layers.{i}.weight", "U8", [size]))
        entries.append(Entry(f"layers.{i}.scale", "F32", []))
    source.shuffle(entries)
    return sharded(entries, arguments.files)


def sharded(entries: list[Entry], count: int) -> list[list[Entry]]:
    """The same tensors in order, over `count` files of about equal size."""
    total = sum(entry.nbytes for entry in entries)
    files: list[list[Entry]] = [[] for _ in range(count)]
    seen = 0
    for entry in entries:
        files[min(seen * count // max(total, 1), count - 1)].append(entry)
        seen += entry.nbytes
    return [file for file in files if file]


LAYOUTS = {"equal": equal, "llama": llama, "moe": moe, "scalars": scalars}


def write(folder: pathlib.Path, files: list[list[Entry]], seed: int) -> dict[str, str]:
    """Writes the files, several at once; for each tensor the name of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    block = memoryview(random.Random(seed).randbytes(2 * CHUNK_BYTES))
    names = [f"model-{index + 1:05d}-of-{len(files):05d}.safetensors" for index in range(len(files))]
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:  # a write needs no interpreter
        done = [pool.submit(write_file, folder / name, entries, random.Random(f"{seed}/{name}"), block)
                for name, entries in zip(names, files)]
        for future in done:
            future.result()
    return {entry.name: name for name, entries in zip(names, files) for entry in entries}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layout", choices=LAYOUTS, default="equal")
    for name, value in (("files", 8), ("file-bytes", 1536 << 20), ("tensor-bytes", 32 << 20), ("seed", 1),
                        ("layers", 32), ("hidden", 4096), ("intermediate", 14336), ("vocab", 128256),
                        ("experts", 8), ("tensors", 40000), ("total-bytes", 8000000000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--index", action="store_true")
    return parser.parse_args(words)


def main() -> int:
    arguments = parse()
    files = LAYOUTS[arguments.layout](arguments)
    weight_map = write(arguments.folder, files, arguments.seed)
    total = sum(entry.nbytes for entries in files for entry in entries)
    if arguments.index:
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1)
        (arguments.folder / "model.safetensors.index.json").write_text(text)
    print(f"{arguments.folder}: {len(weight_map)} tensors, {total} bytes in {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
