#!/usr/bin/env python3
"""Checks the shape of the code: which layer includes which, what may stand where, how long things are.

usage: tidy.py [--verbose] [ROOT]

Prints one line a fault (file:line: message) and exits 1 if there is any. --verbose adds what is worth a look
and no fault: functions over 25 lines, files over 150, and the share of comment lines. CONTRIBUTING.md has the
rules for people.
"""
import argparse
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tidy_python import PythonFile

# Folder of src/ -> folders whose headers it may include. Every folder may include <inrush/...>.
LAYERS = {
    "base": {"base"},
    "gpu": {"base", "gpu"},
    "storage": {"base", "storage"},
    "checkpoint": {"base", "storage", "checkpoint"},
    "plan": {"base", "storage", "checkpoint", "plan"},
    "transfer": {"base", "gpu", "storage", "plan", "transfer"},
    "loader": {"base", "gpu", "storage", "checkpoint", "plan", "transfer", "loader"},
    "cli": {"cli"},
    "python": {"python"},
    "probe": {"probe"},
}

LINE_COLUMNS_MAX = 110
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_AIM = 25
FILE_LINES_MAX = 500
TEST_FILE_LINES_MAX = 800
FILE_LINES_AIM = 150
PARAMETER_COUNT_MAX = 4
PUBLIC_HEADER_COUNT_MAX = 10
PUBLIC_LINES_MAX = 1200
COMMENT_PERCENT_AIM = (5, 30)

SOURCE_FOLDERS = ("include", "src", "tests", "bench")
SCRIPT_FOLDERS = ("tools", "cmake", "python", "tests", "bench", ".ci")
SCRIPT_ENDINGS = (".py", ".pyi", ".sh", ".cmake", ".toml", "CMakeLists.txt", "run")
PYTHON_ENDINGS = (".py", ".pyi")


@dataclass(frozen=True)
class Ban:
    """Text that may stand only in some places. The pattern meets code without comments and strings."""
    pattern: re.Pattern
    message: str
    allowed_folders: frozenset = frozenset()  # of src/


def _ban(pattern, message, *allowed_folders):
    return Ban(re.compile(pattern, re.M), message, frozenset(allowed_folders))


# For src/ and include/.
LIBRARY_BANS = (
    _ban(r"\b(?:cu[A-Z]\w*|CU_\w+|CU[a-z]\w*|cuda[A-Z]\w*|nvml[A-Z]\w*)\b",
         "a name of CUDA outside src/gpu", "gpu"),
    _ban(r"\b(?:secure_getenv|getenv|environ)\b", "the environment is read in src/loader only", "loader"),
    _ban(r"\b(?:setenv|putenv|unsetenv|clearenv)\b", "the library never changes the environment", "cli"),
    _ban(r"\bio_uring_\w+", "a name of liburing outside src/storage", "storage"),
    _ban(r"\b(?:v?f?printf|v?dprintf|f?puts|f?putc|putchar|perror)\s*\("
         r"|\bstd::(?:cout|cerr|clog|print|println)\b|\bfmt::print",
         "the library never prints", "cli"),
    _ban(r"(?<![\w.>])(?:std::|::)?(?:abort|exit|_exit|_Exit|quick_exit|terminate|assert)\s*\(",
         "the library never ends the process", "cli"),
    _ban(r"\b(?:class|struct|using|enum|concept)\s+(?:INRUSH_API\s+)?\w*(?:Manager|Helper|Util)\w*",
         "Manager, Helper and Util say nothing: name what it is"),
    _ban(r"\bthread_local\b|^\s*static\s+(?!constexpr\b|const\b)[^()\n]*[;={]", "no state outside objects"),
)
HEADER_BANS = (
    _ban(r"(?<!on_bool)[(,]\s*(?:const\s+)?bool(?:\s+\w+)?\s*(?:=[^,()]*)?[,)]",
         "a bool parameter: make it an enum that says what it chooses"),  # on_bool is Boost.JSON's own name
)
# For every file, comments included.
TEXT_BANS = (
    _ban(r"\b(?:TODO|FIXME)\b|\bXX" r"X\b", "finish it or file it as an issue"),
    _ban(r"/(?:work|farm|root|home)/", "a path of one machine"),
    _ban(r"[ \t]+$", "blanks at the end of the line"),
    _ban(r"\t", "a tab"),
)
INCLUDES_BY_FOLDER = (  # header pattern -> folders of src/ that may include it
    (re.compile(r"liburing"), {"storage"}),
    (re.compile(r"CLI/"), {"cli"}),
    (re.compile(r"nanobind/|Python\.h$"), {"python"}),
    (re.compile(r"(?:cuda|cuda_runtime|cufile|nvml|nccl)[\w_]*\.h$"), set()),
)


