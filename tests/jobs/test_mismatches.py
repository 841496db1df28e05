"""Ranks that make different calls: no call returns what another one sent, and no job goes on to exit with status 0.

`make test` and `make test-all` try a sample of all cases, other ones for each MPI; ``--mismatches`` tries all.
"""

from collections import Counter

import pytest

from support.jobs import is_openmpi, mpiexec
from support.mix_ups import MixUps, cases, is_loud
from support.paths import PROGRAMS

pytestmark = pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")

TRANSPORTS = {"mpi": False, "shared memory": True}
SAMPLE = 45
"""How many cases each transport gets every day."""
ALONE = 4
"""How many cases get a job of their own, as a program of the user has."""
BATCH = 90
"""How many cases a test tries with ``--mismatches``."""


def pytest_generate_tests(metafunc):
    found = cases()
    offset = len(found) // 2 * is_openmpi()
    found = found[offset:] + found[:offset]
    if "alone" in metafunc.fixturenames:
        metafunc.parametrize(("alone", "shared"), [(found[-1 - i], i % 2 == 0) for i in range(ALONE)])
    elif "batch" in metafunc.fixturenames:
        share = metafunc.config.getoption("mismatches")
        tried = found if share == "all" else found[: int(share or SAMPLE)]
        batches = [tried[start : start + BATCH] for start in range(0, len(tried), BATCH)]
        every = {f"{name}, {i}": (batch, name) for i, batch in enumerate(batches) for name in TRANSPORTS}
        metafunc.parametrize(("batch", "transport"), every.values(), ids=every)


@pytest.fixture(scope="module")
def totals():
    """Counts the outcomes of all batches, and prints them."""
    totals = Counter()
    yield totals
    print(f"\nall batches, {sum(totals.values())} cases: {dict(totals.most_common())}")


def test_a_job_in_which_ranks_make_different_calls_ends_with_an_error(launch, alone, shared):
    memory = {} if shared else {"MESHCOMM_SHARED_MEMORY": "0"}
    job = launch(2, PROGRAMS / "mismatches.py", *alone, MESHCOMM_TIMEOUT="6", **memory)
    assert "WRONG" not in job.text, job
    assert is_loud(job), job


def test_ranks_that_make_different_calls_never_get_wrong_data(launch, tmp_path, totals, batch, transport):
    tried = MixUps(launch, tmp_path, batch, TRANSPORTS[transport])
    outcomes = tried.run()
    totals.update(outcomes)
    print(f"\n{transport}, {len(batch)} cases: {dict(outcomes.most_common())}", flush=True)
    assert not tried.faults, "\n".join(tried.faults)
    assert sum(outcomes.values()) == len(batch)


def test_ranks_of_which_one_waits_for_a_request_learn_so_before_the_timeout(launch):
    job = launch(2, PROGRAMS / "mismatches.py", "gradient", "started_large", "skipped", MESHCOMM_SHARED_MEMORY="0")
    assert "CollectiveMismatch: ranks made different collective calls now or before" in job.text, job
    assert is_loud(job), job
