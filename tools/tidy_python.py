"""The shape of Python files, for tidy.py: sizes everywhere, and what the package may not do."""
import ast
import re

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
TEST_FILE_LINES_MAX = 800
PACKAGE = "python/inrush/"
TORCH_PLACES = re.compile(r"python/inrush/(?:(?:torch|frameworks|safetensors|transformers)/.*|dcp\.py)")
ENVIRONMENT_CHANGES = {"update", "setdefault", "pop", "popitem", "clear"}
IMPORTS = {"importlib.import_module", "import_module", "__import__"}
ENDINGS = {"sys.exit", "os._exit", "os.abort", "os.kill", "exit", "quit"}


def dotted(node):
    """'os.environ' of such an expression; '' of another."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and dotted(node.value):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def is_environment(node):
    return dotted(node) in ("os.environ", "environ")


class PythonFile:
    """Finds the faults of one file as (line, message)."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.faults = []

    def check(self):
        self._check_size()
        try:
            tree = ast.parse(self.text)
        except SyntaxError as error:
            self.faults.append((error.lineno or 1, f"no Python: {error.msg}"))
            return self.faults
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._check_function(node)
            if self.path.startswith(PACKAGE):
                self._check_imports(node)
                self._check_calls(node)
                self._check_assignments(node)
        return self.faults

    def _fault(self, node, message):
        self.faults.append((node.lineno, message))

    def _check_size(self):
        if not re.fullmatch(r"[a-z0-9_]+\.pyi?", self.path.rsplit("/", maxsplit=1)[-1]):
            self.faults.append((1, "file names are snake_case.py"))
        count = self.text.count("\n")
        lines_max = TEST_FILE_LINES_MAX if self.path.startswith("tests/") else FILE_LINES_MAX
        if count > lines_max:
            self.faults.append((lines_max + 1, f"{count} lines; a file has at most {lines_max}"))

    def _check_function(self, node):
        length = node.end_lineno - node.lineno + 1
        if length > FUNCTION_LINES_MAX:
            self._fault(node, f"a function of {length} lines; at most {FUNCTION_LINES_MAX}")

    def _check_imports(self, node):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        elif isinstance(node, ast.Call) and dotted(node.func) in IMPORTS:
            names = [word.value for word in node.args[:1] if isinstance(word, ast.Constant)]
        if any(str(name).split(".")[0] == "torch" for name in names) and not TORCH_PLACES.match(self.path):
            self._fault(node, "torch is imported in torch, frameworks, safetensors, transformers, dcp only")

    def _check_calls(self, node):
        if not isinstance(node, ast.Call):
            return
        name = dotted(node.func)
        if name == "print":
            self._fault(node, "the library never prints")
        if name in ENDINGS:
            self._fault(node, "the library never ends the process")
        changes = isinstance(node.func, ast.Attribute) and node.func.attr in ENVIRONMENT_CHANGES
        if name in ("os.putenv", "os.unsetenv") or (changes and is_environment(node.func.value)):
            self._fault(node, "the library never changes the environment")

    def _check_assignments(self, node):
        targets = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            place = target.value if isinstance(target, ast.Subscript) else target
            if is_environment(place):
                self._fault(node, "the library never changes the environment")
