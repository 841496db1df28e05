"""What it costs that calls are compared: ``python benchmarks/checks.py`` writes build/bench/checks.md, in a minute.

A relayout that was made before runs in turns as by default and as with ``MESHCOMM_CHECK=1``, beside a bare
``MPI_Alltoallv`` of the same bytes, which packs nothing, and NumPy's copy of a block. A time goes from one barrier of
all ranks to the next. Ratios are those of one round, so that all see the same noise; the page has their medians and
quartiles, and the shortest times.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from report import number, spread

import meshcomm as mc
from jobs import Setting, launcher
from meshcomm.ranks import agreement

HERE = Path(__file__).resolve().parent
SETTINGS = [Setting(ranks, shared) for shared in (False, True) for ranks in (2, 4)]


class Case(NamedTuple):
    """A relayout of float64 from rows to columns."""

    name: str
    rows_per_rank: int
    """Rows of each rank; for a number that is negative, of all ranks."""
    columns: int
    calls: int
    """How many calls a time is of."""

    def shape(self, ranks: int) -> tuple[int, int]:
        """Return the shape of the array."""
        return (self.rows_per_rank * ranks if self.rows_per_rank > 0 else -self.rows_per_rank), self.columns


CASES = [Case("64²", -64, 64, 50), Case("1 MiB per rank", 512, 256, 5)]
Times = dict[str, list[float]]


def relayouts(checked: bool, tensor: mc.DTensor, target: mc.Layout, calls: int) -> None:
    """Relayout *tensor* as often; *checked* is what ``MESHCOMM_CHECK=1`` does, which a process reads once."""
    os.environ["MESHCOMM_CHECK"] = "1" if checked else "0"
    agreement.checks_every_call.cache_clear()
    for _ in range(calls):
        mc.relayout(tensor, target)


def measured(case: Case, rounds: int) -> Times:
    """Return the seconds of a call in each round: of the slowest rank, for each contender. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    mesh = mc.create_mesh([("x", comm.size)])
    rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    tensor = mc.relayout(mc.zeros(case.shape(comm.size), float, columns), rows)
    assert tensor.local is not None
    block = tensor.local.reshape(-1).copy()
    into, share = np.empty_like(block), block.size // comm.size
    counts, offsets = [share] * comm.size, [share * rank for rank in range(comm.size)]

    def alltoallv() -> None:
        for _ in range(case.calls):
            comm.Alltoallv([block, counts, offsets, MPI.DOUBLE], [into, counts, offsets, MPI.DOUBLE])

    def memcpy() -> None:
        for _ in range(case.calls):
            np.copyto(into, block)

    contenders: dict[str, Callable[[], None]] = {
        "default": lambda: relayouts(False, tensor, columns, case.calls),
        "MPI_Alltoallv": alltoallv,
        "MESHCOMM_CHECK=1": lambda: relayouts(True, tensor, columns, case.calls),
        "memcpy": memcpy,
    }
    times = np.empty((rounds + 1, len(contenders)))
    for turn in range(rounds + 1):
        order = np.random.default_rng(turn).permutation(len(contenders))  # alike on all ranks
        for which in order:
            comm.Barrier()
            begin = time.perf_counter()
            list(contenders.values())[which]()
            comm.Barrier()
            times[turn, which] = (time.perf_counter() - begin) / case.calls
    slowest = np.empty_like(times)
    comm.Allreduce(times, slowest, MPI.MAX)
    relayouts(False, tensor, columns, 1)
    mesh.close()
    comm.Free()
    return {
        name: column.tolist() for name, column in zip(contenders, slowest[1:].T, strict=True)
    }  # the first is warm-up


def run(setting: Setting, rounds: int) -> dict[str, Times]:
    """Return what a job of these ranks measures, by case."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "MPIEXEC_TIMEOUT": "900"}
    for name in ("MESHCOMM_CHECK", "MESHCOMM_SHARED_MEMORY"):
        env.pop(name, None)
    if not setting.shared:
        env["MESHCOMM_SHARED_MEMORY"] = "0"
    command = [*launcher(setting.ranks), sys.executable, str(HERE / "checks.py"), "--rounds", str(rounds), "--job"]
    text = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, Times] = json.loads(text)
    return found


def lines(setting: Setting, name: str, times: Times) -> str:
    """Return the row of the page."""

    def over(contender: str, base: str) -> str:
        return spread([a / b for a, b in zip(times[contender], times[base], strict=True)])

    least = [number(min(column) * 1e6) for column in times.values()]
    ratios = over("default", "MPI_Alltoallv"), over("default", "memcpy"), over("MESHCOMM_CHECK=1", "default")
    return f"| {name}, {setting} | {' | '.join((*ratios, *least))} |"


def main() -> None:
    """Launch the jobs and write the page; with ``--job``, be one of their ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--output", type=Path, default=HERE.parent / "build" / "bench", help="directory")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        found = {case.name: measured(case, options.rounds) for case in CASES}
        if mc.create_mesh([("x", -1)]).rank == 0:
            print(json.dumps(found))
        return
    head = ["", "default / MPI_Alltoallv", "default / memcpy", "MESHCOMM_CHECK=1 / default"]
    head += [f"{name}, least µs" for name in ("default", "MPI_Alltoallv", "MESHCOMM_CHECK=1", "memcpy")]
    page = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for setting in SETTINGS:
        page += [lines(setting, name, times) for name, times in run(setting, options.rounds).items()]
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "checks.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n")
    print("\n".join(page))


if __name__ == "__main__":
    main()
