"""How long tests wait: limits that a slow or busy machine does not reach.

Wall-clock time says little about a test on a busy machine, so limits count CPU time. A process that hangs uses CPU
time for ever, as ranks do that wait inside MPI, or it uses none. `communicate` notices both, and a signal ends pytest
itself when one test uses too much. CPU time is in seconds of the machine that the limits were chosen on: a machine
that takes twice as long for `_work` gets twice the limits. A test that checks that something ends soon allows
`slowness` times the time that an idle machine needs.

All such limits are in this file. ``--patience 4`` makes them four times as large.
"""

import faulthandler
import os
import signal
import subprocess
import threading
import time
from functools import cache
from pathlib import Path

import pytest

CPU = 30.0  # seconds of CPU time that one process of a job may use
TEST_CPU = 240.0  # seconds of CPU time that one test may use
IDLE = 60.0  # seconds after which a job that uses no CPU time hangs
WALL = 1800.0  # seconds, in case all else fails; pyproject.toml has the same for a test that uses no CPU time
POLL = 0.25  # seconds between two checks of a job
WORK = 0.02  # seconds that `_work` takes on an idle core of the machine on which the limits were chosen
GLANCE = 0.2  # fraction of `_work` that runs at each check; a small one, as it takes CPU time from the job
HAS_PROC = Path("/proc/self/stat").exists()

_factor = 1.0


class Stuck(Exception):
    """A process makes no progress any more; the text says how that was noticed."""


# -- how fast this machine is -----------------------------------------------------------------------------------------


def _work(fraction=1.0):
    return sum(i * i % 7 for i in range(int(fraction * 220_000)))


@cache
def cpu_factor():
    """Return the CPU time that `_work` takes on this machine, divided by `WORK`, at least 1; times ``--patience``."""
    times = []
    for _ in range(3):
        start = time.process_time()
        _work()
        times.append(time.process_time() - start)
    return _factor * max(1.0, min(times) / WORK)


def slowness(fraction=1.0):
    """Return how many times longer than on an idle machine work takes now, by the wall clock; at least 1.

    With a *fraction* of the work the result varies more, and costs less.
    """
    start = time.monotonic()
    _work(fraction)
    return _factor * max(1.0, (time.monotonic() - start) / (fraction * WORK))


# -- waiting ----------------------------------------------------------------------------------------------------------


def until(condition, seconds):
    """Wait until *condition* returns a true value, and return that; give up after *seconds* times `slowness`."""
    deadline = time.monotonic() + seconds * slowness()
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


class Watch:
    """Watches processes: `look` raises `Stuck` when they hang.

    *processes* is a function that returns the numbers of those that run now; each may use *cpu* seconds. They may wait
    for *waits* seconds, in a loop or without CPU time, and hang after *idle* seconds without it.
    """

    def __init__(self, processes, cpu=CPU, waits=0.0, idle=IDLE):
        self.processes, self.cpu, self.idle = processes, (cpu + waits) * cpu_factor(), idle * _factor + waits
        self._least = idle / 50  # seconds of CPU time that are progress
        self.slowness = slowness()  # the largest that was measured
        self._first_cpu = {}
        self._used = {}
        self._begin = self._last_progress = time.monotonic()
        self._total = 0.0
        self._own_cpu = 0.0  # CPU time of this watch itself

    def look(self):
        start, now = time.thread_time(), time.monotonic()
        for process in self.processes():
            cpu = _cpu_of(process) - (self._own_cpu if process == os.getpid() else 0.0)
            used = cpu - self._first_cpu.setdefault(process, cpu)
            self._used[process] = max(self._used.get(process, 0.0), used)
        total = sum(self._used.values())
        if total > self._total + self._least or not HAS_PROC:
            self._total, self._last_progress = total, now
        self.slowness = max(self.slowness, slowness(GLANCE))
        self._own_cpu += time.thread_time() - start
        if max(self._used.values(), default=0.0) > self.cpu:
            raise Stuck(f"a process used more than {self.cpu:.0f} s of CPU time")
        if now - self._last_progress > self.idle:
            raise Stuck(f"no process used CPU time for {self.idle:.0f} s")
        if now - self._begin > WALL * _factor:
            raise Stuck(f"it took more than {WALL * _factor:.0f} s")


def communicate(process, watch=None):
    """Return the output and the errors of a `subprocess.Popen` when it has ended, or raise `Stuck`."""
    watch = watch or Watch(lambda: [process.pid])
    while True:
        try:
            return process.communicate(timeout=POLL)
        except subprocess.TimeoutExpired:
            watch.look()


def run(command, cpu=CPU, check=False, **options):
    """Run a command as `subprocess.run` does, with its output as text, and kill it if it hangs."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            output, errors = communicate(process, Watch(lambda: [process.pid], cpu))
        except BaseException:
            process.kill()
            raise
    completed = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        completed.check_returncode()
    return completed


def _cpu_of(process):
    """Return the CPU time of a process in seconds, with that of its children that have ended; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class Countdown:
    """Calls a function when this process has used *cpu* seconds, or after `WALL`, unless it is cancelled before.

    It works itself meanwhile, so it uses CPU time as fast as the ranks that this one waits for, even if MPI lets ranks
    sleep while they wait.
    """

    def __init__(self, cpu, function, *args):
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(cpu * cpu_factor(), function, args), daemon=True)
        self._thread.start()

    def cancel(self):
        self._cancelled.set()
        self._thread.join()

    def _wait(self, cpu, function, args):
        used, begin = time.process_time(), time.monotonic()
        while not self._cancelled.wait(0.001):
            _work()
            if time.process_time() - used > cpu or time.monotonic() - begin > WALL * _factor:
                function(*args)
                return


# -- the limit of a test ----------------------------------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption("--patience", type=float, default=1.0, metavar="N", help="make all limits of time N times larger")


def pytest_configure(config):
    global _factor
    _factor = config.getoption("patience")
    # The kernel sends the signal and C answers it: it works whoever holds the GIL. The process ends by the signal.
    stderr = os.fdopen(os.dup(2), "w")
    faulthandler.register(signal.SIGPROF, file=stderr, all_threads=True, chain=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    signal.setitimer(signal.ITIMER_PROF, TEST_CPU * cpu_factor())
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
