"""What a new user does wrong when a program is launched, and what they read."""

import json
import re
import time
from dataclasses import asdict

import pytest

import meshcomm as mc
from support.paths import ROOT

MESH = "import numpy as np, meshcomm as mc\nmesh = mc.create_mesh([('x', -1)])\n"
SRUN = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "3"}


@pytest.fixture
def program(tmp_path):
    """A function that writes a program and returns its path."""

    def write(text):
        (tmp_path / "program.py").write_text(text)
        return tmp_path / "program.py"

    return write


def test_an_error_of_all_ranks_is_printed_once(launch, program):
    script = program(f"{MESH}mc.barrier(mesh)\nmc.Layout(['z'], mesh)")
    for _ in range(3):
        job = launch(4, script)
        if job.text.count("LayoutError: ") == 1 or job.slowness < 4:  # else ranks may have it seconds apart
            break
    assert job.code != 0
    assert job.text.count("LayoutError: ") == 1, job
    assert job.text.count("ends the job: an uncaught LayoutError") == 1, job
    assert job.left == []


def test_an_error_that_one_rank_saw_is_printed_once_by_that_rank(launch, program):
    """The others raise it as well, and say who saw it; only the traceback of that rank says where."""
    line = "mc.distribute(np.ones(3) if mesh.rank == 1 else None, mc.Layout(['x', mc.UNSHARDED], mesh), root=1)"
    done = launch(3, program(MESH + line), PYTHONDEVMODE="1")  # which shows the calls within meshcomm
    assert done.code == 1, done
    assert done.text.count("meshcomm.LayoutError: an array of shape (3,)") == 1, done
    assert "in _check_ndim" in done.text, "where rank 1 found it"
    assert "rank 1 of 3 ends the job: an uncaught LayoutError, on all 3 ranks alike" in done.text, done


@pytest.mark.any_mpi
def test_different_errors_are_all_printed(launch, program):
    job = launch(3, program(f"{MESH}mc.barrier(mesh)\nraise KeyError('even' if mesh.rank % 2 == 0 else 'odd')"))
    assert job.text.count("KeyError: 'even'") == job.text.count("KeyError: 'odd'") == 1, job


def test_a_first_collective_on_one_rank_only(launch, program):
    line = "if mesh.rank == 0: mc.relayout(mc.ones((4, 4), 'f8', mc.Layout(['x', None], mesh)), [None, 'x'])"
    line = line.replace("None", "mc.UNSHARDED").replace("[mc.UNSHARDED, 'x']", "mc.Layout([mc.UNSHARDED, 'x'], mesh)")
    before = time.monotonic()
    job = launch(2, program(MESH + line))
    assert job.code != 0
    assert "but rank 1 has ended without it" in job.text, job
    assert time.monotonic() - before < 60 * job.slowness, "long before MESHCOMM_TIMEOUT"


def test_who_is_missing_in_the_first_call_of_all_is_named(launch, program):
    """No rank has communicated yet: they learn it without MPI."""
    line = "import time\nfrom mpi4py import MPI\nif mesh.rank == 1: time.sleep(600)\nmc.barrier(mesh, 'hello')"
    job = launch(3, program(MESH + line), MESHCOMM_TIMEOUT="6")
    assert job.code != 0
    assert "rank 1 has not arrived: it has been outside meshcomm for" in job.text, job
    assert "before its first call on these ranks" in job.text, job
    assert re.search(r"rank [02] of 3 ends the job: it has waited \d+ s in barrier 'hello'", job.text), job


@pytest.mark.any_mpi
def test_without_mpiexec(launch, program):
    job = launch(None, program("import meshcomm as mc\nmesh = mc.create_mesh([('x', 4)])\nmc.barrier(mesh)"))
    assert job.code == 1
    assert "the world has 1: launch the program with mpiexec -n 4" in job.text, job
    assert job.text.count("Traceback") == 1
    assert "KeyError" not in job.text


@pytest.mark.parametrize("before", [(), ("-m", "meshcomm", "run")])
@pytest.mark.any_mpi
def test_copies_that_are_alone(launch, program, before):
    script = program(f"{MESH}mc.barrier(mesh)\nprint('went on')")
    first = launch(None, *before, script, **SRUN, SLURM_PROCID="0")
    assert first.code == 1
    assert "srun of Slurm launched 3 processes, but each is alone" in first.text, first
    assert "srun --mpi=pm" in first.text
    second = launch(None, *before, script, **SRUN, SLURM_PROCID="1")
    assert (second.code, second.text) == (1, ""), "the first one tells"
    wanted = launch(None, *before, script, **SRUN, SLURM_PROCID="1", MESHCOMM_ALONE="1")
    assert (wanted.code, "went on" in wanted.text) == (0, True), wanted


@pytest.mark.any_mpi
def test_a_child_of_a_rank_may_make_a_mesh_of_its_own(launch, program):
    line = (
        "import subprocess, sys, os\nif 'CHILD' not in os.environ: sys.exit(subprocess.call([sys.executable, __file__]"
    )
    script = program(f"{line}, env=os.environ | {{'CHILD': '1'}}))\n{MESH}mc.barrier(mesh)\nprint('went on')")
    job = launch(None, script, **SRUN, SLURM_PROCID="1")
    assert (job.code, "went on" in job.text) == (0, True), job


@pytest.mark.any_mpi
def test_a_misspelt_variable_is_reported_once(launch, program):
    job = launch(2, program(f"{MESH}mc.barrier(mesh)"), MESHCOMM_CHEK="1")
    assert job.code == 0
    assert job.text.count("is called MESHCOMM_CHEK; is it MESHCOMM_CHECK?") == 1, job


@pytest.mark.any_mpi
def test_info_reports_it_too_in_json(launch):
    job = launch(2, "-m", "meshcomm", "info", "--json", MESHCOMM_CHEK="1")
    document = json.loads(job.text[job.text.index("{") : job.text.rindex("}") + 1])
    (problem,) = (each for each in document["checks"] if each["level"] == "problem")
    assert (job.code != 0, document["ok"], problem["about"], problem["ranks"]) == (True, False, "settings", [0, 1])
    assert len(document["ranks"]) == 2
    page = (
        (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8").partition("## As JSON")[2].partition("\n## ")[0]
    )
    tables = [re.findall(r"^\| (`.*?) \|", table, re.M) for table in page.split("| field of a rank |")]
    fields = [[name for row in table for name in re.findall(r"`(\w+)`", row)] for table in tables]
    assert fields == [list(document), list(document["ranks"][0])], "the page has all fields, in this order"
    (host,) = document["hosts"]
    assert host["ranks"] == 2
    assert isinstance(host["cores"], int)
    assert document["machine"] == asdict(mc.Machine())
    assert list(document["mpi"]) == re.findall(r"`(\w+)`", re.search(r"^\| `mpi` \|(.*)$", page, re.M)[1])
