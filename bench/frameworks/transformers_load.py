#!/usr/bin/env python3
"""transformers' from_pretrained() beside the same call through inrush.transformers, each trial in a process
of its own. Needs torch, transformers, accelerate and the wheel. Prints one JSON line a trial.

    transformers_load.py make FOLDER [--layers 32] [--hidden 4096] [--intermediate 14336] [--vocab 128256]
    transformers_load.py warm FOLDER [--device cuda:0] [--repeats 2] [--dtype auto]
    transformers_load.py cold FOLDER [--device cuda:0] [--repeats 1]

make  a Llama of random bf16 weights, of the size of Llama-3-8B by default (16 GB, 4 files and an index)
warm  the checkpoint in the page cache, imports done and the CUDA context alive before the clock starts
cold  the checkpoint out of the page cache; the clock starts with the process, imports and CUDA context
      included; with and without `inrush warm FOLDER` started as the first thing
Every trial also prints what the model answers as a hash: equal hashes are logits that are equal bit by bit.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import mmap
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

SHARD_BYTES = 4 << 30
BLOCK_ELEMENTS = 32 << 20
DROP_CACHES = "/proc/sys/vm/drop_caches"


# The checkpoint


def config_of(arguments: argparse.Namespace) -> dict[str, Any]:
    heads = max(arguments.hidden // 128, 4)
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": arguments.hidden, "intermediate_size": arguments.intermediate,
        "num_hidden_layers": arguments.layers, "vocab_size": arguments.vocab,
        "num_attention_heads": heads, "num_key_value_heads": max(heads // 4, 1),
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip


def shapes_of(config: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", [hidden]
        yield at + "mlp.down_proj.weight", [hidden, inner]
        yield at + "mlp.gate_proj.weight", [inner, hidden]
        yield at + "mlp.up_proj.weight", [inner, hidden]
        yield at + "post_attention_layernorm.weight", [hidden]
        yield at + "self_attn.k_proj.weight", [keys, hidden]
        yield at + "self_attn.o_proj.weight", [hidden, hidden]
        yield at + "self_attn.q_proj.weight", [hidden, hidden]
        yield at + "self_attn.v_proj.weight", [keys, hidden]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [vocab, hidden]


def bytes_of(shape: list[int]) -> int:
    count = 2
    for length in shape:
        count *= length
    return count


def shards_of(config: dict[str, Any]) -> list[list[tuple[str, list[int]]]]:
    shards: list[list[tuple[str, list[int]]]] = [[]]
    filled = 0
    for name, shape in shapes_of(config):
        if shards[-1] and filled + bytes_of(shape) > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append((name, shape))
        filled += bytes_of(shape)
    return shards


def write_shard(path: pathlib.Path, tensors: list[tuple[str, list[int]]], block: memoryview) -> int:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes_of(shape)]}
        end += bytes_of(shape)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            # Each tensor starts elsewhere in the block: no two are equal, and none is made anew.
            at = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") * 2 % len(block)
            left = bytes_of(shape)
            while left:
                left -= file.write(block[at : at + left])
                at = 0
        file.flush()
        os.fsync(file.fileno())
    return end


def make(arguments: argparse.Namespace) -> None:
    import torch

    config = config_of(arguments)
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    count = min(BLOCK_ELEMENTS, 4 * arguments.hidden * arguments.intermediate)
    values = (torch.randn(count) * 0.02).to(torch.bfloat16)  # as models are initialised: logits stay finite
    block = values.view(torch.uint8).numpy().data.cast("B")
    shards = shards_of(config)
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(folder / name, tensors, block)
        weight_map.update(dict.fromkeys((tensor for tensor, _ in tensors), name))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    print(f"{folder}: {len(weight_map)} tensors, {total} bytes in {len(shards)} files")


# The page cache


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("*.safetensors"))


def read_all(folder: pathlib.Path) -> None:
    buffer = bytearray(16 << 20)
    for path in files_of(folder):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def drop(folder: pathlib.Path) -> None:
    for path in files_of(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # The rest of the page cache stays where it can: reading libraries anew is another measurement.
    if resident_part(folder) > 0.01 and os.access(DROP_CACHES, os.W_OK):
        pathlib.Path(DROP_CACHES).write_text("1")


def resident_part(folder: pathlib.Path) -> float:
    """Of the checkpoint's pages, those in the page cache."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    resident = total = 0
    for path in files_of(folder):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            pages = -(-len(mapped) // mmap.PAGESIZE)
            flags = (ctypes.c_ubyte * pages)()
            first = ctypes.c_char.from_buffer(mapped)
            if mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), flags) != 0:
                raise OSError(ctypes.get_errno(), f"mincore: {path}")
            del first
            resident += sum(flag & 1 for flag in flags)
            total += pages
    return resident / total


# One trial, in a process of its own


