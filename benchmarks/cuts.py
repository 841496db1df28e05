"""Relayouts between cuts of every kind: ``python benchmarks/cuts.py`` writes build/bench/cuts.md.

It takes a minute. Four ranks relayout 4,096 x 4,096 doubles; beside it run NumPy's copy of the target block and, if a
ScaLAPACK is installed (``pip install -e ".[scalapack]"``), its ``pdgemr2d``, where both layouts are block-cyclic. They
take turns call by call. The time of a call is that of the slowest rank. The page has the medians and quartiles of the
ratios of one round, and the medians of the times.
"""

import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from pages import Measured, in_turns, main
from report import number, spread

import meshcomm as mc
from jobs import Setting

RANKS, N = 4, 4096
CALLS = 3
"""Calls of each contender in a round, of which the shortest counts."""
U = mc.UNSHARDED


class Case(NamedTuple):
    """A relayout: the grids, and the specs before and after; a number is a block dealt round, a tuple boundaries."""

    name: str
    before: tuple[tuple[int, int], tuple[object, object]]
    after: tuple[tuple[int, int], tuple[object, object]]


BOUNDARIES = (0, 1000, 1500, 3000, N)
CASES = [
    Case("blocks of 64 → 128 on 2 x 2", ((2, 2), (64, 64)), ((2, 2), (128, 128))),
    Case("usual → blocks of 64 on 2 x 2", ((2, 2), ("x", "y")), ((2, 2), (64, 64))),
    Case("rows → blocks of 64 on 2 x 2", ((2, 2), (("x", "y"), U)), ((2, 2), (64, 64))),
    Case("blocks of 64, 1 x 4 → 4 x 1", ((1, 4), (64, 64)), ((4, 1), (64, 64))),
    Case("blocks of 32 → 96 on 2 x 2", ((2, 2), (32, 32)), ((2, 2), (96, 96))),
    Case("chosen boundaries → usual", ((4, 1), (BOUNDARIES, U)), ((4, 1), ("x", U))),
    Case("usual → single elements on 2 x 2", ((2, 2), ("x", "y")), ((2, 2), (1, 1))),
    Case("single elements → usual on 2 x 2", ((2, 2), (1, 1)), ((2, 2), ("x", "y"))),
    Case("single elements → blocks of 64 on 2 x 2", ((2, 2), (1, 1)), ((2, 2), (64, 64))),
]


def layout(grid: tuple[int, int], specs: tuple[object, object]) -> mc.Layout:
    """Return the layout that a case names."""

    def spec(name: str, given: object) -> object:
        if isinstance(given, int):
            return mc.Cyclic(name, given)
        return mc.Cuts(name, given) if isinstance(given, tuple) and isinstance(given[0], int) else given

    mesh = mc.create_mesh([("x", grid[0]), ("y", grid[1])])
    return mc.Layout([spec(name, given) for name, given in zip("xy", specs, strict=True)], mesh)


def contenders(case: Case) -> dict[str, Callable[[], object]]:
    """Return what is measured. Collective."""
    source, target = layout(*case.before), layout(*case.after)
    tensor, into = mc.zeros((N, N), float, source), mc.zeros((N, N), float, target)
    mc.relayout(tensor, target, out=into)
    assert into.local is not None
    block, copy = np.ones_like(into.local), np.ones_like(into.local)
    found: dict[str, Callable[[], object]] = {
        "relayout": lambda: mc.relayout(tensor, target, out=into),
        "memcpy": lambda: np.copyto(copy, block),
    }
    if all(isinstance(spec, int) for _, specs in (case.before, case.after) for spec in specs):
        try:
            from meshcomm.linalg import scalapack

            scalapack.gemr2d(tensor, target, out=into)
        except (ImportError, mc.MeshcommError):
            return found
        found["pdgemr2d"] = lambda: scalapack.gemr2d(tensor, target, out=into)
    return found


def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each contender in each round, by case. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    in_turns(comm, contenders(CASES[0]), 2, CALLS, comm.Barrier)  # warm-up: the first blocks of a process are slower
    found = {case.name: in_turns(comm, contenders(case), rounds, CALLS, comm.Barrier) for case in CASES}
    comm.Free()
    return found


def row(case: str, times: dict[str, list[float]]) -> str:
    """Return the row of the page."""

    def over(contender: str, base: str) -> str:
        if contender not in times:
            return "-"
        return spread([a / b for a, b in zip(times[contender], times[base], strict=True)])

    medians = [
        number(statistics.median(times[name]) * 1e3) if name in times else "-"
        for name in ("relayout", "memcpy", "pdgemr2d")
    ]
    return f"| {case} | {over('relayout', 'memcpy')} | {over('pdgemr2d', 'relayout')} | {' | '.join(medians)} |"


def page(measured_of: Measured) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "| | relayout / memcpy | pdgemr2d / relayout | relayout, ms | memcpy, ms | pdgemr2d, ms |",
        "|---" * 6 + "|",
    ]
    for setting in (Setting(RANKS, True), Setting(RANKS, False)):
        lines += [row(f"{name}, {setting}", times) for name, times in measured_of(setting).items()]
    return lines


if __name__ == "__main__":
    main("cuts", __doc__, 15, measured, page)
