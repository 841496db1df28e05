"""The test harness under mpiexec: a pytest plugin by which ranks agree on the verdict of every test.

Under mpiexec every rank runs pytest. After each phase of a test the ranks compare their outcomes: a test that fails on
one rank fails on all, so that all go on with the same test. A rank that fails while the others wait for it inside a
collective call ends the job with its traceback. Only rank 0 shows progress and the summary.

Without mpiexec nothing here imports mpi4py.
"""

import atexit
import functools
import os
import re
import traceback
from contextlib import contextmanager

import pytest
from hypothesis.errors import UnsatisfiedAssumption

import meshcomm as mc
from meshcomm.core.failures.launchers import launched
from support.jobs import mapped_files, remove
from support.paths import TESTS
from support.patience import Countdown

DEADLINE = 5.0  # seconds of CPU time for which a failed rank waits for the others at the end of the test


class Alone:
    """The one rank of a run without mpiexec."""

    rank, size = 0, 1

    def gather(self, point, value, failure=None):
        return [value]


class Ranks:
    """The ranks of a run under mpiexec, on a communicator that nothing else uses."""

    def __init__(self):
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.stderr = os.fdopen(os.dup(2), "w")  # pytest redirects descriptor 2 while a test runs
        atexit.register(self._end_early)

    def say(self, text):
        print(f"\n[rank {self.rank} of {self.size}] {text}", file=self.stderr, flush=True)

    def end(self, point, failure):
        self.say(
            f"{failure}\nthe other ranks did not come to {point} within {DEADLINE:g} s of CPU time: the run ends here"
        )
        remove(mapped_files(os.getpid()))  # MPI will not have the time to
        os._exit(1)

    def finish(self, failure):
        """Wait for the other ranks at the end of the session."""
        self.gather("the end of the session", None, failure)
        atexit.unregister(self._end_early)
        self.stderr.close()

    def _end_early(self):
        self.say("pytest ended before its session did")
        os._exit(1)

    def gather(self, point, value, failure=None):
        """Return the *value* of every rank; all ranks must be at the same *point* of the program.

        A rank with a *failure* ends the run if the others do not come. Ranks that wait for each other inside a test
        notice if one of them has left it: they are at different points.
        """
        __tracebackhide__ = True
        countdown = None if failure is None else Countdown(DEADLINE, self.end, point, failure)
        try:
            while True:
                gathered = self.comm.allgather((point, value))
                if all(rank_point == point for rank_point, _ in gathered):
                    return [value for _, value in gathered]
                if not point.startswith("the report"):
                    points = "; ".join(f"rank {rank} at {rank_point}" for rank, (rank_point, _) in enumerate(gathered))
                    raise AssertionError(f"ranks are at different points: {points}")
        finally:
            if countdown is not None:
                countdown.cancel()


_ranks = Alone()


def agree_raises(expected, match=""):
    """Return a context that checks that every rank raises the same class, an *expected* one, with a matching text."""
    return _AgreeRaises(expected, match)


class _AgreeRaises:
    def __init__(self, expected, match):
        self.expected, self.match, self.value = expected, match, None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        __tracebackhide__ = True
        if value is not None and not isinstance(value, Exception):
            return False  # pytest.skip and the like, KeyboardInterrupt
        self.value = value
        fits = isinstance(value, self.expected) and re.search(self.match, str(value)) is not None
        raised = f"{kind.__name__}: {value}" if value is not None else "nothing"
        failure = None if fits else "".join(traceback.format_exception(value)) if value is not None else raised
        gathered = _ranks.gather("the end of agree_raises", (fits, kind.__name__ if kind else None, raised), failure)
        if not all(fits for fits, _, _ in gathered) or len({name for _, name, _ in gathered}) > 1:
            lines = "\n".join(f"  rank {rank} raised {text}" for rank, (_, _, text) in enumerate(gathered))
            raise AssertionError(f"every rank must raise {self.expected} with {self.match!r}:\n{lines}")
        return True


