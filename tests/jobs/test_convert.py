"""The command convert on several ranks: each does its share, and an error is one line."""

import numpy as np
import pytest

import meshcomm as mc

pytestmark = pytest.mark.any_mpi

COMMAND = ("-m", "meshcomm", "convert")


@pytest.mark.slow
def test_convert_on_ranks(launch, tmp_path):
    array = np.random.default_rng(1).normal(size=(301, 50))
    np.save(tmp_path / "a.npy", array)
    job = launch(3, *COMMAND, tmp_path / "a.npy", tmp_path / "c")
    assert job.code == 0, job
    assert job.text == f"wrote {tmp_path / 'c'}: 1 array, 117.6 KiB\n"
    with mc.open(tmp_path / "c") as file:
        np.testing.assert_array_equal(file["array"], array)


def test_an_error_is_one_line(launch, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    for _ in range(3):
        job = launch(2, *COMMAND, tmp_path / "a.npy", tmp_path / "a.npy")
        lines = [line for line in job.text.splitlines() if line.startswith("meshcomm: ")]
        if len(lines) == 1 or job.slowness < 4:  # else ranks may come seconds apart
            break
    assert job.code == 1, job
    assert len(lines) == 1, job
    assert "is there" in lines[0]
    assert "Traceback" not in job.text
