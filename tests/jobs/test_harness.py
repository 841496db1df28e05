"""The test harness on ranks that fail: they agree on verdicts, and none is left waiting."""

import os
import signal
import textwrap

import pytest

from support.paths import TESTS
from support.patience import TEST_CPU
from support.verdicts import DEADLINE

pytestmark = pytest.mark.any_mpi

VERDICTS = """
    from support.verdicts import agree_raises
    import pytest

    def test_fails_on_one_rank(comm):
        assert comm.rank != 1, "culprit"

    def test_is_skipped_on_one_rank(comm):
        if comm.rank == 1:
            pytest.skip("only here")

    @pytest.fixture
    def broken(comm):
        assert comm.rank != 1, "broken fixture"

    def test_fixture_fails_on_one_rank(broken, comm):
        comm.Barrier()

    def test_leaves_for_agree_raises(comm):
        assert comm.rank != 1, "left"
        with agree_raises(ValueError):
            raise ValueError

    def test_all_are_still_together(comm):
        assert comm.allreduce(1) == comm.size
"""


LEAVES = """
    def test_one_rank_leaves_a_collective(comm):
        print("stamp %f" % __import__("time").time(), file=open("stamp", "w"))
        assert comm.rank != 1, "culprit"
        comm.Barrier()
"""


DIFFERENT_TESTS = """
    from meshcomm.core.failures.launchers import launched

    def test_on_all_ranks(comm):
        pass

    if launched()[0] == 1:
        def test_on_one_rank(comm):
            pass
"""


@pytest.fixture
def pytest_on(launch, tmp_path, monkeypatch):
    """A function that runs pytest, with our plugins, on a file under mpiexec, or without it where *ranks* is None."""

    def run(ranks, text, *options):
        (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        monkeypatch.chdir(tmp_path)
        arguments = ("-m", "pytest", "-pno:cacheprovider", "-pno:zarr", "-ra", "--color=no", *options, "test_it.py")
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        return launch(ranks, *arguments, PYTHONPATH=path)

    return run


def test_ranks_agree_on_verdicts_and_go_on(pytest_on):
    job = pytest_on(2, VERDICTS)
    assert job.code == 1, job
    assert "3 failed, 1 passed, 1 error" in job.text, job
    assert "FAILED test_it.py::test_fails_on_one_rank - failed on ranks [1] of 2" in job.text
    assert "ERROR test_it.py::test_fixture_fails_on_one_rank - failed on ranks [1] of 2" in job.text
    assert "outcomes differ: rank 0: passed, rank 1: skipped" in job.text
    assert "AssertionError: culprit" in job.text
    assert job.text.count("test session starts") == 1, "only rank 0 shows progress"


@pytest.mark.slow
def test_a_rank_that_leaves_a_collective_ends_the_run(pytest_on, tmp_path):
    job = pytest_on(3, LEAVES)
    assert job.code != 0, job
    assert "[rank 1 of 3]" in job.text
    assert "AssertionError: culprit" in job.text
    assert "the other ranks did not come to the report of test_it.py::test_one_rank_leaves_a_collective" in job.text
    assert job.left == []
    # Three ranks wait on what may be two cores, and 2 s are for the launcher.
    seconds = job.ended - float((tmp_path / "stamp").read_text().split()[1])
    assert seconds < (2 * DEADLINE + 2.0) * job.slowness, job


@pytest.mark.slow
def test_ranks_with_different_tests_do_not_begin(pytest_on):
    job = pytest_on(2, DIFFERENT_TESTS)
    assert job.code != 0, job
    assert "the ranks did not find the same tests (rank 0: 1 tests, 0 errors, rank 1: 2 tests, 0 errors)" in job.text


HANGS = """
    def test_hangs():
        while True:
            pass
"""


@pytest.mark.slow
def test_a_test_that_hangs_ends_the_run(pytest_on):
    job = pytest_on(None, HANGS, f"--patience={1 / TEST_CPU}")
    assert job.code == -signal.SIGPROF, job
    assert "in test_hangs" in job.text, "where it was is reported"
