"""Ranks that make different calls: no call returns what another one sent, and no job goes on to exit with status 0.

`make test-jobs` tries a sample of all cases, other ones for each MPI and number of ranks. ``--count N`` tries N with
each number of ranks, with shared memory and without, and ``--exhaustive`` all.
"""

from collections import Counter

import pytest

from support.jobs import Job, is_openmpi
from support.mix_ups import MixUps, cases, is_loud
from support.paths import PROGRAMS
from support.sampling import counted

TRANSPORTS = {"mpi": False, "shared memory": True}
RANKS = 2, 3, 4
SAMPLE = 15
"""How many cases each transport and number of ranks gets every day."""
FEW = 5
"""How many where --sample leaves out others as well."""
ALONE = 6
"""How many cases get a job of their own, as a program of the user has."""
BATCH = 90
"""How many cases a test tries with ``--count``."""


def pytest_generate_tests(metafunc):
    option = metafunc.config.getoption
    if "alone" in metafunc.fixturenames:
        every = [(RANKS[i % len(RANKS)], i) for i in range(ALONE)]
        metafunc.parametrize(
            ("ranks", "alone", "shared"), [(ranks, _cases(ranks)[-1 - i], i % 2 == 0) for ranks, i in every]
        )
    elif "batch" in metafunc.fixturenames:
        every, count = {}, counted(FEW if option("sample") else SAMPLE)
        for ranks in RANKS:
            tried = _cases(ranks)[: None if option("exhaustive") else count]
            for i, start in enumerate(range(0, len(tried), BATCH)):
                batch = tried[start : start + BATCH]
                every |= {f"{ranks}-ranks, {name}, {i}": (ranks, batch, name) for name in TRANSPORTS}
        metafunc.parametrize(("ranks", "batch", "transport"), every.values(), ids=every)


def _cases(ranks):
    """Return all cases, in another order for each MPI."""
    found = cases(ranks)
    offset = len(found) // 2 * is_openmpi()
    return found[offset:] + found[:offset]


@pytest.fixture(scope="module")
def totals():
    """Counts the outcomes of all batches, and prints them."""
    totals = Counter()
    yield totals
    print(f"\nall batches, {sum(totals.values())} cases: {dict(totals.most_common())}")


def test_a_job_in_which_ranks_make_different_calls_ends_with_an_error(launch, ranks, alone, shared):
    memory = {} if shared else {"MESHCOMM_SHARED_MEMORY": "0"}
    job = launch(ranks, PROGRAMS / "mismatches.py", *alone, MESHCOMM_TIMEOUT="6", **memory)
    assert "WRONG" not in job.text, job
    assert is_loud(job), job


def test_ranks_that_make_different_calls_never_get_wrong_data(launch, tmp_path, totals, ranks, batch, transport):
    tried = MixUps(launch, tmp_path, ranks, batch, TRANSPORTS[transport])
    outcomes = tried.run()
    totals.update(outcomes)
    print(f"\n{ranks} ranks, {transport}, {len(batch)} cases: {dict(outcomes.most_common())}", flush=True)
    if tried.at_timeout:
        print("at the timeout:", *tried.at_timeout, sep="\n    ", flush=True)
    assert not tried.faults, "\n".join(tried.faults)
    assert sum(outcomes.values()) == len(batch)


def test_ranks_of_which_one_waits_for_a_request_learn_so_before_the_timeout(launch):
    job = launch(2, PROGRAMS / "mismatches.py", "gradient", "started_large", "skipped", 0, MESHCOMM_SHARED_MEMORY="0")
    assert "CollectiveMismatch: ranks made different collective calls now or before" in job.text, job
    assert is_loud(job), job


def test_no_error_of_mpi_tells_that_calls_differ(launch):
    """With Open MPI some ranks got MPI_ERR_OTHER in most runs."""
    job = launch(4, PROGRAMS / "mismatches.py", "variable", "sum", "skipped", 3, MESHCOMM_SHARED_MEMORY="0")
    assert "uncaught Exception" not in job.text, job
    assert is_loud(job), job


@pytest.mark.parametrize("shared", ["0", "1G"])
def test_a_rank_that_waits_for_others_that_have_ended_after_as_many_calls_learns_so_before_the_timeout(launch, shared):
    """Rank 3 gathers with rank 2, which permutes instead, and exchanges nothing in that call."""
    calls = "all_gather_along_y", "permute_of_two", "known", 3
    job = launch(4, PROGRAMS / "mismatches.py", *calls, MESHCOMM_TIMEOUT="60", MESHCOMM_SHARED_MEMORY=shared)
    assert "  rank 3: all_gather\n  ranks 0, 1, 2: collective_permute, and ended" in job.text, job
    assert is_loud(job), job


RAISED, RETURNED, READY = {"outcome": "CollectiveMismatch: ..."}, {"outcome": "returned"}, {"outcome": "ready"}
ENDED = Job(1, "meshcomm: rank 0 of 2 ends the job: CollectiveMismatch: ...", 0.0, [], 1.0)


@pytest.mark.parametrize(
    ("notes", "job", "fault"),
    [
        ([RAISED, RETURNED], None, ""),
        ([RAISED, READY], ENDED, ""),
        ([RETURNED, RETURNED], None, "silent"),
        ([RETURNED, RETURNED, RAISED], None, ""),
        ([RETURNED, RETURNED, RETURNED], None, "silent"),
        ([RAISED, {"outcome": "Exception: message truncated"}], None, "an error of MPI, as it is"),
        ([RAISED, RAISED | {"wrong": ["sum"]}], None, "late"),
        ([RAISED, READY, READY | {"wrong": ["sum"]}], ENDED, "late"),
        ([RAISED, READY], ENDED._replace(code=0), "an end without words"),
        ([RAISED, READY], ENDED._replace(text=""), "an end without words"),
    ],
)
@pytest.mark.any_mpi
def test_what_must_not_happen_is_noticed(notes, job, fault):
    tried = MixUps(None, None, len(notes), [("sum", "mean", "known", "0")], shared=True)
    tried._judge(0, notes, job)
    assert sum(tried.outcomes.values()) == 1
    assert (not tried.faults) if not fault else fault in tried.faults[0]
