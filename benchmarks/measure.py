"""Measure the cases and write JSON: ``mpiexec -n 4 python benchmarks/measure.py --output four.json``.

`run.py` launches this once per number of ranks, and once with ``--devices 4`` for packages that use threads of one
process as devices. Contenders take turns: in each round every contender runs once, in another order each time, so all
see the same noise. A time goes from one barrier of all ranks to the next.
"""

import argparse
import functools
import json
import os
import platform
import random
import re
import resource
import statistics
import time
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Any, NamedTuple, Protocol

import numpy as np
from cases import MIB, Case, loops, scaling, table
from contender import FRESH, Cannot, Contender, Job, Maker, Peer

import meshcomm as mc

MIN_ROUNDS, MAX_ROUNDS = 5, 200


Entrants = dict[str, tuple[Maker, tuple[str, ...]]]  # name: (how to make the contender, the packages that it needs)


class World(Protocol):
    """The ranks of an MPI job, or the devices of one process, on which contenders run."""

    ranks: int
    rank: int

    @property
    def mpi(self) -> str | None:
        """Name and version of the MPI library, or None."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def gathered(self, value: Any) -> list[Any]:
        """Return the value of every rank."""

    def contenders(self, case: Case) -> Entrants:
        """Return the contenders of a case."""

    def jobs(self, case: Case) -> list[Job]:
        """Return the tensors of a case."""

    def right(self, jobs: list[Job], contender: Contender) -> bool:
        """Run a contender on other values; return whether the result on this rank is right."""


class Ranks:
    """The ranks of this MPI job, and what is measured on them."""

    def __init__(self, peers: Mapping[str, Peer]) -> None:
        from mpi4py.MPI import COMM_WORLD, Get_library_version  # initialises MPI

        self._peers, self._comm = peers, COMM_WORLD.Dup()
        self.ranks, self.rank = self._comm.size, self._comm.rank
        self.mpi = " ".join(re.split(r"[,\n]", Get_library_version())[0].replace("Version:", "").split())
        connect = np.zeros((2, self.ranks), np.uint8)
        self._comm.Alltoall(connect[0], connect[1])  # connect now, not in the first call of the first contender

    def barrier(self) -> None:
        self._comm.Barrier()

    def gathered(self, value: Any) -> list[Any]:
        return self._comm.allgather(value)

    def contenders(self, case: Case) -> Entrants:
        return {name: (peer.make, peer.needs) for name, peer in self._peers.items() if peer.wanted(case)}

    def jobs(self, case: Case) -> list[Job]:
        mesh = mesh_of(case.mesh_dims(self.ranks))
        return [Job(case, mesh, self.rank, seed) for seed in range(case.tensors)]

    def right(self, jobs: list[Job], contender: Contender) -> bool:
        for job, source in zip(jobs, contender.sources, strict=True):
            source[...] = job.held(job.source, job.seed + FRESH)
        self._comm.Barrier()
        blocks = contender.blocks(contender.call())
        expected = (job.held(job.target, job.seed + FRESH) for job in jobs)
        return all(map(np.array_equal, blocks, expected))


@functools.cache
def mesh_of(dims: tuple[tuple[str, int], ...]) -> mc.Mesh:
    """Return the mesh of these dimensions; one for all cases, as a program has."""
    return mc.create_mesh(list(dims))


class Spent(NamedTuple):
    """What a call took; both are those of the rank with the most, once the ranks have compared."""

    seconds: float
    faults: float  # pages that the process touched first


class Measurement:
    """One case: its contenders, the seconds of each, and their results."""

    def __init__(self, world: World, case: Case, entrants: Entrants, missing: dict[str, str]) -> None:
        self.world, self.case = world, case
        self.cannot: dict[str, str] = {}
        self.cold: dict[str, float] = {}
        self.faults: dict[str, list[float]] = {}
        self.right: dict[str, bool] = {}
        self.jobs = world.jobs(case)
        self.primed = False
        self.contenders: dict[str, Contender] = {}
        for name, (make, needs) in entrants.items():
            absent = [missing[package] for package in needs if package in missing]
            if absent:
                self.cannot[name] = absent[0]
            else:
                self._admit(name, make)
        # A short call must not pay for what the other contenders left in the caches.
        self.primed = case.nbytes < 4 * MIB
        self.calls = case.repeat + self.primed

    def _admit(self, name: str, make: Maker) -> None:
        """Make a contender and time its first call; what fails on any rank is left out."""
        made, spent, problem = None, Spent(0.0, 0), None
        try:
            made = make(self.jobs)
            spent = self.timed(made)
        except Cannot as reason:
            problem = str(reason)
        except Exception as error:  # an error of one contender: the others go on
            problem = f"failed: {type(error).__name__}: {error}".splitlines()[0]
        problems = [text for text in self.world.gathered(problem) if text]
        if problems:
            self.cannot[name] = problems[0]
            return
        assert made is not None
        self.contenders[name], self.cold[name] = made, self.worst([spent])[0].seconds

    def timed(self, contender: Contender) -> Spent:
        """Return what a call takes on this rank, between two barriers; a result is gone before the next call."""
        call, repeat = contender.call, self.case.repeat
        if self.primed:
            call()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self.world.barrier()
        begin = time.perf_counter()
        if repeat == 1:
            result = call()
        else:
            for _ in range(repeat):
                result = call()
        self.world.barrier()
        seconds = time.perf_counter() - begin
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        del result
        return Spent(seconds / repeat, faults / repeat)

    def worst(self, mine: list[Spent]) -> list[Spent]:
        """Return of each call the most that any rank spent. All ranks pass as many."""
        by_rank = self.world.gathered(mine)
        return [Spent(*map(max, zip(*call, strict=True))) for call in zip(*by_rank, strict=True)]

    def rounds(self, share: float) -> dict[str, list[float]]:
        """Return the seconds of each contender in each round, and note page faults.

        A contender leaves when it has used its *share* of seconds, but not before MIN_ROUNDS. memcpy stays to the end,
        so that each time has the memcpy of its round.
        """
        times: dict[str, list[float]] = {name: [] for name in self.contenders}
        order = list(self.contenders)
        shuffle = random.Random(1).shuffle  # alike on all ranks
        for turn in range(MAX_ROUNDS):
            shuffle(order)
            spent = self.worst([self.timed(self.contenders[name]) for name in order])
            for name, most in zip(order, spent, strict=True):
                times[name].append(most.seconds)
                self.faults.setdefault(name, []).append(most.faults)
            if turn + 1 >= MIN_ROUNDS:
                order = [name for name in order if name == "memcpy" or sum(times[name]) * self.calls < share]
            if order == ["memcpy"]:
                break
        return times

    def verify(self) -> None:
        """Run each contender once more, on other values, so that results of an earlier call would be wrong."""
        for name, contender in self.contenders.items():
            if contender.verifies:
                self.right[name] = all(self.world.gathered(self.world.right(self.jobs, contender)))

    def run(self, share: float) -> dict[str, Any]:
        """Measure and return everything as values for JSON."""
        times = self.rounds(share)
        self.verify()
        case = self.case._asdict() | {"nbytes": self.case.nbytes}
        found = {"times": times, "faults": self.faults, "cold": self.cold, "right": self.right}
        return {"case": case, **found, "cannot": self.cannot}


def missing_packages(world: World, needed: list[str]) -> dict[str, str]:
    """Return why some rank cannot import a package, for each such package."""
    found = {}
    for package in needed:
        problem = None
        try:
            import_module(package)
        except Exception as error:  # a broken package counts as a missing one
            absent = isinstance(error, ModuleNotFoundError) and error.name == package
            problem = "not installed" if absent else f"cannot be imported: {error}".splitlines()[0]
        problems = [text for text in world.gathered(problem) if text]
        if problems:
            found[package] = problems[0]
    return found


PACKAGES = ("meshcomm", "numpy", "mpi4py", "mpi4py-fft", "heat", "torch", "jax")


def environment(world: World) -> dict[str, Any]:
    """Return the machine and the versions of the packages."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "hosts": len(set(world.gathered(platform.node()))),
        "python": platform.python_version(),
        "mpi": world.mpi,
        "packages": installed,
    }


