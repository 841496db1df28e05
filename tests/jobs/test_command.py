"""The command ``python -m meshcomm``: run, info, calibrate, in processes of their own."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import meshcomm
from meshcomm.tools.cli import info
from support.jobs import mpiexec, tells_once

COMMAND = ("-m", "meshcomm")


# Each rank writes its lines at once, so that they do not mix.
PROGRAM = """\
import os, sys
import neighbour
here = os.path.samefile(sys.path[0], os.path.dirname(__file__))
sys.stdout.write(f"program {__name__} {sys.argv[1:]} {os.path.basename(sys.argv[0])} {here}\\n")
"""


@pytest.fixture
def program(tmp_path):
    """A script beside a module that it imports."""
    (tmp_path / "neighbour.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    return script


def labels(text):
    """Return what *info* prints as a dict from label to value."""
    return dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())


# -- each command once -----------------------------------------------------------------------------------------------

OF_OPENMPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0", "PYTHONWARNINGS": "ignore"}
NO_LIBRARY, NO_MODULE = {"MPI4PY_LIBMPI": "/nonexistent"}, {"PYTHONPATH": "{folder}/hidden"}
NO_MPI, COPIES = ("pip install mpich", "module load", "NumPy"), "mpiexec of Open MPI launched 3 processes"
ENDS = [
    (None, "run {folder}/script.py", NO_LIBRARY, 0, ["program __main__"]),
    (None, "run not-there.py", {}, 2, ["can't open file 'not-there.py'"]),
    (3, "run not-there.py", {}, 2, ["can't open file 'not-there.py'"]),
    (3, "run", {}, 2, ["usage: python -m meshcomm", "run needs a script, or -m"]),
    pytest.param(
        *(None, "info", {}, 0, ["none, started without mpiexec", "relayout over 1 rank: ok"]),
        marks=pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec"),
    ),
    (None, "info", NO_LIBRARY, 1, NO_MPI),
    (None, "info", NO_MODULE, 1, NO_MPI),
    (None, "info", OF_OPENMPI, 1, [COPIES]),
    (None, "calibrate", {}, 1, ["calibrate needs 2 ranks or more"]),
    (None, "calibrate", OF_OPENMPI, 1, [COPIES]),
    (2, "calibrate {folder}/none/machine.json", {}, 1, ["{folder}/none/machine.json cannot be written: No such file"]),
    (2, "calibrate {folder}/hidden", {}, 1, ["{folder}/hidden cannot be written: Is a directory"]),
    pytest.param(3, "calibrate", {}, 0, ["alpha_within"], marks=[pytest.mark.slow, pytest.mark.any_mpi]),
    (2, "bench walk", {}, 2, ["there is no bench 'walk'"]),
    (2, "shell", {}, 2, ["shell launches its ranks: start it without mpiexec"]),
]


@pytest.mark.parametrize(("ranks", "arguments", "environment", "code", "texts"), ENDS)
def test_a_command_ends(launch, program, ranks, arguments, environment, code, texts):
    """With this code, and one rank says so."""
    hidden = program.parent / "hidden"
    hidden.mkdir()
    (hidden / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    before, fill = set(program.parent.rglob("*")), {"folder": program.parent}
    given = {name: value.format(**fill) for name, value in environment.items()}
    job = launch(ranks, *COMMAND, *(word.format(**fill) for word in arguments.split()), **given)
    assert job.code == code, job
    for text in texts:
        report = text.format(**fill)
        assert tells_once(job, report) if ranks and code == 2 else report in job.text, job
    assert "Traceback" not in job.text, job
    assert code == 0 or "alpha" not in job.text, "nothing is measured in vain"
    assert {path for path in program.parent.rglob("*") if "__pycache__" not in path.parts} == before


# -- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.any_mpi
def test_run_a_script_like_python_does(launch, program):
    ran = launch(None, *COMMAND, "run", program, "-m", "--size", "3")
    as_python = launch(None, program, "-m", "--size", "3")
    assert ran.code == as_python.code == 0
    assert ran.text == as_python.text
    assert "program __main__ ['-m', '--size', '3'] script.py True" in ran.text


@pytest.mark.any_mpi
def test_run_a_module_like_python_does(launch, program, monkeypatch):
    monkeypatch.chdir(program.parent)
    command = launch(None, Path(sys.executable).with_name("meshcomm"), "run", "-m", "script", "-x")
    ran = launch(None, *COMMAND, "run", "-m", "script", "-x")
    as_python = launch(None, "-m", "script", "-x")
    assert command.code == ran.code == as_python.code == 0
    assert command.text == ran.text
    assert ran.text.rpartition(" ")[0] == as_python.text.rpartition(" ")[0] == "program __main__ ['-x'] script.py"


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('in words')", 1, "in words\n"),
        ("raise SystemExit", 0, ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("1 +", 1, "SyntaxError"),
    ],
)
def test_run_ends_like_the_program(launch, tmp_path, line, code, text):
    script = tmp_path / "script.py"
    script.write_text(line)
    job = launch(None, *COMMAND, "run", script)
    assert (job.code, text in job.text) == (code, True), job
    assert "runpy" not in job.text, "the traceback begins in the program"


@pytest.mark.any_mpi
def test_run_a_folder(launch, tmp_path):
    job = launch(None, *COMMAND, "run", tmp_path)
    assert job.code == 2
    assert job.text.strip() == f"meshcomm: '{tmp_path}' is a folder, and has no __main__.py: name a script"
    (tmp_path / "__main__.py").write_text("print('it runs')")
    assert launch(None, *COMMAND, "run", tmp_path).text.strip() == "it runs"


@pytest.mark.any_mpi
def test_sources_that_are_not_built_say_so_once(launch, tmp_path):
    shutil.copytree(Path(meshcomm.__path__[0]), tmp_path / "meshcomm", ignore=shutil.ignore_patterns("*.so"))
    script = tmp_path / "script.py"
    script.write_text("import meshcomm")
    job = launch(3, "-S", script)  # without the site: an editable install gives its compiled modules to any copy
    assert job.code == 1, job
    assert job.text.count(f"the compiled part of meshcomm is not in {tmp_path / 'meshcomm'}") == 1, job
    assert job.text.count("Traceback") == 1, job


def test_run_on_ranks(launch, program):
    folder = program.parent / "temporary"
    folder.mkdir()
    job = launch(2, *COMMAND, "run", program, "argument", TMPDIR=str(folder))
    assert job.code == 0, job
    assert list(folder.iterdir()) == [], "a job that ends well leaves nothing"
    assert job.text.count("program __main__ ['argument'] script.py") == 2


# -- info -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_info_on_ranks(launch, ranks):
    job = launch(ranks, *COMMAND, "info", MESHCOMM_TIMEOUT="17")
    assert job.code == 0, job
    found = labels(job.text)
    assert found["self-test"].strip() == f"relayout over {ranks} rank{'s' * (ranks > 1)}: ok"
    assert found["ranks"].strip() == f"{ranks} on 1 host"
    assert found["MESHCOMM_TIMEOUT"].strip() == "17"
    assert found["launcher"].strip().startswith("mpiexec of")
    assert meshcomm.__version__ in found["meshcomm"]
    assert re.search(r"_kernels.*\.so, compiled \d{4}-", found["kernel"])
    for label in ("Python", "NumPy", "mpi4py", "MPI", "thread level"):
        assert job.text.count(f"\n{label} ") == 1, f"{label} is printed once by rank 0 in {job}"
    columns = {len(line) - len(line.split("  ", 1)[1].lstrip()) for line in job.text.splitlines() if line[:1] == "m"}
    assert len(columns) == 1, "values are aligned"


# -- the cost model ---------------------------------------------------------------------------------------------------


@pytest.mark.any_mpi
@pytest.mark.slow
def test_calibrate_writes_what_info_then_shows(launch, tmp_path):
    file = tmp_path / "machine.json"
    job = launch(2, *COMMAND, "calibrate", file, MESHCOMM_MACHINE=str(file))  # which is not there yet
    assert job.code == 0, job
    assert f"written to {file}" in job.text
    constants = json.loads(file.read_text())
    assert constants.keys() == {"wait_within", "alpha_within", "beta_within", "gamma", "alpha_disk", "beta_disk"}
    assert list(tmp_path.iterdir()) == [file]
    rows = labels(job.text)
    assert rows["within a node"].strip().startswith("fits ")
    assert rows["between nodes"].strip() == "not measured, all ranks are on one node: these are defaults"
    shown = labels(launch(2, *COMMAND, "info", MESHCOMM_MACHINE=str(file)).text)
    assert shown["cost model"].strip() == f"{file}, which MESHCOMM_MACHINE names"
    assert shown["gamma"].strip() == info.unit_cost("gamma", constants["gamma"]) == rows["gamma"].strip()
    assert shown["nodes"].strip() == "1"


WRONG = {
    "MESHCOMM_TIMEOUT": "-5",
    "MESHCOMM_SHARED_MEMORY": "lots",
    "MESHCOMM_MACHINE": "nowhere.json",
    "MESHCOMM_TRACE": f"{__file__}/below",
    "MESHCOMM_CHECK": "7",
    "MESHCOMM_CHEK": "1",
}
"""Variables with values that are wrong, and one that does not exist."""


@pytest.mark.any_mpi
@pytest.mark.parametrize("ranks", [None, 2])
def test_info_reports_wrong_values_once_and_shows_all_the_same(launch, ranks):
    job = launch(ranks, *COMMAND, "info", **WRONG)
    assert job.code == 1, job
    rows = labels(job.text)
    assert rows.keys() >= {"ranks", "nodes", "cost model", "shared memory", *WRONG}, job
    assert "ok" in rows["self-test"], job
    problems = re.findall("^problem .*$", job.text, re.MULTILINE)
    assert all(line.startswith("problem  settings: ") for line in problems)
    assert len(problems) == len(WRONG), job
    assert "meshcomm: " not in job.text, "nothing is reported again"


@pytest.mark.any_mpi
@pytest.mark.parametrize("name", ["MESHCOMM_TIMEOUT", "MESHCOMM_SHARED_MEMORY", "MESHCOMM_MACHINE"])
def test_an_error_of_a_program_tells_a_wrong_value_once(launch, tmp_path, name):
    script = tmp_path / "program.py"
    script.write_text("import meshcomm as mc\nmc.ones((4,), 'f8', mc.Layout(['x'], mc.create_mesh())).sum()\n")
    job = launch(2, script, **{name: WRONG[name]})
    assert (job.code, job.text.count(name)) == (1, 1), job


# -- bench ------------------------------------------------------------------------------------------------------------


@pytest.mark.any_mpi
def test_bench_on_ranks(launch, tmp_path):
    sizes = ("--max", "4K", "--rounds", "2", "--folder", tmp_path)
    job = launch(2, *COMMAND, "bench", "relayout", "fft", "halo", "all_to_all", "disk", *sizes, "--json")
    assert job.code == 0, job
    report = json.loads(job.text)
    assert report["ranks"] == 2
    assert [each["name"] for each in report["benches"]] == [
        *("relayout", "fft", "halo", "all_to_all", "disk: save", "disk: load")
    ]
    assert all([row["wrong"] for row in each["rows"]] == [0, 0] for each in report["benches"])
    assert not list(tmp_path.iterdir()), "its folder is gone"
