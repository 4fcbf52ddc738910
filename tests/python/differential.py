"""Inrush's verdict on many nearly right files against that of the reference, the Rust crate of `safetensors`.

usage: differential.py CORPUS FIRST COUNT: compares the mutants FIRST to FIRST + COUNT and prints what came of
it as JSON. To see one: differential.py CORPUS SEED 1 --show.
"""
import collections
import json
import os
import re
import sys
import tempfile

import safetensors
from mutants import mutant, seeds_of

import inrush

RANK_MAX = 64
# serde_json opens at most 127 brackets; Inrush 128 in a field that the format does not know, two deep itself.
NESTING = (128, 130)
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
WRONG_LISTED_MAX = 20


class Members(list):
    """The pairs of a JSON object, each as often as it is written."""


def members_of(content):
    """The header of a file that the reference took, as Members; of one that it did not, perhaps None."""
    length = int.from_bytes(content[:8], "little")
    try:
        members = json.loads(content[8:8 + length].decode(), object_pairs_hook=Members)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, Members) else None


def tensors_of(content):
    return [(name, value) for name, value in members_of(content) or () if name != "__metadata__"]


def has_repeats(pairs):
    names = [name for name, _ in pairs]
    return len(set(names)) < len(names)


def repeats_a_name(content):
    return has_repeats(tensors_of(content))


def repeats_a_metadata_key(content):
    return any(name == "__metadata__" and isinstance(value, Members) and has_repeats(value)
               for name, value in members_of(content) or ())


def has_tensor_as_array(content):
    return any(not isinstance(value, Members) for _, value in tensors_of(content))


def field(value, name):
    """That field of a tensor, which may be written as an array of its fields."""
    return dict(value).get(name) if isinstance(value, Members) else value[("dtype", "shape").index(name)]


def has_dtype_as_object(content):
    return any(isinstance(field(value, "dtype"), Members) for _, value in tensors_of(content))


def has_high_rank(content):
    return any(len(field(value, "shape")) > RANK_MAX for _, value in tensors_of(content))


def nesting_of(content):
    length = int.from_bytes(content[:8], "little")
    depth = most = 0
    for bracket in re.findall(rb"[\[\]{}]", STRINGS.sub(b"", content[8:8 + length])):
        depth += 1 if bracket in b"[{" else -1
        most = max(most, depth)
    return most


def nests_as_deep_as_limits(content):
    return NESTING[0] <= nesting_of(content) <= NESTING[1]


# What Inrush decides otherwise: our verdict, the rule, why, and how the input is told without our verdict.
DELIBERATE = (
    ("refused", "a tensor name twice", "the format forbids it; the reference takes the last", repeats_a_name),
    ("refused", "a metadata key twice", "two readers would see two values", repeats_a_metadata_key),
    ("refused", "a tensor as an array", "an accident of serde, not the format", has_tensor_as_array),
    ("refused", "a dtype as an object", "an accident of serde, not the format", has_dtype_as_object),
    ("refused", "more than 64 dimensions", "DiscoverOptions::rank_max, against bombs", has_high_rank),
    ("accepted", "128 to 130 brackets deep", "DiscoverOptions::nesting_max counts from an ignored field",
     nests_as_deep_as_limits),
)


def reference_verdict(content):
    """("accepted", name -> (dtype, shape, bytes)) or ("refused", why)."""
    try:
        found = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        return "refused", str(error)
    return "accepted", {name: (info["dtype"], tuple(info["shape"]), info["data"]) for name, info in found}


class File:
    """One file in memory whose content changes from mutant to mutant."""

    def __init__(self):
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._file = tempfile.NamedTemporaryFile(suffix=".safetensors", dir=folder)

    def verdict(self, content):
        """("accepted", Checkpoint) or ("refused", why); any other error is raised."""
        descriptor = self._file.fileno()
        os.ftruncate(descriptor, 0)
        written = os.pwrite(descriptor, content, 0)
        assert written == len(content), f"{self._file.name}: {written} of {len(content)} bytes written"
        try:
            return "accepted", inrush.open(self._file.name)
        except inrush.Error as error:
            if error.code != "corrupt_checkpoint":
                raise
            return "refused", str(error)


def difference(content, checkpoint, expected):
    """How our reading of a file that both took differs; "" where it does not.

    The reference does not tell where a tensor is; the bytes that it gives do, where there are any, and the
    header read by Python's json does for all.
    """
    tensors = dict(checkpoint.items())
    if tensors.keys() != expected.keys():
        return f"names {sorted(tensors)} and {sorted(expected)}"
    header = dict(members_of(content))
    data_offset = checkpoint.files[0].data_offset
    for name, (dtype, shape, data) in expected.items():
        ours = tensors[name]
        if (ours.name, ours.dtype, ours.shape, ours.nbytes) != (name, dtype, shape, len(data)):
            return f"{name!r}: {ours} and {dtype} {shape} {len(data)} bytes"
        begin, end = dict(header[name])["data_offsets"]
        if (ours.offset, ours.nbytes) != (data_offset + begin, end - begin):
            return f"{name!r}: offset {ours.offset}, its data_offsets are [{begin}, {end}) + {data_offset}"
        if content[ours.offset:ours.offset + ours.nbytes] != data:
            return f"{name!r}: other bytes at {ours.offset}"
    if checkpoint.metadata != dict(header.get("__metadata__") or ()):
        return f"metadata {checkpoint.metadata}"
    return ""


def compare(content, file):
    """(kind, text): "accepted" or "refused" by both, a deliberate rule, or "wrong" with what is."""
    reference, expected = reference_verdict(content)
    try:
        ours, checkpoint = file.verdict(content)
    except Exception as error:  # whatever else comes out is a fault of ours
        return "wrong", f"{type(error).__name__}: {error}"
    if ours == reference:
        text = difference(content, checkpoint, expected) if ours == "accepted" else ""
        return ("wrong", text) if text else (ours, "")
    for verdict, rule, _, recognises in DELIBERATE:
        if verdict == ours and recognises(content):
            return rule, ""
    return "wrong", f"Inrush {ours} ({checkpoint}), the reference {reference} ({expected})"


def main():
    corpus, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with open(corpus, encoding="utf-8") as rows:
        seeds = seeds_of([json.loads(row) for row in rows])
    file, counts, wrong = File(), collections.Counter(), []
    for seed in range(first, first + count):
        content = mutant(seed, seeds)
        kind, text = compare(content, file)
        counts[kind] += 1
        if kind == "wrong" and len(wrong) < WRONG_LISTED_MAX:
            wrong.append([seed, text[:1000]])
        if "--show" in sys.argv:
            print(f"{content}\n{kind} {text}", file=sys.stderr)
    print(json.dumps({"counts": counts, "wrong": wrong}))


if __name__ == "__main__":
    main()
