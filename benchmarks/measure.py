"""Measures the cases and writes JSON: ``mpiexec -n 4 python benchmarks/measure.py --output four.json``.

`run.py` starts this once per number of ranks, and once with ``--devices 4`` for packages whose devices are threads of
one process. Contenders take turns: in each round every one of them runs once, in another order each time, so that all
see the same noise. A time is that from one barrier to the next, in which all ranks run.
"""

import argparse
import functools
import json
import os
import platform
import random
import re
import statistics
import time
from importlib import import_module, metadata
from typing import Any, Protocol

import numpy as np

import meshcomm as mc
from cases import Case, scaling, table
from contender import FRESH, Cannot, Contender, Job, Maker

MIN_ROUNDS, MAX_ROUNDS = 5, 200


class World(Protocol):
    """Where contenders run: the ranks of an MPI job, or the devices of one process."""

    ranks: int
    rank: int
    mpi: str | None

    def barrier(self) -> None:
        """Wait for all ranks."""

    def gathered(self, value: Any) -> list[Any]:
        """Return the value of every rank."""

    def contenders(self, case: Case) -> dict[str, tuple[Maker, tuple[str, ...]]]:
        """Return what is measured for a case, and the packages that each needs."""

    def jobs(self, case: Case) -> list[Job]:
        """Return the tensors of a case."""

    def right(self, jobs: list[Job], contender: Contender) -> bool:
        """Run a contender on other values; return whether what this rank gets is right."""


class Ranks:
    """The ranks of this MPI job."""

    def __init__(self) -> None:
        import peers

        self._peers, self._comm = peers.PEERS, peers.COMM
        self.ranks, self.rank = self._comm.size, self._comm.rank
        self.mpi = re.split(r"[,\n]", peers.MPI.Get_library_version())[0].replace("\t", " ").strip()
        connect = np.zeros((2, self.ranks), np.uint8)
        self._comm.Alltoall(connect[0], connect[1])  # now, not in the first call of the first contender

    def barrier(self) -> None:
        self._comm.Barrier()

    def gathered(self, value: Any) -> list[Any]:
        return self._comm.allgather(value)

    def contenders(self, case: Case) -> dict[str, tuple[Maker, tuple[str, ...]]]:
        return {name: (peer.make, peer.needs) for name, peer in self._peers.items() if peer.wanted(case)}

    def jobs(self, case: Case) -> list[Job]:
        mesh = mesh_of(case.mesh_dims(self.ranks))
        return [Job(case, mesh, self.rank, seed) for seed in range(case.count)]

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


class Measurement:
    """One case: who takes part, the seconds of each, and what was found out on the way."""

    def __init__(self, world: World, case: Case, missing: dict[str, str]) -> None:
        self.world, self.case = world, case
        self.cannot: dict[str, str] = {}
        self.cold: dict[str, float] = {}
        self.right: dict[str, bool] = {}
        self.jobs = world.jobs(case)
        self.contenders: dict[str, Contender] = {}
        for name, (make, needs) in world.contenders(case).items():
            absent = [missing[package] for package in needs if package in missing]
            if absent:
                self.cannot[name] = absent[0]
            else:
                self._admit(name, make)

    def _admit(self, name: str, make: Maker) -> None:
        """Make a contender and time its first call; what fails on any rank takes no part."""
        made, seconds, problem = None, 0.0, None
        try:
            made = make(self.jobs)
            seconds = self.timed(made)
        except Cannot as reason:
            problem = f"cannot: {reason}"
        except Exception as error:  # a peer's own: the others go on
            problem = f"failed: {type(error).__name__}: {error}".splitlines()[0]
        problems = [text for text in self.world.gathered(problem) if text]
        if problems:
            self.cannot[name] = problems[0]
            return
        assert made is not None
        self.contenders[name], self.cold[name] = made, max(self.world.gathered(seconds))

    def timed(self, contender: Contender) -> float:
        """Return the seconds per call between two barriers; the result is gone before the next call."""
        call, repeat = contender.call, self.case.repeat
        self.world.barrier()
        begin = time.perf_counter()
        if repeat == 1:
            result = call()
        else:
            for _ in range(repeat):
                result = call()
        self.world.barrier()
        seconds = time.perf_counter() - begin
        del result
        return seconds / repeat

    def rounds(self, budget: float) -> dict[str, list[float]]:
        """Return the seconds of each contender in each round, as many as fit into *budget* seconds."""
        times: dict[str, list[float]] = {name: [] for name in self.contenders}
        order, end = list(self.contenders), time.monotonic() + budget
        shuffle = random.Random(1).shuffle  # alike on all ranks
        for turn in range(MAX_ROUNDS):
            if turn >= MIN_ROUNDS and self.world.gathered(time.monotonic() > end)[0]:
                break
            shuffle(order)
            for name in order:
                times[name].append(self.timed(self.contenders[name]))
        by_rank = self.world.gathered(times)
        return {name: [max(turn) for turn in zip(*(t[name] for t in by_rank), strict=True)] for name in times}

    def verify(self) -> None:
        """Run each contender once more, on other values: what an earlier call left in memory would be wrong."""
        for name, contender in self.contenders.items():
            if contender.verifies:
                self.right[name] = all(self.world.gathered(self.world.right(self.jobs, contender)))

    def run(self, budget: float) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        times = self.rounds(budget)
        self.verify()
        case = self.case._asdict() | {"nbytes": self.case.nbytes}
        return {"case": case, "times": times, "cold": self.cold, "right": self.right, "cannot": self.cannot}