def processor() -> str:
    """Return the name of the processor, from Linux if possible."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def main() -> None:
    """Measure the cases that the arguments choose, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="file for the figures")
    parser.add_argument("--devices", type=int, help="measure packages whose devices are threads, on this many")
    parser.add_argument("--full", action="store_true", help="all sizes, and more time for each case")
    parser.add_argument(
        "--only",
        choices=["table", "scaling"],
        help="only some cases: all but the sizes, or the sizes and the small relayouts",
    )
    parser.add_argument("--cases", default="", help="regular expression: only cases whose names it finds")
    parser.add_argument("--peers", default="", help="regular expression: only contenders whose names it finds")
    options = parser.parse_args()
    world: World
    if options.devices:
        from devices import Devices

        world = Devices(options.devices)
    else:
        from peers import PEERS

        world = Ranks(PEERS)
    cases = chosen(world, options)
    missing = missing_packages(world, sorted({p for _, e in cases for _, needs in e.values() for p in needs}))
    load, measured = os.getloadavg(), []
    for number, (case, entrants) in enumerate(cases, 1):
        begin = time.monotonic()
        measured.append(Measurement(world, case, entrants, missing).run(share(options.full, case)))
        if world.rank == 0:
            print(progress(world, measured[-1], f"{number} of {len(cases)}", time.monotonic() - begin), flush=True)
    report = {"ranks": world.ranks, "devices": world.mpi is None, "load": [load, os.getloadavg()]}
    report |= {"environment": environment(world), "measured": measured}
    if world.rank == 0:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


def chosen(world: World, options: Any) -> list[tuple[Case, Entrants]]:
    """Return the cases that the arguments choose, and the contenders of each; memcpy is the unit, and always there."""
    cases = table(world.ranks)
    if options.only == "scaling":
        cases = [case for case in cases if case.latency]
    else:
        cases += loops(world.ranks, options.full)
    cases += [] if options.only == "table" else scaling(options.full)
    found = []
    for case in cases:
        entrants = {
            name: entrant
            for name, entrant in world.contenders(case).items()
            if name == "memcpy" or re.search(options.peers, name)
        }
        if len(entrants) > 1 and re.search(options.cases, case.name):
            found.append((case, entrants))
    return found


def share(full: bool, case: Case) -> float:
    """Return the seconds that each contender may use in a case."""
    return (1.5 if full else 0.5) / (2 if case.scaling else 1)


def progress(world: World, measured: dict[str, Any], number: str, seconds: float) -> str:
    """Return a line about a finished case."""
    times: dict[str, list[float]] = measured["times"]
    medians = {name: statistics.median(t) for name, t in times.items()}
    ours = f"meshcomm {medians['meshcomm'] / medians['memcpy']:.2f} memcpys, " if "meshcomm" in medians else ""
    wrong = [name for name, right in measured["right"].items() if not right]
    return (
        f"  {world.ranks} {'devices' if world.mpi is None else 'ranks'}, {number}: {measured['case']['name']}: "
        f"{ours}{len(times['memcpy'])} rounds, {seconds:.1f} s{'; WRONG RESULTS: ' * bool(wrong)}{', '.join(wrong)}"
    )


if __name__ == "__main__":
    main()
