"""The examples of README.md and docs/python.md run as they stand, and the page says what there is."""
import contextlib
import inspect
import io
import re
from pathlib import Path

import inrush
import inrush.torch
import pytest
from conftest import random_tensor

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
LLAMA = {
    "model.embed_tokens.weight": random_tensor("BF16", [32, 8]),
    "model.layers.0.mlp.weight": random_tensor("BF16", [64, 8]),
    "model.layers.0.norm.weight": random_tensor("F32", [8]),
    "model.layers.1.mlp.weight": random_tensor("BF16", [64, 8]),
    "model.norm.weight": random_tensor("BF16", [8]),
}
CODES = [
    "invalid_request", "environment_unfit", "not_found", "corrupt_checkpoint", "storage_failed",
    "out_of_memory", "device_failed", "timed_out", "cancelled", "internal",
]


def blocks_of(path):
    """The examples of a page and where they start."""
    text = path.read_text(encoding="utf-8")
    return [
        pytest.param(found[1], id=f"{path.name}:{text[: found.start()].count(chr(10)) + 1}")
        for found in BLOCK.finditer(text)
    ]


BLOCKS = blocks_of(ROOT / "README.md") + blocks_of(PAGE)


# What an example prints, by words that only it has.
OUTPUT = {
    "checkpoint.items()": rf"(?s)(model\.\S+ (BF16|F32) \(.*?\) \d+ .*?\n){{{len(LLAMA)}}}\{{.*\}} \d+ 2\n",
    "torch.load_into(": r"\['weight'\] \[\] \[\]\n",
    "torch.load_async(": r"(?s)torch\.bfloat16 \(\d+, \d+\)\nloaded 5 tensors.*",
    '["model.norm.weight"].dtype': r"(?s)torch\.bfloat16\nloaded 5 tensors.*",
    "slices=": r"\{.*'model\.layers\.0\.mlp\.weight': \(16, 8\).*\}\n",
    "inrush.warm(": r"WarmReport\(planned_bytes=\d+, resident_bytes=\d+, .*, left_bytes=0, .*\)\n",
    "/models/absent": r"not_found .*absent.*\n",
}


def output_of(code):
    for words, pattern in OUTPUT.items():
        if words in code:
            return pattern
    return r"(?s).+" if "print(" in code else ""


@pytest.mark.parametrize("code", BLOCKS)
def test_an_example_runs(code, make_checkpoint, tmp_path):
    paths = {
        "/models/llama": make_checkpoint("llama", LLAMA, shards=2),
        "/models/linear": make_checkpoint("linear", {"weight": random_tensor("F32", [32, 64])}),
        "/models/absent": tmp_path / "absent",
    }
    expected = output_of(code)
    for place, path in paths.items():
        code = code.replace(f'"{place}"', repr(str(path)))
    assert "/models/" not in code
    code = code.replace('"cuda:0"', '"cpu"')
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert re.fullmatch(expected, written.getvalue()), written.getvalue()


def test_the_page_has_an_example_of_each_thing():
    code = "".join(block.values[0] for block in blocks_of(PAGE))
    assert all(words in code for words in OUTPUT)
    for name in ("open(", "load(", "torch.load(", "torch.stream(", "torch.load_async(",
                 "torch.load_into(", "Loader(", "release(",
                 "ShardSpec(", "warm("):
        assert f"inrush.{name}" in code


@pytest.mark.parametrize("word", CODES)
def test_the_page_names_every_code(word):
    assert f"`{word}`" in PAGE.read_text(encoding="utf-8")
    assert f'"{word}"' in inspect.getdoc(inrush.Error)


def table_after(heading):
    """First cells of the rows of the table below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").split(heading, 1)[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", text, re.M)


def test_the_page_explains_the_arguments_that_all_take():
    functions = (inrush.load, inrush.torch.load, inrush.torch.stream, inrush.torch.load_into)
    taken = [list(inspect.signature(function).parameters) for function in functions]
    common = [name for name in taken[0] if all(name in names for names in taken[1:]) and name != "path"]
    assert set(table_after("## Arguments that all of them take")) - {"device"} == set(common)
