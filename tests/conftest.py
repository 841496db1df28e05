"""The test harness: ranks that agree on the verdict of every test, and jobs that tests launch.

Under mpiexec every rank runs pytest. After each phase of a test the ranks compare their outcomes: a test that fails on
one rank fails on all, so that all go on with the same test. A rank that fails while the others wait for it inside a
collective call ends the job with its traceback. Only rank 0 shows progress and the summary.

Without mpiexec nothing here imports mpi4py.
"""

import atexit
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis.errors import UnsatisfiedAssumption

from meshcomm.ranks.abort import launched

collect_ignore = ["failures", "hosts"]  # programs that tests launch
MPI_TESTS = Path(__file__).parent / "mpi"
DEADLINE = 5.0  # seconds that a rank which failed waits for the others to come to the end of the test

# All ranks must draw the same examples, however slow one of them is.
settings.register_profile("all ranks alike", derandomize=True, database=None, deadline=None)
settings.load_profile("all ranks alike")


class Alone:
    """The one rank of a run without mpiexec."""

    rank, size = 0, 1

    def meet(self, where, value, failure=None):
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

    def end(self, where, failure):
        self.say(f"{failure}\nthe other ranks did not come to {where} within {DEADLINE:g} s: the run ends here")
        _remove(_mapped_files(os.getpid()))  # MPI will not have the time to
        os._exit(1)

    def finish(self, failure):
        """Come to the end of the session together."""
        self.meet("the end of the session", None, failure)
        atexit.unregister(self._end_early)

    def _end_early(self):
        self.say("pytest ended before its session did")
        os._exit(1)

    def meet(self, where, value, failure=None):
        """Return the *value* of every rank, all of them at *where*.

        A rank with a *failure* ends the run if the others do not come. Ranks that wait for each other inside a test
        are told if one of them has left it: its report waits for theirs.
        """
        __tracebackhide__ = True
        timer = threading.Timer(DEADLINE, self.end, [where, failure])
        if failure is not None:
            timer.start()
        try:
            while True:
                met = self.comm.allgather((where, value))
                if all(place == where for place, _ in met):
                    return [value for _, value in met]
                if not where.startswith("the report"):
                    places = "; ".join(f"rank {rank} at {place}" for rank, (place, _) in enumerate(met))
                    raise AssertionError(f"ranks are at different places: {places}")
        finally:
            timer.cancel()


_ranks = Alone()


def agree_raises(expected, match=""):
    """Check that every rank raises the same class of exception, an *expected* one whose text matches. A context."""
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
        met = _ranks.meet("the end of agree_raises", (fits, kind.__name__ if kind else None, raised), failure)
        if not all(fits for fits, _, _ in met) or len({name for _, name, _ in met}) > 1:
            lines = "\n".join(f"  rank {rank} raised {text}" for rank, (_, _, text) in enumerate(met))
            raise AssertionError(f"every rank must raise {self.expected} with {self.match!r}:\n{lines}")
        return True


def agreed(test):
    """Make every call of *test* end on all ranks with the same outcome.

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
        failures = _ranks.meet("the end of an example", failure, failure)
        # Raised here, and without a context, so that hypothesis sees the same failure on every rank.
        if any(failures):
            raise AssertionError(_by_rank(failures))

    return agreeing


def _by_rank(failures):
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
        where = f"the report of {item.nodeid} ({call.when})"
        if failure is not None:
            _ranks.say(f"{where}\n{failure}")  # at once: this rank may not live to the common report
        met = _ranks.meet(where, (report.outcome, failure), failure)
        outcomes, failures = zip(*met, strict=True)
        if any(failures):
            report.outcome = "failed"
            report.longrepr = _by_rank(failures)
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
        found = [item.nodeid for item in session.items]
        met = _ranks.meet("the end of the collection", (found, session.testsfailed))
        if any(other != met[0] for other in met):
            counts = ", ".join(f"rank {r}: {len(ids)} tests, {errors} errors" for r, (ids, errors) in enumerate(met))
            pytest.exit(f"the ranks did not find the same tests ({counts})", 1)

    def pytest_sessionfinish(self, session, exitstatus):
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        _ranks.finish(None if ended else f"pytest ends with {exitstatus!r}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if MPI_TESTS in item.path.parents:
            item.add_marker(pytest.mark.mpi)


# -- jobs that tests launch -------------------------------------------------------------------------------------------

# An Open MPI asks for these on a small machine, and as root; what the environment says goes first.
OPENMPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
MARK = "JOB_OF_A_TEST"
SHARED_MEMORY = Path("/dev/shm")


class Job(NamedTuple):
    """A job that has ended: its exit code, output and errors as one text, when it ended, and processes it left."""

    code: int
    text: str
    ended: float
    left: list[int]

    def __str__(self):
        return f"a job that ended with code {self.code}:\n{self.text}"


@pytest.fixture(scope="session")
def launch():
    """A function that runs a program under mpiexec, ends it at a deadline, and leaves nothing of it behind."""
    before = _shared_memory()
    yield _launch
    _remove(_shared_memory() - before - _mapped_files("[0-9]*"))


def mpiexec():
    """Return the path of the mpiexec that belongs to this Python, else of the one on the PATH, or None."""
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def _launch(ranks, *arguments, deadline=30.0, python=(sys.executable,), **environment):
    """Run ``mpiexec -n ranks python *arguments* and return the `Job`; without mpiexec where *ranks* is None."""
    launcher = () if ranks is None else (mpiexec(), "-n", str(ranks))
    command = [*launcher, *python, *map(str, arguments)]
    mark = f"{os.getpid()}.{time.monotonic_ns()}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "MESHCOMM_"))}
    process = subprocess.Popen(
        command,
        env=OPENMPI | clean | {MARK: mark} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        _kill([process.pid, *_processes(mark)])
        text, _ = process.communicate()
        pytest.fail(f"the job did not end within {deadline:g} s: {command}\n{text}")
    ended = time.time()
    return Job(process.returncode, text, ended, _left(mark))


def _kill(processes):
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _left(mark):
    """Return the processes of the job that are still there after a moment, and kill them."""
    until = time.monotonic() + 2.0
    while (found := _processes(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    _kill(found)
    return found


def _processes(mark):
    """Return the processes that have our mark in their environment."""
    text, found = f"{MARK}={mark}\0".encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def _shared_memory():
    """Return our files in shared memory."""
    found = set()
    for path in SHARED_MEMORY.glob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_uid == os.getuid():
                found.add(path)
    return found


def _remove(files):
    for path in files:
        with contextlib.suppress(OSError):  # another session may have removed it
            path.unlink()


def _mapped_files(process):
    """Return the files in shared memory that processes have mapped; *process* is a number or a pattern of it."""
    found = set()
    for maps in Path("/proc").glob(f"{process}/maps"):
        with contextlib.suppress(OSError):
            found.update(Path(line.split()[-1]) for line in maps.read_text().splitlines() if "/dev/shm/" in line)
    return found
