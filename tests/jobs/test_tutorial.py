"""The steps of the tutorial run under mpiexec as they do in a notebook."""

import re

import pytest

from support.paths import DOCS

pytestmark = pytest.mark.any_mpi

PAGE = (DOCS / "tutorial.md").read_text("utf-8")


def code(text, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_steps_run_under_mpiexec(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head, *steps = code(PAGE.partition("\n## 11.")[0])
    (real,) = code(PAGE, "py")
    head = head.partition("def run(")[0] + real
    (tmp_path / "steps.py").write_text("\n".join([head, *steps]))
    job = launch(4, "steps.py")
    assert job.code == 0, job
    assert "4 ranks go on from step 100" in job.text, job
    assert job.text.count("0.006441, by theory 0.006441") == 4, job


def test_the_whole_program_runs_under_mpiexec(launch, tmp_path):
    program = tmp_path / "heat.py"
    program.write_text(code(PAGE)[-1])
    for ranks in (1, 3):
        job = launch(ranks, program)
        assert job.code == 0, job
        assert job.text == f"{ranks} ranks, warmest 0.080257\n", job


def test_the_page_says_what_its_program_prints():
    assert PAGE.count("`4 ranks, warmest 0.080257`") == 1
