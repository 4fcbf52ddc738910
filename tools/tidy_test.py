#!/usr/bin/env python3
"""Each rule of tidy.py finds a small bad sample, names its line, and leaves good code alone."""
import tempfile
import unittest
from pathlib import Path

import tidy

HEADER = "// What this is. Any thread.\n#pragma once\n\n"
GOOD_HEADER = HEADER + """#include <inrush/error.hpp>

#include "base/text.hpp"

namespace inrush::engine {

class Reader {  // an interface
 public:
  virtual ~Reader() = default;
  [[nodiscard]] virtual bool is_open() const noexcept = 0;
};

class FileReader final : public Reader {
 public:
  explicit FileReader(int fd) : fd_{fd}, limits_{1, 2} { open(); }
  void each(const std::function<bool(int, int, int, int, int)>& visit);
  explicit operator bool() const { return true; }

 private:
  int fd_ = -1;
  Limits limits_ = {};
};

template <class T>
T twice(T value, std::map<int, std::pair<int, int>> a, int b, int c) {
  // CUstream, getenv and printf( may be named in a comment
  const char* text = "cuInit { getenv printf(";
  const char brace = '{', quote = '"';
  return value + 1'000'000;
}

}  // namespace inrush::engine
"""


def faults(path, text):
    """The faults of a tree with this one file, as 'line message'."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path
        target.parent.mkdir(parents=True)
        target.write_text(text, encoding="utf-8")
        found, _, _ = tidy.check_tree(Path(folder))
    return [f"{fault.line} {fault.message}" for fault in found]


class Tidy(unittest.TestCase):
    def assert_fault(self, path, text, line, words):
        found = faults(path, text)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{line} ") and words in found[0], found)

    def assert_good(self, path, text):
        self.assertEqual(faults(path, text), [])

    def in_header(self, code, line_of_code, words, path="src/storage/a.hpp"):
        self.assert_fault(path, HEADER + code, 3 + line_of_code, words)

    def in_source(self, code, line, words, path="src/storage/a.cpp"):
        self.assert_fault(path, code, line, words)

    def test_good_code_has_no_fault(self):
        self.assert_good("src/storage/reader.hpp", GOOD_HEADER)

    def test_layers(self):
        self.in_source('#include "gpu/gpu.hpp"\n', 1, "may not see gpu/gpu.hpp")
        self.in_source('#include "storage/file.hpp"\n', 1, "may not see", path="src/gpu/a.cpp")
        self.in_source('#include "gpu/gpu.hpp"\n', 1, "may not see", path="src/checkpoint/a.cpp")
        self.in_source('#include "base/text.hpp"\n', 1, "may not see", path="src/cli/a.cpp")
        self.in_source('#include "loader/settings.hpp"\n', 1, "may not see", path="src/transfer/a.cpp")
        self.in_source('#include "../gpu/gpu.hpp"\n', 1, "not by ..", path="tests/a.cpp")
        self.in_source("int a;\n", 1, "is no layer", path="src/other/a.cpp")
        self.in_source('#include "base/text.hpp"\n', 1, "may not see", path="src/python/a.cpp")
        self.in_source("#include <nanobind/nanobind.h>\n", 1, "src/python only", path="src/loader/a.cpp")
        self.assert_good("src/python/a.cpp", '#include "bindings.hpp"\n#include <nanobind/nanobind.h>\n')
        self.assert_good("src/transfer/a.cpp", '#include "gpu/gpu.hpp"\n#include "storage/file.hpp"\n')

    def test_public_headers(self):
        for target in ("<boost/json.hpp>", '"base/text.hpp"', "<unistd.h>"):
            self.in_header(f"#include {target}\n", 1, "public headers include", path="include/inrush/a.hpp")
        self.in_source('#include "inrush/error.hpp"\n', 1, "as <inrush/error.hpp>", path="tests/unit/a.cpp")
        found = list(tidy.check_public_size(self.public_files(11, 10)))
        self.assertIn("11 public headers", str(found))
        found = list(tidy.check_public_size(self.public_files(2, 601)))
        self.assertIn("1202 lines", str(found))

    def public_files(self, count, lines):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "include" / "a.hpp"
            path.parent.mkdir()
            path.write_text("//\n" * lines, encoding="utf-8")
            return [tidy.File(Path(folder), path)] * count

    def test_headers_open_with_a_comment_and_once(self):
        self.assert_fault("src/base/a.hpp", "#pragma once\n", 1, "opens with")
        self.assert_fault("src/base/a.hpp", "// What.\n", 1, "no #pragma once")

    def test_names_that_belong_to_one_folder(self):
        self.in_source("void f() {\n  cuMemAlloc();\n}\n", 2, "a name of CUDA")
        self.in_source("CUstream s;\n", 1, "a name of CUDA")
        self.in_header("int a = CU_MEM;\n", 1, "a name of CUDA", path="include/inrush/a.hpp")
        self.assert_good("src/gpu/a.cpp", "CUstream s = cuInit(CU_MEM);\n")
        self.in_source("auto a = ::getenv(name);\n", 1, "src/loader only")
        self.in_source("auto a = secure_getenv(name);\n", 1, "src/loader only", path="src/cli/a.cpp")
        self.assert_good("src/loader/a.cpp", "auto a = secure_getenv(name);\n")
        self.in_source("void f() { setenv(a, b, 1); }\n", 1, "never changes", path="src/loader/a.cpp")
        self.in_source("#include <liburing.h>\n", 1, "src/storage only", path="src/loader/a.cpp")
        self.in_source("io_uring_sqe* a;\n", 1, "a name of liburing", path="src/loader/a.cpp")
        self.assert_good("src/storage/a.cpp", "#include <liburing.h>\nio_uring_sqe* a;\n")
        self.in_source("#include <CLI/CLI.hpp>\n", 1, "src/cli only")
        self.in_source("#include <cuda.h>\n", 1, "no file only", path="src/gpu/a.cpp")

    def test_the_library_neither_prints_nor_exits(self):
        for call in ("std::printf(a)", "fprintf(stderr, a)", "std::cout << 1", "std::cerr << 1", "puts(a)"):
            self.in_source(f"void f() {{ {call}; }}\n", 1, "never prints")
        for call in ("abort()", "std::exit(1)", "::_exit(1)", "std::terminate()", "assert(a)"):
            self.in_source(f"void f() {{ {call}; }}\n", 1, "never ends the process")
        self.assert_good("src/base/a.cpp", "void f() { snprintf(a, 1, b); a.exit(); static_assert(x); }\n")
        self.assert_good("src/cli/a.cpp", "void f() { std::cout << 1; std::exit(1); }\n")

    def test_no_hidden_state(self):
        self.in_source("void f() {\n  static int count = 0;\n}\n", 2, "no state outside objects")
        self.in_source("thread_local int a;\n", 1, "no state outside objects")
        code = "static int twice(int a) { return a; }\nvoid f() {\n  static constexpr int count = 0;\n}\n"
        self.assert_good("src/base/a.cpp", code)

    def test_type_names(self):
        self.in_header("class SlotManager;\n", 1, "Manager")
        self.in_source("struct ReadHelper {};\n", 1, "Helper")
        self.in_source("using StringUtils = int;\n", 1, "Util")

    def test_parameters(self):
        self.in_header("void f(bool direct);\n", 1, "a bool parameter")
        self.in_header("void f(int a, const bool direct = true, int b);\n", 1, "a bool parameter")
        self.in_header("void f(int a,\n       bool);\n", 1, "a bool parameter")
        self.in_header("\nvoid f(int a, int b, int c, int d, int e);\n", 2, "5 parameters")
        self.in_source("struct A {\n  A(int a, int b, int c, int d, M<int, int> e);\n};\n", 2, "5 param")
        self.in_source("A::A(int a, int b, int c, int d, int e) : a_{a}, b_{b} {\n  f();\n}\n", 1, "5 param")

    def test_classes(self):
        self.in_header("class A : public B {\n  int a_;\n};\n", 1, "is final")
        self.in_header("class A {\n  virtual void f() = 0;\n  int a_ = 0;\n};\n", 1, "has no fields")
        self.assert_good("src/base/a.hpp", HEADER + "class A : public std::runtime_error {};\n")

    def test_lengths(self):
        body = "  f();\n"
        self.in_source("\nvoid f() {\n" + body * 69 + "}\n", 2, "a function of 71 lines")
        self.in_source("A::A(int a)\n    : a_{a},\n      b_{1} {\n" + body * 70 + "}\n", 1, "of 74 lines")
        self.in_source("namespace a {\nTEST(A, b) {\n" + body * 69 + "}\n}\n", 2, "71 lines", "tests/a.cpp")
        self.assert_good("src/base/a.cpp", ("void f() {\n" + body * 68 + "}\n") * 7)
        self.in_source("int a;\n" * 501, 501, "501 lines")
        self.assert_good("tests/unit/a_test.cpp", "int a;\n" * 800)
        self.in_source("int a;\n" * 801, 801, "801 lines", path="tests/unit/a_test.cpp")
        self.in_source("int a;\n// " + "x" * 108 + "\n", 2, "111 columns")
        self.in_source("# " + "x" * 109 + "\n", 1, "111 columns", path="tools/a.py")

    def test_python_sizes(self):
        body = "    f()\n"
        self.in_source("\ndef f():\n" + body * 70, 2, "a function of 71 lines", path="tools/a.py")
        self.in_source("class A:\n  async def f():\n" + body * 70, 2, "71 lines", path="tests/python/a.py")
        self.assert_good("python/inrush/a.py", "def f():\n" + body * 69)
        self.in_source("a = 1\n" * 501, 501, "501 lines", path="python/inrush/a.pyi")
        self.assert_good("tests/python/a.py", "a = 1\n" * 800)
        self.in_source("a = 1\n" * 801, 801, "801 lines", path="tests/python/a.py")
        self.in_source("# " + "x" * 109 + "\n", 1, "111 columns", path="python/inrush/a.py")
        self.in_source("a = = 1\n", 1, "no Python", path="tools/a.py")
        self.in_source("a = 1\n", 1, "snake_case", path="python/inrush/SomeName.py")

    def test_torch_has_its_place(self):
        for code in ("import torch\n", "import os, torch.cuda\n", "from torch import nn\n",
                     "import importlib\nimportlib.import_module('torch')\n"):
            line = code.count("\n")
            self.in_source(code, line, "torch is imported in", path="python/inrush/a.py")
            for place in ("torch/a.py", "frameworks/a.py", "safetensors/a.py", "transformers/a.py", "dcp.py"):
                self.assert_good(f"python/inrush/{place}", code)
        self.in_source("def f():\n    import torch\n", 2, "torch is imported in", path="python/inrush/a.py")
        self.assert_good("tests/python/a.py", "import torch\n")
        self.assert_good("python/inrush/a.py", "import inrush.torch\nfrom . import torch\n")

    def test_what_the_package_never_does(self):
        self.in_source("if a:\n    print(1)\n", 2, "never prints", path="python/inrush/a.py")
        self.in_source("sys.exit(1)\n", 1, "never ends", path="python/inrush/torch/a.py")
        for change in ("os.environ['A'] = '1'", "del os.environ['A']", "os.environ |= a", "environ.pop('A')",
                       "os.environ.setdefault('A', '1')", "os.putenv('A', '1')", "os.environ = {}"):
            self.in_source(f"\n{change}\n", 2, "never changes the environment", path="python/inrush/a.py")
        self.assert_good("tools/a.py", "print(1)\nsys.exit(1)\nos.environ['A'] = '1'\n")
        self.assert_good("python/inrush/a.py", "a = os.environ.get('A')\nb.update(a)\nc['print'] = 1\n")

    def test_text(self):
        self.in_source("// TO" "DO later\n", 1, "finish it")
        self.in_source("// FIX" "ME\n", 1, "finish it", path="tests/a.cpp")
        self.in_source("echo /ho" "me/me\n", 1, "a path of one machine", path="tools/a.sh")
        self.in_source("int a; \n", 1, "blanks at the end")
        self.in_source("\tint a;\n", 1, "a tab")
        self.in_source("int a;", 1, "does not end")
        self.in_source("int a;\n", 1, "snake_case", path="src/base/FileName.cpp")


if __name__ == "__main__":
    unittest.main()
