"""The stand-ins that every test run uses have the names and arguments of the real packages."""
import ast
import importlib.util
from pathlib import Path

import pytest

STUBS = Path(__file__).resolve().parents[1] / "python" / "stubs"


def real_file(stub):
    """The module of the installed package that this file stands for; nothing of it is imported."""
    package = stub.relative_to(STUBS).parts[0]
    folder = Path(importlib.util.find_spec(package).submodule_search_locations[0]).parent
    return folder / stub.relative_to(STUBS)


def functions(path):
    """Name (Class.name in a class) -> arguments, with their kinds and whether they may be left out."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        body, prefix = (node.body, f"{node.name}.") if isinstance(node, ast.ClassDef) else ([node], "")
        for inner in body:
            if isinstance(inner, ast.FunctionDef):
                found[prefix + inner.name] = arguments(inner)
    return found


def arguments(function):
    given = function.args
    assert not given.posonlyargs
    required = len(given.args) - len(given.defaults)
    return (
        [(argument.arg, place < required) for place, argument in enumerate(given.args)],
        [(argument.arg, default is None)
         for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)],
    )


def fields(path, name):
    """Of a dataclass in a class: its fields in order."""
    for outer in ast.parse(path.read_text(encoding="utf-8")).body:
        for inner in outer.body if isinstance(outer, ast.ClassDef) else []:
            if isinstance(inner, ast.ClassDef) and inner.name == name:
                return [node.target.id for node in inner.body if isinstance(node, ast.AnnAssign)]
    return None


FILES = [pytest.param(path, id=str(path.relative_to(STUBS))) for path in sorted(STUBS.rglob("*.py"))
         if functions(path)]


@pytest.mark.parametrize("stub", FILES)
def test_functions_take_what_the_real_ones_take(stub):
    real = functions(real_file(stub))
    for name, taken in functions(stub).items():
        if not name.endswith("__post_init__"):
            assert taken == real[name], name


@pytest.mark.parametrize(("package", "path", "name"), [
    ("vllm", "model_executor/model_loader/default_loader.py", "Source"),
    ("sglang", "srt/model_loader/loader.py", "Source"),
    ("sglang", "srt/model_loader/loader.py", "ResolvedSource"),
])
def test_sources_have_the_real_fields(package, path, name):
    stub = STUBS / package / path
    assert fields(stub, name) == fields(real_file(stub), name)


def test_there_is_something_to_compare():
    assert len(FILES) >= 8