def warmer(folder: pathlib.Path) -> subprocess.Popen[bytes]:
    command = shutil.which("inrush", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if command is None:
        sys.exit("there is no command inrush beside this Python or on PATH")
    return subprocess.Popen([command, "warm", str(folder)], stdout=subprocess.DEVNULL)


def hash_of_logits(model: Any, device: str) -> str:
    import torch

    with torch.no_grad():
        tokens = torch.arange(1, 17, device=device).unsqueeze(0)
        logits = model(tokens).logits.float().cpu()
    assert torch.isfinite(logits).all()
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()[:16]


def load(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The model, and what the loader says about its part."""
    from transformers import AutoModelForCausalLM

    words = {"device_map": arguments.device, "dtype": arguments.dtype}
    if arguments.way == "ordinary":
        return AutoModelForCausalLM.from_pretrained(arguments.folder, **words), {}
    import inrush.transformers

    with inrush.transformers.patch(progress=False) as loaded:
        model = AutoModelForCausalLM.from_pretrained(arguments.folder, **words)
    assert len(loaded) == 1 and loaded[0].left is None, loaded
    stages = loaded[0].reports[0].seconds
    return model, {
        "ours_s": round(loaded[0].seconds, 4), "bytes": loaded[0].nbytes, "loads": len(loaded[0].reports),
        "first_byte_s": round(stages.first_byte, 4), "last_byte_s": round(stages.last_byte, 4),
    }  # fmt: skip


def trial(arguments: argparse.Namespace) -> None:
    warming = warmer(arguments.folder) if arguments.warmer else None
    import torch
    import transformers

    on_gpu = arguments.device != "cpu"
    if arguments.mode == "warm":
        from transformers import LlamaForCausalLM  # noqa: F401  its module is imported when it is first named

        if arguments.way == "inrush":
            import inrush.transformers  # noqa: F401
        if on_gpu:
            torch.empty(1, device=arguments.device)
    imported = time.monotonic()
    model, more = load(arguments)
    if on_gpu:
        torch.cuda.synchronize()
    ready = time.monotonic()
    row = {
        "mode": arguments.mode, "way": arguments.way, "warmer": bool(arguments.warmer),
        "from_pretrained_s": round(ready - imported, 3), "since_start_s": round(ready - arguments.started, 3),
        "imports_s": round(imported - arguments.started, 3), **more,
        "transformers": transformers.__version__, "torch": torch.__version__,
    }  # fmt: skip
    if on_gpu:
        row["gpu_peak_reserved"] = torch.cuda.max_memory_reserved()
        row["gpu_peak_allocated"] = torch.cuda.max_memory_allocated()
    row["parameters_bytes"] = sum(parameter.nbytes for parameter in model.parameters())
    row["logits"] = hash_of_logits(model, arguments.device)
    if warming is not None:
        row["warmer_exit"] = warming.wait()
    print(json.dumps(row), flush=True)


# All trials of a mode


def run_trial(arguments: argparse.Namespace, way: str, with_warmer: bool) -> dict[str, Any]:
    before = resident_part(arguments.folder)
    command = [sys.executable, __file__, "trial", str(arguments.folder), "--mode", arguments.command,
               "--way", way, "--device", arguments.device, "--dtype", arguments.dtype,
               "--started", repr(time.monotonic())]  # fmt: skip
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        command + ["--warmer"] * with_warmer, env={**os.environ, **quiet}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{way}: the trial ended with {done.returncode}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    row["resident_before"] = round(before, 3)
    print(json.dumps(row), flush=True)
    return row


def bench(arguments: argparse.Namespace) -> None:
    variants = [("ordinary", False), ("inrush", False)]
    if arguments.command == "cold":
        variants += [("ordinary", True), ("inrush", True)]
    rows = []
    for _ in range(arguments.repeats):
        for way, with_warmer in variants:
            if arguments.command == "cold":
                drop(arguments.folder)
            else:
                read_all(arguments.folder)
            rows.append(run_trial(arguments, way, with_warmer))
    hashes = {row["logits"] for row in rows}
    print(json.dumps({"trials": len(rows), "logits_equal": len(hashes) == 1}), flush=True)
    if len(hashes) != 1:
        sys.exit("the logits differ")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    for name, size in (("layers", 32), ("hidden", 4096), ("intermediate", 14336), ("vocab", 128256)):
        maker.add_argument(f"--{name}", type=int, default=size)
    benches = [commands.add_parser("warm"), commands.add_parser("cold")]
    for repeats, command in zip((2, 1), benches):
        command.add_argument("--repeats", type=int, default=repeats)
    single = commands.add_parser("trial", help="one trial; the others start it")
    single.add_argument("--mode")
    single.add_argument("--way")
    single.add_argument("--warmer", action="store_true")
    single.add_argument("--started", type=float)
    for command in (*benches, single):
        command.add_argument("--device", default="cuda:0")
        command.add_argument("--dtype", default="auto")
    for command in (maker, *benches, single):
        command.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    {"make": make, "warm": bench, "cold": bench, "trial": trial}[arguments.command](arguments)


if __name__ == "__main__":
    main()
