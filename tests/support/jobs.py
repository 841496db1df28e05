"""Jobs that tests launch: a pytest plugin with the fixture `launch`. It removes everything that jobs leave."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import TESTS
from support.patience import CPU, Stuck, Watch, communicate, until

# Variables that jobs need on a small machine, and as root; the environment overrides them. Ranks that wait sleep: with
# more ranks than processors, ranks that spin or merely yield keep others from their work.
SETTINGS = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "MESHCOMM_WHOLE_BELOW": os.environ.get("MESHCOMM_WHOLE_BELOW", ""),  # as in the tests: see conftest.py
}
MARK = "JOB_OF_A_TEST"
PR_SET_TIMERSLACK = 29  # of Linux
SHARED_MEMORY = Path("/dev/shm")


class Job(NamedTuple):
    """A job that has ended.

    *code* is its exit code, *text* its output and errors, *ended* when it ended, *left* lists the processes that it
    left, and *slowness* says how many times slower than an idle machine this one was meanwhile.
    """

    code: int
    text: str
    ended: float
    left: list[int]
    slowness: float

    def __str__(self):
        return f"a job that ended with code {self.code}:\n{self.text}"


@pytest.fixture(scope="session")
def launch():
    """A function that runs a program under mpiexec, ends it if it hangs, and removes everything that it leaves."""
    before = _shared_memory()
    yield _launch
    remove(_shared_memory() - before - mapped_files("[0-9]*"))


def mpiexec():
    """Return the path of the mpiexec that belongs to this Python, else of the one on the PATH, or None."""
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def is_openmpi():
    """Return whether the mpiexec of the tests is that of Open MPI."""
    path = mpiexec()
    if path is None:
        return False
    completed = subprocess.run(
        [path, "--version"], env=SETTINGS | os.environ, capture_output=True, text=True, check=False
    )
    return "Open MPI" in completed.stdout


@contextlib.contextmanager
def dozing(seconds):
    """Return a context in which each sleep of launched processes takes up to *seconds* longer.

    Ranks that wait in MPI sleep for 50 µs between two polls. A job that waits for seconds need not poll so often: many
    such jobs at once kept two cores busy, and made each other slow.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *args: None
    prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(round(seconds * 1e9)))
    try:
        yield
    finally:
        prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(0))  # as it was


def _launch(ranks, *arguments, cpu=CPU, python=(sys.executable,), others=list, **environment):
    """Run ``mpiexec -n ranks python *arguments* and return the `Job`; without mpiexec where *ranks* is None.

    A process of the job may use *cpu* seconds of CPU time, and wait for as long as MESHCOMM_TIMEOUT allows.
    *others* returns processes of the job besides those that mpiexec has launched.
    """
    if ranks is not None and mpiexec() is None:
        pytest.skip("there is no mpiexec")
    launcher = () if ranks is None else (mpiexec(), "-n", str(ranks))
    command = [*launcher, *python, *map(str, arguments)]
    mark = f"{os.getpid()}.{time.monotonic_ns()}"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "MESHCOMM_"))}
    process = subprocess.Popen(
        command,
        env=SETTINGS | variables | {MARK: mark, "MESHCOMM_FLIGHTS": "0"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    watch = Watch(lambda: [*_processes(mark), *others()], cpu, waits=float(environment.get("MESHCOMM_TIMEOUT", 0)))
    try:
        text, _ = communicate(process, watch)
    except BaseException as failure:  # an interrupt, too, must not leave ranks behind
        kill([process.pid, *_processes(mark)])
        text, _ = process.communicate()
        if isinstance(failure, Stuck):
            pytest.fail(f"the job hangs: {failure}: {command}\n{text}")
        raise
    ended = time.time()
    return Job(process.returncode, text, ended, _left(mark), watch.slowness)


def tells_once(job, text):
    """Return whether exactly one rank of a command has printed *text*.

    On a machine that is several times slower than an idle one, several may print it: they start seconds apart.
    """
    count = job.text.count(text)
    return count == 1 or (count > 1 and job.slowness > 4)


def kill(processes):
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _left(mark):
    """Return the processes of the job that still run after a moment, and kill them."""
    until(lambda: not _processes(mark), 2.0)
    pids = _processes(mark)
    kill(pids)
    return pids


def _processes(mark):
    """Return the processes that have our mark in their environment."""
    return processes_with(MARK, mark)


def processes_with(name, value):
    """Return the processes whose environment has this variable with this value."""
    text, pids = f"{name}={value}\0".encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text in entry.read_bytes():
                pids.append(int(entry.parent.name))
    return pids


def _shared_memory():
    """Return our files in shared memory."""
    paths = set()
    for path in SHARED_MEMORY.glob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_uid == os.getuid():
                paths.add(path)
    return paths


def remove(files):
    for path in files:
        with contextlib.suppress(OSError):  # another session may have removed it
            path.unlink()


def mapped_files(process):
    """Return the files in shared memory that processes have mapped; *process* is a number or a pattern of it."""
    paths = set()
    for maps in Path("/proc").glob(f"{process}/maps"):
        with contextlib.suppress(OSError):
            paths.update(Path(line.split()[-1]) for line in maps.read_text().splitlines() if "/dev/shm/" in line)
    return paths


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if TESTS / "jobs" in item.path.parents:
            item.add_marker(pytest.mark.jobs)
