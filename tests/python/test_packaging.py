"""The wheel: what is in it, on which systems it runs, what importing it does and does not do."""
import email
import importlib.metadata
import io
import json
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import inrush
import pytest
from conftest import run_command, variable
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection

GLIBC_MAX = (2, 34)
# What every glibc system with a C++ program has. Neither libstdc++ nor libinrush nor liburing.
LIBRARIES_ALLOWED = re.compile(r"(?:libc|libm|libgcc_s|libdl|libpthread|librt|ld-linux[\w-]*)\.so\.\d+")
PROBE_PROGRAM = "inrush/inrush-probe"
COMMAND = Path(sysconfig.get_path("scripts")) / "inrush"


@pytest.fixture(name="wheel", scope="module")
def wheel_fixture():
    with zipfile.ZipFile(variable("TEST_WHEEL")) as wheel:
        yield wheel


def one(names, pattern):
    found = [name for name in names if re.fullmatch(pattern, name)]
    assert len(found) == 1, f"{pattern}: {found} of {sorted(names)}"
    return found[0]


def files(wheel):
    return {name for name in wheel.namelist() if not name.endswith("/")}


def module_name(wheel):
    return one(files(wheel), r"inrush/_inrush\.[\w.-]+\.so")


def command_name(wheel):
    return one(files(wheel), r"inrush-[\w.]+\.data/scripts/inrush")


def metadata(wheel):
    return email.message_from_bytes(wheel.read(one(files(wheel), r"inrush-[^/]+\.dist-info/METADATA")))


def programs(wheel):
    """(name, ELFFile) of the module, the command, and the program that probes."""
    names = [name for name in files(wheel) if wheel.read(name)[:4] == b"\x7fELF"]
    assert sorted(names) == sorted([module_name(wheel), command_name(wheel), PROBE_PROGRAM])
    return [(name, ELFFile(io.BytesIO(wheel.read(name)))) for name in names]


def sections(program, kind):
    return [section for section in program.iter_sections() if isinstance(section, kind)]


def symbols_above(program, version_max):
    """Symbols that need a newer glibc, as 'name@GLIBC_2.38'."""
    [needed], [indices] = sections(program, GNUVerNeedSection), sections(program, GNUVerSymSection)
    names = {entry["vna_other"]: entry.name for _, entries in needed.iter_versions() for entry in entries}
    table = program.get_section(indices["sh_link"])
    found = []
    for number, symbol in enumerate(table.iter_symbols()):
        version = names.get(indices.get_symbol(number)["ndx"], "")
        numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        if numbers and tuple(map(int, numbers.groups())) > version_max:
            found.append(f"{symbol.name}@{version}")
    return found


# On which systems it runs

def test_auditwheel_finds_the_wheel_fit_for_systems_of_2021(wheel):
    """glibc 2.34: the age of RHEL 9 and Ubuntu 22.04."""
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", "--json", wheel.filename],
                           capture_output=True, text=True, timeout=60, check=True)
    verdict = json.loads(shown.stdout)
    name = Path(wheel.filename).name
    newer = {path: symbols_above(program, GLIBC_MAX) for path, program in programs(wheel)}
    tag = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", verdict["overall_tag"])
    assert verdict["wheel"] == name
    assert verdict["external_libs"] == {}
    assert tag, f"no manylinux at all: {verdict}"
    why = f"{tag[0]}, because of {newer}, or else one of {verdict['versioned_symbols']}"
    assert (int(tag[1]), int(tag[2])) <= GLIBC_MAX, why
    assert not any(newer.values()), newer
    assert name.endswith(f"-{tag[0]}.whl"), "the name promises another system than auditwheel found"


def test_symbols_above_finds_what_is_newer(wheel):
    """What holds the test above up: with an older limit it does find symbols."""
    for path, program in programs(wheel):
        found = symbols_above(program, (2, 33))
        assert any(name.endswith("@GLIBC_2.34") for name in found), path
        assert not any(name.endswith("@GLIBC_2.17") for name in found), path


def test_the_wheel_serves_the_pythons_that_it_should(wheel):
    python_tag, abi_tag = Path(wheel.filename).name.split("-")[2:4]
    if sys.version_info >= (3, 12):
        assert (python_tag, abi_tag) == ("cp312", "abi3")
        assert module_name(wheel) == "inrush/_inrush.abi3.so"
    else:
        assert (python_tag, abi_tag) == ("cp311", "cp311")
    assert metadata(wheel)["Requires-Python"] == ">=3.11"


def test_programs_need_nothing_that_a_system_may_lack(wheel):
    for path, program in programs(wheel):
        [dynamic] = sections(program, DynamicSection)
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        assert "libc.so.6" in needed
        assert [name for name in needed if not LIBRARIES_ALLOWED.fullmatch(name)] == [], path
        assert not [*dynamic.iter_tags("DT_RPATH"), *dynamic.iter_tags("DT_RUNPATH")], path


def test_programs_are_stripped(wheel):
    for path, program in programs(wheel):
        assert program.get_section_by_name(".symtab") is None, path
        assert program.get_section_by_name(".debug_info") is None, path


