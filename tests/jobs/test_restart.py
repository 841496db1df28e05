"""A program that is killed goes on from its last checkpoint, on another number of ranks, to the same bits."""

import re

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.any_mpi

EXAMPLE = ROOT / "mpi_examples" / "restart.py"


def digest(job):
    assert job.code == 0, job
    return re.search(r"ranks: (\w+)", job.text)[1]


def test_killed_and_restarted(launch, tmp_path):
    whole = digest(launch(2, EXAMPLE, tmp_path / "whole"))
    job = launch(4, EXAMPLE, tmp_path / "cut", "--kill-at", "130")
    assert job.code != 0, job
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["step-000000050", "step-000000100"]
    assert digest(launch(3, EXAMPLE, tmp_path / "cut")) == whole
