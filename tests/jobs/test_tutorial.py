"""The steps of the tutorial run under mpiexec as they do in a notebook."""

import re

import pytest

from support.paths import DOCS

pytestmark = pytest.mark.any_mpi

PAGE = (DOCS / "tutorial.md").read_text("utf-8")
REAL = """
from mpi4py import MPI

if MPI.COMM_WORLD.rank > 0:
    print = lambda *values: None  # rank 0 prints for all


def run(program, ranks=4):
    return MPI.COMM_WORLD.allgather(program())
"""


def code(language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_steps_print_under_mpiexec_what_the_page_says(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head, *steps = code()
    (tmp_path / "steps.py").write_text("\n".join([head.partition("def run(")[0] + REAL, *steps]))
    job = launch(4, "steps.py")
    assert job.code == 0, job
    assert job.text == "".join(code("text")).replace("3 ranks go on", "4 ranks go on"), job


def test_the_whole_program_runs_under_mpiexec(launch, tmp_path):
    program = tmp_path / "heat.py"
    (whole,) = (block for block in code() if "def main(" in block)
    program.write_text(whole + "main()\n")
    printed = "4 ranks, warmest 0.080257, by theory 0.080257"
    assert PAGE.count(printed) == 2, "the page says what its program prints"
    job = launch(3, program)
    assert job.code == 0, job
    assert job.text == printed.replace("4 ranks", "3 ranks") + "\n", job
