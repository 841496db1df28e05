"""What programs that write a page have in common: options, a job of ranks that measure, calls in turns, the page."""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from jobs import Setting, measured_by

Measured: TypeAlias = Callable[[Setting], Any]
"""From a setting to what its ranks have measured."""


def options_of(about: str, rounds: int, **more: dict[str, Any]) -> argparse.Namespace:
    """Return the options of a program: *rounds*, output and *more*. *about* is its docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    build = Path(__file__).resolve().parent.parent / "build" / "bench"
    parser.add_argument("--output", type=Path, default=build, help="directory")
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()


def main(
    name: str,
    about: str | None,
    rounds: int,
    measured: Callable[[int], Any],
    page: Callable[[Measured], Sequence[str]],
) -> None:
    """Launch the jobs and write the page; with ``--job``, be one of their ranks.

    Parameters
    ----------
    name: of the program and of the page
    about: the docstring of the program
    rounds: how many by default
    measured: what the ranks do for so many rounds; the first one prints the result as JSON
    page: the lines of the page, from what the jobs measure
    """
    options = options_of(about or "", rounds, job={"action": "store_true", "help": argparse.SUPPRESS})
    if options.job:
        from mpi4py import MPI

        found = measured(options.rounds)
        if MPI.COMM_WORLD.rank == 0:
            print(json.dumps(found))
        return
    lines = page(lambda setting: measured_by(f"{name}.py", setting, options.rounds))
    written(name, lines, options)


def written(name: str, lines: Sequence[str], options: argparse.Namespace) -> None:
    """Write a page, and print it below what the machine does."""
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n")
    print("\n".join(lines))


def in_turns(
    comm: Any, runs: Mapping[str, Callable[[], object]], rounds: int, calls: int, wait: Callable[[], object]
) -> dict[str, list[float]]:
    """Return the seconds of the shortest of some *calls* of each contender in each round. Collective over *comm*.

    All ranks *wait* for each other before and after each call: with fewer cores than ranks, a rank alone says nothing.
    """
    times = np.empty((rounds + 1, calls, len(runs)))
    for turn in range(rounds + 1):
        for call in range(calls):
            for which, run in enumerate(runs.values()):
                wait()
                begin = time.perf_counter()
                run()
                wait()
                times[turn, call, which] = time.perf_counter() - begin
    shortest = slowest(comm, times)[1:].min(axis=1)  # the first round is warm-up
    return {name: column.tolist() for name, column in zip(runs, shortest.T, strict=True)}


def slowest(comm: Any, times: np.ndarray) -> np.ndarray:
    """Return of each time that of the slowest rank. Collective over *comm*."""
    from mpi4py import MPI

    found = np.empty_like(times)
    comm.Allreduce(times, found, MPI.MAX)
    return found