def missing_packages(world: World, cases: list[Case]) -> dict[str, str]:
    """Return for each package that some rank cannot import why."""
    needed = sorted({p for case in cases for _, needs in world.contenders(case).values() for p in needs})
    found = {}
    for package in needed:
        problem = None
        try:
            import_module(package)
        except Exception as error:  # a package that is broken is no better than none
            absent = isinstance(error, ModuleNotFoundError) and error.name == package
            problem = "not installed" if absent else f"cannot be imported: {error}".splitlines()[0]
        problems = [text for text in world.gathered(problem) if text]
        if problems:
            found[package] = problems[0]
    return found


PACKAGES = ("meshcomm", "numpy", "mpi4py", "mpi4py-fft", "heat", "torch", "jax")


def environment(world: World) -> dict[str, Any]:
    """Return where this was measured, and with what."""
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
        "settings": {name: text for name, text in sorted(os.environ.items()) if SETTING.match(name)},
    }


SETTING = re.compile(r"(OMP_NUM_THREADS|MESHCOMM_|MPIR_CVAR_|OMPI_MCA_|XLA_FLAGS)")


def processor() -> str:
    """Return the processor's name, as Linux tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def main() -> None:
    """Measure what the arguments say, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="file for the figures")
    parser.add_argument("--devices", type=int, help="measure packages whose devices are threads, with so many")
    parser.add_argument("--full", action="store_true", help="all sizes, and more time for each case")
    parser.add_argument("--only", choices=["table", "scaling"], help="half of the cases")
    parser.add_argument("--cases", default="", help="regular expression: only cases whose names it finds")
    options = parser.parse_args()
    world: World
    if options.devices:
        from devices import Devices

        world = Devices(options.devices)
    else:
        world = Ranks()
    cases = chosen(world, options)
    report = {"ranks": world.ranks, "devices": bool(options.devices), "load_before": os.getloadavg()}
    missing = missing_packages(world, cases)
    measured = []
    say = functools.partial(print, flush=True) if world.rank == 0 else lambda *a: None
    for number, case in enumerate(cases, 1):
        begin = time.monotonic()
        measured.append(Measurement(world, case, missing).run(budget(options.full, case)))
        wrong = [name for name, right in measured[-1]["right"].items() if not right]
        say(progress(world, number, len(cases), measured[-1], time.monotonic() - begin))
        if wrong:
            say(f"  WRONG RESULTS: {', '.join(wrong)}")
    report |= {"environment": environment(world), "load_after": os.getloadavg(), "measured": measured}
    if world.rank == 0:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


def chosen(world: World, options: Any) -> list[Case]:
    """Return the cases that the arguments choose."""
    cases: list[Case] = []
    if options.only != "scaling":
        cases += table(world.ranks)
    if options.only != "table":
        cases += scaling(options.full)
    return [case for case in cases if re.search(options.cases, case.name)]


def budget(full: bool, case: Case) -> float:
    """Return the seconds of the rounds of a case."""
    return (10.0 if full else 3.0) / (2 if case.scaling else 1)


def progress(world: World, number: int, of: int, measured: dict[str, Any], seconds: float) -> str:
    """Return a line about a case that is done."""
    times: dict[str, list[float]] = measured["times"]
    ours = ""
    if "meshcomm" in times:
        ours = f"meshcomm takes {statistics.median(times['meshcomm']) / statistics.median(times['memcpy']):.2f} memcpys, "
    rounds, kind = len(next(iter(times.values()), [])), "devices" if world.mpi is None else "ranks"
    name = measured["case"]["name"]
    return f"  {world.ranks} {kind}, {number:2} of {of}: {name}: {ours}{rounds} rounds, {seconds:.1f} s"


if __name__ == "__main__":
    main()
