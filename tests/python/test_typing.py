"""What a user's type checker sees: the package is typed throughout, the stub says what the module has."""
import re
import sys
from pathlib import Path

import pytest
from conftest import run_command

GOOD_PROGRAM = '''\
from pathlib import Path

import inrush
import inrush.torch
import torch


def names(path: Path) -> list[str]:
    return [name for name, info in inrush.open(path).items() if info.dtype == "BF16" and info.shape]


def load(path: str) -> int:
    tensors = inrush.load(path, device="cpu", only=["*.weight"], timeout=30.0)
    print(tensors.report, tensors.metadata.get("format", ""))
    return sum(part.bytes for part in tensors.report.bytes_by_path)


def load_torch(path: str, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    with_loader = inrush.torch.load(path, device=torch.device("cpu"), loader=inrush.Loader(readers=2))
    for name, tensor in inrush.torch.stream(path, device="cpu"):
        print(name, tensor.dtype)
    print(inrush.torch.load_into(path, module).missing)
    return with_loader


def load_async(path: str, stream: torch.cuda.Stream) -> dict[str, torch.Tensor]:
    with inrush.torch.load_async(path, device="cuda:0", stream=stream) as coming:
        first: torch.Tensor = coming["a"].wait(stream.cuda_stream)
        print(first, coming["b"].shape, coming.progress[0], coming.report.complete)
        return coming.wait()


def code(path: str) -> str:
    try:
        inrush.load(path)
    except inrush.Error as error:
        return error.code
    return ""
'''

# Line -> what a checker should say of it.
BAD_PROGRAM = {
    "import inrush": None,
    "import inrush.torch": None,
    "inrush.load(1.5)": "arg-type",
    "inrush.load('a', devise='cpu')": "call-arg",
    "inrush.load('a', timeout='soon')": "arg-type",
    "size: str = inrush.open('a').nbytes": "assignment",
    "inrush.open('a').nbytes = 1": "misc",
    "inrush.load('a').report.loaded": "attr-defined",
    "inrush.Loader(readers='many')": "arg-type",
    "name: int = next(iter(inrush.torch.stream('a')))[0]": "assignment",
    "inrush.torch.load_async('a')['b'].data_ptr()": "attr-defined",
    "inrush.torch.load_async('a').wait('stream')": "arg-type",
}


@pytest.fixture(name="check")
def check_fixture(source_folder, tmp_path):
    """check(module, *arguments): a program of mypy's on the installed package, with our configuration.

    The cache below build/ makes the second run short: most of the first is reading torch.
    """
    config = source_folder / "pyproject.toml"
    names = {"mypy": ["mypy", "--strict", "--config-file", config, "--cache-dir",
                      source_folder / "build" / "python" / "mypy_tests"],
             "stubtest": [Path(__file__).with_name("stubtest_nanobind.py"), "--mypy-config-file", config]}

    def check(name, *arguments):
        words = [*names[name], *arguments]
        command = [sys.executable, *(["-m"] if name == "mypy" else []), *map(str, words)]
        return run_command(command, tmp_path, timeout=300)
    return check


def test_the_package_is_typed(check):
    check("mypy", "-p", "inrush").check()


def test_the_stub_says_what_the_module_has(check, tmp_path):
    # Only from 3.12 on the method by which Python code sees the buffer protocol is there.
    allowed = tmp_path / "allowed"
    allowed.write_text(r"inrush\._inrush\.\w+\.__buffer__" + "\n" if sys.version_info < (3, 12) else "")
    done = check("stubtest", "inrush._inrush", "--allowlist", allowed, "--ignore-unused-allowlist").check()
    assert "no issues found" in done.stdout


def test_a_stub_that_is_wrong_is_found(check, tmp_path, source_folder):
    """The test above could also pass because nothing of nanobind's is understood."""
    stub = (source_folder / "python" / "inrush" / "_inrush.pyi").read_text()
    lies = {"ignore_index: bool = False": "ignore_index: bool = True",
            "def close(wait_max_s: float)": "def close(wait_s: float)",
            "def take(self, bytes_max: int = ...)": "def take(self)",
            "    def report(self) -> Report: ...\n": "    def reports(self) -> Report: ...\n"}
    for truth, lie in lies.items():
        assert truth in stub, "the stub has changed: choose another place to lie about"
        stub = stub.replace(truth, lie)
    package = tmp_path / "stubs" / "inrush"
    package.mkdir(parents=True)
    (package / "__init__.pyi").write_text("")
    (package / "_inrush.pyi").write_text(stub)
    command = [sys.executable, str(Path(__file__).with_name("stubtest_nanobind.py")), "inrush._inrush"]
    done = run_command(command, tmp_path, MYPYPATH=package.parent)
    assert done.rc == 1
    for name in ("open", "close", "Load.take", "Load.report", "Load.reports"):
        found = re.search(rf"^error: inrush\._inrush\.{name} is (?:inconsistent|not )", done.stdout, re.M)
        assert found, f"{name} was not found wrong:\n{done.stdout}"


def test_a_program_of_a_user_checks(check, tmp_path):
    (tmp_path / "user.py").write_text(GOOD_PROGRAM)
    check("mypy", "user.py").check()


def test_a_program_with_faults_does_not_check(check, tmp_path):
    (tmp_path / "user.py").write_text("\n".join(BAD_PROGRAM) + "\n")
    done = check("mypy", "user.py")
    errors = re.findall(r"^user\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.M)
    found = {int(line): code for line, code in errors}
    expected = {number: code for number, code in enumerate(BAD_PROGRAM.values(), 1) if code}
    assert found == expected, done.stdout
