#!/usr/bin/env python3
"""Writes a checkpoint of random bytes: files and tensors of equal size, with or without an index.

Usage: make_checkpoint.py FOLDER [--files 8] [--file-bytes 1610612736] [--tensor-bytes 33554432] [--seed 1]
                          [--index]
Random, not zeros: file systems, caches and compressors treat zeros specially. Standard library only.
"""
import argparse
import json
import os
import pathlib
import random
import struct
import sys

CHUNK_BYTES = 8 << 20


def header(names: list[str], tensor_bytes: int) -> bytes:
    entries = {name: {"dtype": "BF16", "shape": [tensor_bytes // 2],
                      "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes]}
               for i, name in enumerate(names)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) + -len(text) % 8) + text + b" " * (-len(text) % 8)


def write_file(path: pathlib.Path, names: list[str], tensor_bytes: int, source: random.Random) -> None:
    left = len(names) * tensor_bytes
    block = source.randbytes(CHUNK_BYTES)
    with open(path, "wb") as file:
        file.write(header(names, tensor_bytes))
        while left > 0:
            # A fresh start keeps chunks apart at a fraction of the cost of fresh bytes throughout.
            chunk = source.randbytes(4096) + block[4096:]
            file.write(chunk[:left])
            left -= len(chunk)
        file.flush()
        os.fsync(file.fileno())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--file-bytes", type=int, default=1536 << 20)
    parser.add_argument("--tensor-bytes", type=int, default=32 << 20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", action="store_true")
    arguments = parser.parse_args()
    if arguments.tensor_bytes % 2 or arguments.file_bytes < arguments.tensor_bytes:
        parser.error("--tensor-bytes must be even and at most --file-bytes")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(arguments.seed)
    weight_map = {}
    for index in range(arguments.files):
        name = f"model-{index + 1:05d}-of-{arguments.files:05d}.safetensors"
        count = arguments.file_bytes // arguments.tensor_bytes
        tensors = [f"layers.{index}.weight.{i}" for i in range(count)]
        write_file(arguments.folder / name, tensors, arguments.tensor_bytes, source)
        weight_map.update(dict.fromkeys(tensors, name))
    if arguments.index:
        total = len(weight_map) * arguments.tensor_bytes
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1)
        (arguments.folder / "model.safetensors.index.json").write_text(text)
    total = len(weight_map) * arguments.tensor_bytes
    print(f"{arguments.folder}: {len(weight_map)} tensors, {total} bytes in {arguments.files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
