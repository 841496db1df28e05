"""A program that is killed goes on from its last checkpoint, on another number of ranks, to the same bits."""

import pytest

from support.paths import EXAMPLES
from support.plates import digest_at_the_end

pytestmark = pytest.mark.any_mpi

EXAMPLE = EXAMPLES / "restart.py"


def test_killed_and_restarted(launch, tmp_path):
    job = launch(3, EXAMPLE, tmp_path, "--kill-at", "130")
    assert job.code != 0, job
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000050", "step-000000100"]
    job = launch(2, EXAMPLE, tmp_path)
    assert job.code == 0, job
    assert f"ranks: {digest_at_the_end()}\n" in job.text, job