@dataclass(frozen=True)
class Fault:
    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


_COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""
    r"""|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*\""""
    r"""|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""", re.S)  # 1'000 is a number


def strip(text):
    """The code without comments, and with empty literals. Line numbers stay."""
    def blank(match):
        found = match.group()
        lines = "\n" * found.count("\n")
        return lines if found.startswith("/") else found[-1] + lines + found[-1]
    return _COMMENT_OR_LITERAL.sub(blank, text)


def _without_directives(code):
    directive = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
    return directive.sub(lambda found: "\n" * found.group().count("\n"), code)


def _without_template_arguments(text):
    while True:
        shorter = re.sub(r"<(?:[^<>()]|\([^()]*\))*>", "", text)
        if shorter == text:
            return text
        text = shorter


@dataclass(frozen=True)
class Scope:
    kind: str  # namespace, class, function
    head: str
    first_line: int


class Outline:
    """Finds classes, functions and declarations by their braces; needs code that clang-format laid out."""

    def __init__(self, code):
        self.functions = []  # (Scope, last line)
        self.classes = []    # (Scope, body)
        self.declarations = []  # (line, text) of all heads at namespace and class scope
        self._code = _without_directives(code)
        self._scan()

    def _scan(self):
        code, stack, head_start, position = self._code, [], 0, 0
        for match in re.finditer(r"[;{}]", code):
            if match.start() < position:
                continue
            position = match.end()
            if match.group() == "{":
                head = code[head_start:match.start()]
                kind = self._kind(head)
                if kind == "initialiser":
                    position = self._end_of_group(match.start())
                    continue
                scope = Scope(kind, head.strip(), self._first_line(head_start, head))
                if kind == "function":
                    position = self._end_of_group(match.start())
                    self.functions.append((scope, self._line(position - 1)))
                    self.declarations.append((scope.first_line, scope.head))
                else:
                    stack.append((scope, position))
            elif match.group() == ";":
                head = code[head_start:match.start()]
                self.declarations.append((self._first_line(head_start, head), head.strip()))
            elif stack:
                scope, start = stack.pop()
                if scope.kind == "class":
                    self.classes.append((scope, code[start:match.start()]))
            head_start = position

    @staticmethod
    def _kind(head):
        plain = _without_template_arguments(re.sub(r"\btemplate\s*<[^{]*?>\s*(?=[a-z\[])", "", head))
        if re.search(r"\bnamespace\b|\bextern\s+\"\"\s*$", plain):
            return "namespace"
        if re.match(r"\s*(?:(?:public|private|protected):)?\s*(?:class|struct|union|enum)\b[^()=]*$", plain):
            return "class"
        in_initialiser_list = re.search(r"\)\s*(?:noexcept\s*)?:[^:].*[\w>]\s*$", plain, re.S)
        if "(" not in plain or in_initialiser_list or re.search(r"(?<!operator)=\s*$", plain):
            return "initialiser"
        return "function"

    def _first_line(self, start, head):
        return self._line(start + len(head) - len(head.lstrip()))

    def _line(self, offset):
        return self._code.count("\n", 0, offset) + 1

    def _end_of_group(self, start):
        depth = 0
        for match in re.finditer(r"[{}]", self._code[start:]):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                return start + match.end()
        return len(self._code)


def parameter_count(declaration):
    """Parameters of a function's declaration; 0 for what is none."""
    plain = _without_template_arguments(re.sub(r"\[\[.*?\]\]", "", declaration))
    found = re.search(r"(?:\w|operator[^\w\s(]+|operator\(\))\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)", plain)
    if not found or re.search(r"(?<!operator)=", plain[:found.start()]) or not found.group(1).strip():
        return 0
    return re.sub(r"\([^()]*\)", "", found.group(1)).count(",") + 1


