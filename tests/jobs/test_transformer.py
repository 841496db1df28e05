"""The example of a transformer agrees with NumPy, and its plan adds up what the ranks of the second dimension have."""

import pytest

from support.paths import EXAMPLES

pytestmark = pytest.mark.any_mpi


@pytest.mark.parametrize(("ranks", "moved"), [(3, "0 B in 0 messages"), (4, "64.0 KiB in 1 message")])
def test_block_is_numpys(launch, ranks, moved):
    job = launch(ranks, EXAMPLES / "transformer.py")
    assert job.code == 0, job
    assert f"each device receives at most {moved}, " in job.text
    assert ("result: partial sums over model" in job.text) == (ranks == 4)
