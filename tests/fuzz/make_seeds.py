#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: a folder of small files for each.

usage: make_seeds.py CORPUS FOLDER

Those of the header come from the hostile corpus, as files and as headers whose length prefix the target makes
itself; the others are written below. What the fuzzer found is kept in tests/fuzz/seeds/TARGET.
"""
import hashlib
import json
import sys
from pathlib import Path

SEED_BYTES_MAX = 4096
FITTING, SMALL_CAPS = 1, 2  # flags of header_fuzz.cpp

TENSOR = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
HEADERS = [
    "{}", "{" + TENSOR + "}", '{"__metadata__":{"format":"pt"},' + TENSOR + "}",
    "{" + TENSOR + ',"b":{"dtype":"F32","shape":[2,2],"data_offsets":[1,17]},'
    '"c":{"dtype":"F4","shape":[2,3],"data_offsets":[17,20]},'
    '"d":{"dtype":"I64","shape":[0],"data_offsets":[20,20]}}',
    '{"x":{"y":[[1,{"z":1e5}]],"dtype":"U8","shape":[],"data_offsets":[0,1]}}',
]
FILE = '"a":"a.safetensors"'
INDEXES = [
    "{}", '{"weight_map":{}}', '{"weight_map":{' + FILE + "}}",
    '{"metadata":{"total_size":12},"weight_map":{' + FILE + ',"b":"sub/b.safetensors","c":"a.safetensors"}}',
    '{"weight_map":{"a":"../a.safetensors"}}', '{"weight_map":{"a":"a\\\\b.safetensors"}}',
    '{"weight_map":{"a":"/a.safetensors"}}', '{"weight_map":{"a":"a\\u0000.safetensors"}}',
    '{"metadata":null,"other":[[{"deep":1}]],"weight_map":{"\\u0061":"\\u002e/a.safetensors"}}',
    '{"weight_map":{' + FILE + "," + FILE + "}}",
]
GLOBS = [
    "*\0model.weight", "model.*.weight\0model.layers.0.weight", "[!0-3]?[a-z]\0xyz", "a\\*[]]\0a*]",
    "*a*b*c\0aXbYbZc",
    "gr[ä-ü]n\0grün", "[abc\0[abc", "*[a-]-\0x--",
    "*" + "[" * 390 + "b\0" + "[" * 400, "*a" * 50 + "b\0" + "a" * 300,
]
SPELLINGS = ["0", "64KiB", "8M", "2GiB", "8MB", "1t", "18446744073709551615", "16777216TiB", "5s", "1.5s",
             "500ms", "2m", "1h", "lm_head.weight=0:0:1024", "a=b:c=1:2:3", "=0:0:0", "inpsect", "1e400s",
             "-18446744073709551616"]
CONFIGS = [
    "{}", '{"readers": 8}', '{"readers": 8, /* why */ "piece_bytes": "8MiB", "io_uring": "off",}',
    '{"staging_bytes": 1073741824, "processes": "4"} // end', '{"readers": -1}', '{"unknown": 1}', "[]",
    '{"readers": 1e3}',
]


def headers(corpus):
    for line in corpus.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if sum(len(text) * count for text, count in row["segments"]) > SEED_BYTES_MAX:
            continue
        content = b"".join(text.encode("latin-1") * count for text, count in row["segments"])
        yield bytes([0, 0, 0]) + content
        length = int.from_bytes(content[:8], "little")
        if 8 + length <= len(content):
            data_bytes = len(content) - 8 - length
            yield bytes([FITTING]) + data_bytes.to_bytes(2, "little") + content[8:8 + length]
    for text in HEADERS:
        yield bytes([FITTING, 20 if '"d"' in text else text.count("[0,1]"), 0]) + text.encode()
        yield bytes([FITTING | SMALL_CAPS, 1, 0]) + text.encode()


def main():
    corpus, folder = Path(sys.argv[1]), Path(sys.argv[2])
    seeds = {"header": headers(corpus)}
    for target, texts in (("index", INDEXES), ("glob", GLOBS), ("spelling", SPELLINGS), ("config", CONFIGS)):
        seeds[target] = [text.encode() for text in texts]
    for target, contents in seeds.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for content in contents:
            (folder / target / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)


if __name__ == "__main__":
    main()