class File:
    """One C++ file and the faults found in it."""

    def __init__(self, root, path):
        self.path = path.relative_to(root).as_posix()
        self.parts = self.path.split("/")
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.code = strip(self.text)
        self.is_header = path.suffix == ".hpp"
        self.is_library = self.parts[0] in ("src", "include")
        self.layer = self.parts[1] if self.parts[0] == "src" and len(self.parts) > 2 else ""
        self.faults = []
        self.remarks = []

    def fault(self, line, message):
        self.faults.append(Fault(self.path, line, message))

    def check(self):
        self._check_name_and_size()
        self._check_includes()
        if self.is_header:
            self._check_header_opening()
            self._check_bans(HEADER_BANS if self.is_library else ())
        if self.is_library:
            self._check_bans(LIBRARY_BANS)
        outline = Outline(self.code)
        self._check_functions(outline)
        if self.is_library:
            self._check_classes(outline)
        return self.faults

    def comment_lines(self):
        return sum(1 for found in _COMMENT_OR_LITERAL.finditer(self.text) if found.group().startswith("//"))

    def code_lines(self):
        return sum(1 for line in self.lines if line.strip())

    def _check_name_and_size(self):
        # cufile.h includes <cuda.h>: the name of the stub is given.
        is_stub = self.parts[-2:] == ["cuda_stub", "cuda.h"]
        if not is_stub and not re.fullmatch(r"[a-z0-9_]+\.[ch]pp", self.parts[-1]):
            self.fault(1, "file names are snake_case.hpp or .cpp")
        lines_max = TEST_FILE_LINES_MAX if self.parts[0] == "tests" else FILE_LINES_MAX
        if len(self.lines) > lines_max:
            self.fault(lines_max + 1, f"{len(self.lines)} lines; a file has at most {lines_max}")
        elif len(self.lines) > FILE_LINES_AIM and self.is_library:
            self.remarks.append(Fault(self.path, 1, f"{len(self.lines)} lines; aim at {FILE_LINES_AIM}"))

    def _check_includes(self):
        if self.parts[0] == "src" and self.layer not in LAYERS:
            self.fault(1, f"src/{self.layer} is no layer that the table of tools/tidy.py knows")
            return
        for number, line in enumerate(self.lines, 1):
            found = re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)", line)
            if found:
                self._check_include(number, *found.groups())

    def _check_include(self, number, quote, target):
        if self.parts[0] == "include":
            if quote == '"' or not re.fullmatch(r"[a-z_0-9]+|inrush/\w+\.hpp", target):
                self.fault(number, f"public headers include std and <inrush/...>, not {target}")
            return
        if ".." in target.split("/"):
            self.fault(number, "includes are written from src/, not by ..")
        if target.startswith("inrush/") and quote == '"':
            self.fault(number, f"public headers are included as <{target}>")
        if not self.layer:
            return
        for pattern, folders in INCLUDES_BY_FOLDER:
            if pattern.match(target) and self.layer not in folders:
                places = " ".join(f"src/{folder}" for folder in folders) or "no file"
                self.fault(number, f"{target} may be included in {places} only")
        if self.layer == "python" and "/" not in target:
            return  # it is compiled without src/ on its path, so its own headers go by their names alone
        if quote == '"' and target.split("/")[0] not in LAYERS[self.layer]:
            visible = ", ".join(sorted(LAYERS[self.layer]))
            self.fault(number, f"src/{self.layer} may not see {target}: it sees {visible}")

    def _check_header_opening(self):
        if not self.lines or not self.lines[0].startswith("// "):
            self.fault(1, "a header opens with what it is, who owns it, which thread may call it")
        if "#pragma once" not in self.lines:
            self.fault(1, "no #pragma once")

    def _check_bans(self, bans):
        for ban in bans:
            if self.layer in ban.allowed_folders and self.layer:
                continue
            starts = (found.end() - len(found.group().lstrip()) for found in ban.pattern.finditer(self.code))
            for number in sorted({self.code.count("\n", 0, start) + 1 for start in starts}):
                self.fault(number, ban.message)

    def _check_functions(self, outline):
        for scope, last_line in outline.functions:
            length = last_line - scope.first_line + 1
            if length > FUNCTION_LINES_MAX:
                self.fault(scope.first_line, f"a function of {length} lines; at most {FUNCTION_LINES_MAX}")
            elif length > FUNCTION_LINES_AIM and self.is_library:
                remark = f"a function of {length} lines; aim at {FUNCTION_LINES_AIM}"
                self.remarks.append(Fault(self.path, scope.first_line, remark))
        if not self.is_library:
            return
        for line, declaration in outline.declarations:
            count = parameter_count(declaration)
            if count > PARAMETER_COUNT_MAX:
                self.fault(line, f"{count} parameters; at most {PARAMETER_COUNT_MAX}: make a struct of them")

    def _check_classes(self, outline):
        for scope, body in outline.classes:
            derives = re.search(r"[^:]:\s*(?:public|private|protected)\s+(?!std::)", scope.head)
            is_interface = re.search(r"\)\s*(?:const\s*)?(?:noexcept\s*)?=\s*0\s*;", body)
            if derives and not is_interface and not re.search(r"\bfinal\b", scope.head):
                self.fault(scope.first_line, "a class that derives is final")
            if is_interface and re.search(r"\w[\w>&*]*\s+\w+_\s*(?:=[^=;]*|\{[^;]*\})?;", body):
                self.fault(scope.first_line, "an interface has no fields")