@contextmanager
def agree_mismatch(mesh, match=""):
    """Check in a context that every rank raises ``CollectiveMismatch``, and that *mesh* is unusable then; close it."""
    with agree_raises(mc.CollectiveMismatch, match):
        yield
    with agree_raises(mc.MeshError, r"close\(\) "):
        mc.barrier(mesh)
    mesh.close()


def agreed(test):
    """Return a decorated *test*: every call of it has the same outcome on all ranks.

    For property tests: below ``@given``, it keeps the ranks at the same example, also while one of them is shrunk.
    """

    @functools.wraps(test)
    def agreeing(*args, **kwargs):
        __tracebackhide__ = True
        failure = None
        try:
            test(*args, **kwargs)
        except UnsatisfiedAssumption:
            raise
        except Exception:
            failure = traceback.format_exc()
        failures = _ranks.gather("the end of an example", failure, failure)
        # Raised here, and without a context, so that hypothesis sees the same failure on every rank.
        if any(failures):
            raise AssertionError(by_rank(failures))

    return agreeing


def by_rank(failures):
    failed = [rank for rank, failure in enumerate(failures) if failure is not None]
    texts = "\n".join(f"[rank {rank}]\n{failures[rank]}" for rank in failed)
    return f"failed on ranks {failed} of {len(failures)}\n{texts}"


@pytest.fixture(scope="session")
def comm():
    """A duplicate of COMM_WORLD, one for all tests."""
    from mpi4py import MPI

    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


# -- agreement on verdicts --------------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if launched() is None:
        return
    _, size = launched()
    config.option.with_mpi = True
    if size > 1:
        # What a rank does not catch is a failed test here, not the end of the job.
        os.environ["MESHCOMM_ABORT"] = "0"
        _join_ranks(config, size)


def _join_ranks(config, size):
    global _ranks
    _ranks = Ranks()
    if _ranks.size != size:
        pytest.exit(f"mpiexec launched {size} ranks, but MPI sees {_ranks.size}: is it of another MPI?", 1)
    config.pluginmanager.register(Agreement())
    if _ranks.rank:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        config.pluginmanager.unregister(reporter)
        silent = pytest.TerminalReporter(config, open(os.devnull, "w"))  # noqa: SIM115
        config.pluginmanager.register(silent, "terminalreporter")


class Agreement:
    """The hooks of a run over several ranks."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        failure = report.longreprtext or "failed" if report.failed else None
        point = f"the report of {item.nodeid} ({call.when})"
        if failure is not None:
            _ranks.say(f"{point}\n{failure}")  # at once: this rank may not live to the common report
        gathered = _ranks.gather(point, (report.outcome, failure), failure)
        outcomes, failures = zip(*gathered, strict=True)
        if any(failures):
            report.outcome = "failed"
            report.longrepr = by_rank(failures)
        elif len(set(outcomes)) > 1:
            report.outcome = "failed"
            report.longrepr = "outcomes differ: " + ", ".join(f"rank {r}: {o}" for r, o in enumerate(outcomes))
        if report.failed and hasattr(report, "wasxfail"):
            del report.wasxfail
        return report

    def pytest_collectreport(self, report):
        if report.failed and _ranks.rank:
            _ranks.say(f"cannot collect {report.nodeid}\n{report.longreprtext}")

    def pytest_collection_finish(self, session):
        test_ids = [item.nodeid for item in session.items]
        gathered = _ranks.gather("the end of the collection", (test_ids, session.testsfailed))
        if any(rank_tests != gathered[0] for rank_tests in gathered):
            counts = ", ".join(
                f"rank {r}: {len(ids)} tests, {errors} errors" for r, (ids, errors) in enumerate(gathered)
            )
            pytest.exit(f"the ranks did not find the same tests ({counts})", 1)

    def pytest_sessionfinish(self, session, exitstatus):
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        _ranks.finish(None if ended else f"pytest ends with {exitstatus!r}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if TESTS / "mpi" in item.path.parents:
            item.add_marker(pytest.mark.mpi)
