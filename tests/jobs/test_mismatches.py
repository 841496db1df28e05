"""Ranks that make different calls: no call returns what another one sent, and no job goes on to exit with status 0.

The program is programs/mismatches.py. `make test` and `make test-all` try a sample of all cases, other ones for each
MPI; ``--mismatches`` tries all.
"""

import runpy
import signal
from itertools import product
from random import Random

import pytest

from support.jobs import is_openmpi, mpiexec
from support.paths import PROGRAMS

pytestmark = pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")

PROGRAM = PROGRAMS / "mismatches.py"
SAMPLE = 24


def cases():
    """Return (mode, first call, second call, whether ranks share memory), for each pair of calls that differ."""
    described = runpy.run_path(str(PROGRAM))
    names = described["NAMES"]
    pairs = [(first, second) for first, second in product(names, names) if first != second]
    return [
        (mode, first, second, shared)
        for mode, (first, second), shared in product(described["MODES"], pairs, (False, True))
    ]


def pytest_generate_tests(metafunc):
    found = cases()
    share = metafunc.config.getoption("mismatches")
    if share != "all":
        found = Random(int(is_openmpi())).sample(found, int(share or SAMPLE))
    metafunc.parametrize(("mode", "first", "second", "shared"), found)


def test_ranks_that_make_different_calls_never_get_wrong_data(launch, mode, first, second, shared):
    memory = {} if shared else {"MESHCOMM_SHARED_MEMORY": "0"}
    job = launch(2, PROGRAM, first, second, mode, MESHCOMM_TIMEOUT="6", **memory)
    assert "WRONG" not in job.text, job
    assert job.code != 0, job
    # Open MPI may crash when messages of different calls meet: loud, if without our words.
    ours = "CollectiveMismatch" in job.text or "different c" in job.text or "ends the job" in job.text
    assert ours or abs(job.code) % 128 in (signal.SIGSEGV, signal.SIGABRT), job
