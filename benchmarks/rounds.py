"""Jobs that take turns in rounds: what `fft.py`, `contractions.py` and `linalg.py` share. Nothing here uses an MPI.

The program itself is one job, whose ranks run meshcomm. Each peer is a program beside it, with processes of its own,
so that libraries do not disturb each other. A job sleeps while it is another one's turn.
"""

import argparse
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module, util
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from commands import obey

from jobs import LONGEST, Failed, Job, Setting, environment

Runs: TypeAlias = dict[str, Callable[[], object]]
"""What each contender does in a call."""

Times: TypeAlias = dict[str, list[float]]
"""The seconds of each contender in each round."""

OURS = "ours"


class World(Protocol):
    """The processes of a job, and the contenders that they run."""

    rank: int

    def together(self) -> None:
        """Wait for all ranks, asleep."""

    def contenders(self, *case: Any) -> Runs:
        """Return what each contender does in a call; none if the library does not have the case."""

    def ready(self, name: str) -> None:
        """Do before a call of a contender what is not measured."""


class Turns:
    """What the commands do; all ranks get the same. The shortest of some *calls* in a turn counts."""

    def __init__(self, world: World, calls: int) -> None:
        self.world, self.calls, self.runs = world, calls, {}  # type: tuple[World, int, Runs]
        self.order: list[str] = []

    def prepare(self, *case: Any) -> list[str]:
        """Make the contenders of a case, and return their names."""
        self.drop()
        self.runs = self.world.contenders(*case)
        self.order = list(self.runs)
        return self.order

    def turn(self) -> dict[str, float]:
        """Return the seconds of a call of each contender, from when all ranks begin until all have ended."""
        self.order = self.order[1:] + self.order[:1]
        found = {}
        for name in self.order:
            spent = []
            for _ in range(self.calls):
                self.world.ready(name)
                self.world.together()
                begin = time.perf_counter()
                self.runs[name]()
                self.world.together()
                spent.append(time.perf_counter() - begin)
            found[name] = min(spent)
        return found

    def drop(self) -> None:
        """Free the arrays of the current case."""
        self.runs = {}


class Library(ABC):
    """A library with processes of its own: what a `World` has, and how it begins, is checked, and ends."""

    rank: int
    size: int

    def begin(self) -> None:  # noqa: B027
        """Begin to be a rank, once the library is loaded."""

    def end(self) -> None:  # noqa: B027
        """End to be a rank."""

    def ready(self, name: str) -> None:  # noqa: B027
        """Do before a call what is not measured, as in `World`."""

    @abstractmethod
    def together(self) -> None:
        """Wait for all ranks, as in `World`."""

    @abstractmethod
    def contenders(self, *case: Any) -> Runs:
        """Return the library's way, as in `World`."""

    @abstractmethod
    def check(self) -> None:
        """Compare the results of small cases with NumPy's; `AssertionError` if they differ."""


def asleep(ended: Callable[[], bool]) -> None:
    """Wait until *ended*, asleep: with fewer cores than ranks, a rank that polls takes the core of another."""
    while not ended():
        time.sleep(1e-4)


def jax_with(devices: int) -> Any:
    """Return JAX with this many devices of the host and double precision; ``ImportError`` if it is not installed."""
    if util.find_spec("jax") is None:
        raise ImportError("JAX is not installed: pip install jax")
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def serve(load: Callable[[int], Library], calls: int, turns_of: type[Turns] = Turns) -> None:
    """Be a process of a job of the library that *load* loads; with ``--check`` only say if it is absent or wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--pipes", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        library = load(options.ranks)
        library.begin()
        if options.check:
            library.check()
    except (ImportError, OSError, AssertionError) as problem:
        print(problem, flush=True)
        os._exit(1)  # without waiting for other ranks, as the end of MPI does
    if options.pipes:
        turns = turns_of(library, calls)
        obey(turns, library.rank, options.pipes)
        turns.drop()
    library.end()


class Launch(NamedTuple):
    """How a job begins: its command, and the number of its processes."""

    command: list[str]
    processes: int


def launched(setting: Setting, ours: Launch, peers: Mapping[str, Launch]) -> dict[str, Job]:
    """Return the jobs, ours first; say which peers are not here, or give wrong results."""
    env = environment(setting)
    jobs = {OURS: Job(OURS, ours.processes, ours.command, env)}
    for name, (command, processes) in peers.items():
        try:
            checked = subprocess.run(
                [*command, "--check"],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LONGEST,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            skipped(name, str(problem))
            continue
        if checked.returncode:
            skipped(name, checked.stdout or checked.stderr)
        else:
            jobs[name] = Job(name, processes, command, env)
    return jobs


def skipped(name: str, reason: str) -> None:
    """Say why a peer is not measured."""
    print(f"{name} is skipped: {(reason.strip().splitlines() or ['it fails'])[0]}", flush=True)


def asked(jobs: dict[str, Job], command: str, *arguments: object) -> dict[str, Any]:
    """Return the answers of all jobs, one after the other; without a peer that fails, which is not asked again."""
    found = {}
    for name, job in list(jobs.items()):
        try:
            found[name] = job.ask(command, *arguments)
        except Failed as problem:
            if name == OURS:
                raise
            skipped(name, str(problem))
            jobs.pop(name).end()
    return found


def measured(jobs: dict[str, Job], cases: Sequence[tuple[Any, ...]], rounds: int) -> Iterator[tuple[Any, Times]]:
    """Yield each case and the seconds of its contenders, while the jobs still have the case; at last end the jobs."""
    try:
        for case in cases:
            asked(jobs, "prepare", *case)
            times: Times = {}
            for _ in range(rounds + 1):
                jobs = dict([*list(jobs.items())[1:], *list(jobs.items())[:1]])
                for found in asked(jobs, "turn").values():
                    for name, seconds in found.items():
                        times.setdefault(name, []).append(seconds)
            # The first round warms up. A peer that failed in a later one has too few.
            yield case, {name: each[1:] for name, each in times.items() if len(each) == rounds + 1}
            asked(jobs, "drop")
    finally:
        for job in jobs.values():
            job.end()
