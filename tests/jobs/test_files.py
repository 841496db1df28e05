"""Files of real ranks: relative paths, a disk that is slower than the watchdog waits, a save that nobody waits for."""

import math

import numpy as np
import pytest

from support.jobs import mpiexec
from support.paths import PROGRAMS
from support.patience import slowness

pytestmark = pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")


def test_ranks_with_folders_of_their_own(launch, tmp_path):
    job = launch(3, PROGRAMS / "files.py", tmp_path, MESHCOMM_TIMEOUT=f"{math.ceil(3 * slowness())}")
    assert job.code == 0, job
    assert job.text.splitlines() == ["meshcomm: the save to a.npy is not complete: nobody waited for it"]
    found = [sorted(path.name for path in (tmp_path / str(rank)).iterdir()) for rank in range(3)]
    assert found == [["a.npy", "a.safetensors", "a.zarr", "c"], [], []]
    np.testing.assert_array_equal(np.load(tmp_path / "0" / "a.npy"), np.arange(30_000.0))
