"""The command convert on several ranks: each does its share, and an error is one line."""

import numpy as np
import pytest

import meshcomm as mc
from support.jobs import mpiexec, tells_once

pytestmark = [
    pytest.mark.any_mpi,
    pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec"),
]

COMMAND = ("-m", "meshcomm", "convert")


def test_convert_on_ranks(launch, tmp_path):
    array = np.random.default_rng(1).normal(size=(301, 50))
    np.save(tmp_path / "a.npy", array)
    job = launch(3, *COMMAND, tmp_path / "a.npy", tmp_path / "c")
    assert job.code == 0, job
    assert job.text.strip() == ""
    job = launch(2, *COMMAND, tmp_path / "c", tmp_path / "t.safetensors")
    assert job.code == 0, job
    with mc.open(tmp_path / "t.safetensors") as file:
        np.testing.assert_array_equal(file["array"], array)


def test_an_error_is_one_line(launch, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    job = launch(2, *COMMAND, tmp_path / "a.npy", tmp_path / "a.npy")
    assert job.code == 1, job
    (line,) = {line for line in job.text.splitlines() if line.startswith("meshcomm: ")}
    assert "is there" in line
    assert tells_once(job, line), job
    assert "Traceback" not in job.text
