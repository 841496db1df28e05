"""The steps of the tutorial run under mpiexec as they do in a notebook."""

import re

import pytest

from support.paths import DOCS

pytestmark = pytest.mark.any_mpi

PAGE = (DOCS / "tutorial.md").read_text("utf-8")


def code(text, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_steps_print_under_mpiexec_what_the_page_says(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.partition("**A collective call on one rank only.**")[0]  # which ends the job
    head, *steps = code(page)
    (real,) = code(PAGE, "py")
    head = head.partition("def run(")[0] + real
    (tmp_path / "steps.py").write_text("\n".join([head, *steps]))
    job = launch(4, "steps.py")
    assert job.code == 0, job
    assert job.text == "".join(code(page, "text")).replace("3 ranks go on", "4 ranks go on"), job


def test_the_whole_program_runs_under_mpiexec(launch, tmp_path):
    program = tmp_path / "heat.py"
    program.write_text(code(PAGE)[-1])
    for ranks in (1, 3):
        job = launch(ranks, program)
        assert job.code == 0, job
        assert job.text == f"{ranks} ranks, warmest 0.080257\n", job


def test_the_page_says_what_its_program_prints():
    assert PAGE.count("`4 ranks, warmest 0.080257`") == 1