def test_the_module_exports_its_entry_only(wheel):
    program = ELFFile(io.BytesIO(wheel.read(module_name(wheel))))
    exported = [symbol.name for symbol in program.get_section_by_name(".dynsym").iter_symbols()
                if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"]
    assert exported == ["PyInit__inrush"]


# What is in it

def test_the_wheel_has_the_package_and_nothing_else(wheel, source_folder):
    package = source_folder / "python" / "inrush"
    expected = {f"inrush/{path.relative_to(package).as_posix()}": path for path in package.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts}
    assert {"inrush/__init__.py", "inrush/py.typed", "inrush/_inrush.pyi"} <= expected.keys()
    for name, path in expected.items():
        assert wheel.read(name) == path.read_bytes(), f"{name}: the wheel is older than the source"
    about = {name for name in files(wheel) if re.match(r"inrush-[^/]+\.dist-info/", name)}
    assert files(wheel) - about - expected.keys() == {module_name(wheel), command_name(wheel), PROBE_PROGRAM}
    for program in (command_name(wheel), PROBE_PROGRAM):
        assert wheel.getinfo(program).external_attr >> 16 & 0o111 == 0o111


def test_the_license_comes_along(wheel, source_folder):
    name = one(files(wheel), r"inrush-[^/]+\.dist-info/licenses/LICENSE")
    assert wheel.read(name) == (source_folder / "LICENSE").read_bytes()
    assert metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_numpy_is_all_that_it_depends_on(wheel):
    requirements = metadata(wheel).get_all("Requires-Dist")
    always = [re.match(r"[\w-]+", text)[0] for text in requirements if "extra ==" not in text]
    extras = {re.match(r"[\w-]+", text)[0]: re.search(r"extra == .(\w+)", text)[1]
              for text in requirements if "extra ==" in text}
    assert always == ["numpy"]
    assert extras == {"torch": "torch", "tqdm": "progress"}


def test_one_version_everywhere(wheel, source_folder, tmp_path):
    header = (source_folder / "include" / "inrush" / "version.hpp").read_text()
    version = re.search(r'#define INRUSH_VERSION "(.+)"', header)[1]
    parts = re.findall(r"#define INRUSH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert version == ".".join(parts)
    assert inrush.__version__ == version
    assert importlib.metadata.version("inrush") == version
    assert metadata(wheel)["Version"] == version
    assert Path(wheel.filename).name.split("-")[1] == version
    assert run_command([COMMAND, "version"], tmp_path).check().stdout == f"inrush {version}\n"


# What is installed

def test_these_tests_run_against_the_installed_package(wheel, source_folder):
    installed = Path(inrush.__file__).resolve()
    assert installed.is_relative_to(Path(sys.prefix).resolve())
    assert source_folder / "python" not in installed.parents
    module = importlib.metadata.distribution("inrush").locate_file(module_name(wheel))
    assert Path(module).read_bytes() == wheel.read(module_name(wheel))


def test_the_command_loads_a_checkpoint(make_checkpoint, every_dtype, tmp_path):
    path = make_checkpoint("model", every_dtype, shards=3)
    done = run_command([COMMAND, "load", path, "--check"], tmp_path, LD_LIBRARY_PATH="").check()
    assert str(len(every_dtype)) in done.stdout
    assert run_command([COMMAND, "load", tmp_path / "absent"], tmp_path).rc == 4


def test_the_command_finds_the_program_that_probes(make_checkpoint, every_dtype, tmp_path):
    path = make_checkpoint("model", every_dtype)
    done = run_command([COMMAND, "probe", path, "--device", "cpu", "--json"], tmp_path,
                       XDG_STATE_HOME=str(tmp_path / "state")).check()
    [staged] = [row for row in json.loads(done.stdout)["candidates"] if row["path"] == "staged"]
    assert staged["usable"], staged


def test_importing_starts_and_opens_nothing(run_python):
    """Beside numpy, whose libraries start threads, only the standard library and inrush itself come in."""
    done = run_python("""
        import json, os, signal, sys
        import numpy

        def state():
            return {"threads": len(os.listdir("/proc/self/task")), "environment": dict(os.environ),
                    "folder": os.getcwd(), "files": len(os.listdir("/proc/self/fd")),
                    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]}

        modules, before = set(sys.modules), state()
        import inrush
        after = state()
        maps = [line.split()[-1] for line in open("/proc/self/maps") if "/" in line]
        print(json.dumps({"before": before, "after": after, "modules": sorted(set(sys.modules) - modules),
                          "libraries": sorted({os.path.basename(path) for path in maps if ".so" in path})}))
    """).check()
    found = json.loads(done.stdout)
    assert found["after"] == found["before"]
    allowed = {*sys.stdlib_module_names, "numpy", "inrush"}
    assert "inrush" in found["modules"]
    assert [name for name in found["modules"] if name.split(".")[0] not in allowed] == []
    assert [name for name in found["libraries"] if re.match(r"lib(?:cu|nv|torch)", name)] == []
    assert done.stderr == ""


@pytest.mark.parametrize("module", ["torch", "jax", "cupy", "tqdm", "ml_dtypes"])
def test_importing_does_not_import_what_is_optional(run_python, module):
    run_python(f"""
        import sys
        import inrush
        assert {module!r} not in sys.modules
    """).check()


def test_it_can_be_imported_where_only_numpy_is(run_python):
    """The optional packages are hidden, not absent: importing them is what fails."""
    run_python("""
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "jax", "cupy", "tqdm", "ml_dtypes"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Absent())
        import inrush
        assert inrush.__version__
    """).check()