def _sources(root):
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp", ".h", ".cc", ".cxx") and path.is_file():
                yield path


def _scripts(root):
    found = {path for folder in SCRIPT_FOLDERS for path in (root / folder).rglob("*")}
    found |= {root / "CMakeLists.txt", root / ".ci" / "run", root / "pyproject.toml"}
    return sorted(path for path in found if path.is_file() and path.name.endswith(SCRIPT_ENDINGS))


def check_text(root, path):
    """What holds for every line that people read, whatever the language."""
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    faults = [Fault(name, 1, "the last line does not end")] if text and not text.endswith("\n") else []
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE_COLUMNS_MAX:
            faults.append(Fault(name, number, f"{len(line)} columns; at most {LINE_COLUMNS_MAX}"))
        for ban in TEXT_BANS:
            if ban.pattern.search(line) and path.name not in ("tidy.py", "tidy_test.py"):
                faults.append(Fault(name, number, ban.message))
    return faults


def check_python(root, path):
    """What holds for Python files beyond that."""
    file = PythonFile(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    return [Fault(file.path, line, message) for line, message in file.check()]


def check_public_size(files):
    public = [file for file in files if file.parts[0] == "include"]
    lines = sum(len(file.lines) for file in public)
    if len(public) > PUBLIC_HEADER_COUNT_MAX:
        yield Fault("include", 1, f"{len(public)} public headers; at most {PUBLIC_HEADER_COUNT_MAX}")
    if lines > PUBLIC_LINES_MAX:
        yield Fault("include", 1, f"{lines} lines of public headers; at most {PUBLIC_LINES_MAX}")


def check_made_of(root, made, source):
    """A text that is kept beside its source carries the source's checksum."""
    if not (root / made).exists():
        return []
    checksum = hashlib.sha256((root / source).read_bytes()).hexdigest()
    if f"sha256 {checksum}" in (root / made).read_text():
        return []
    return [Fault(made, 2, f"made of another {source}: run tools/make_ptx.sh")]


def check_tree(root):
    """All faults below `root`, the C++ files that were read, and the number of all files."""
    files = [File(root, path) for path in _sources(root)]
    texts = [*_sources(root), *_scripts(root)]
    faults = [fault for path in texts for fault in check_text(root, path)]
    faults += [fault for file in files for fault in file.check()]
    faults += [fault for path in texts if path.suffix in PYTHON_ENDINGS for fault in check_python(root, path)]
    faults += check_public_size(files)
    faults += check_made_of(root, "src/gpu/copy_kernel_ptx.cpp", "src/gpu/copy_kernel.cu")
    return sorted(faults, key=lambda fault: (fault.path, fault.line)), files, len(texts)


def _remarks(files):
    for file in files:
        yield from file.remarks
        if file.is_library and len(file.lines) > 30:
            percent = 100 * file.comment_lines() // max(1, file.code_lines())
            if not COMMENT_PERCENT_AIM[0] <= percent <= COMMENT_PERCENT_AIM[1]:
                yield Fault(file.path, 1, f"{percent} % comment lines; aim at 10 to 20")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--verbose", action="store_true", help="also what is worth a look and no fault")
    arguments.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    chosen = arguments.parse_args()
    faults, files, file_count = check_tree(chosen.root.resolve())
    for fault in [*faults, *(_remarks(files) if chosen.verbose else ())]:
        print(fault)
    library = [file for file in files if file.is_library]
    line_count = max(1, sum(file.code_lines() for file in library))
    percent = 100 * sum(file.comment_lines() for file in library) // line_count
    print(f"tidy: {file_count} files, {len(faults)} faults, {percent} % comment lines in the library")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
