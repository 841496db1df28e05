"""What a call costs that nobody has made before: ``python benchmarks/new_calls.py`` writes build/bench/new_calls.md.

Each call of a case has tensors of another shape, or takes another slice: so no recipe, plan or layout is known. Then
the same calls are made again. The page has the microseconds of a call that is made again, and how much longer a new
one takes: medians and quartiles of the rounds, on 1 and 2 ranks.
"""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from mpi4py import MPI
from pages import Measured, main
from report import spread, table

import meshcomm as mc
from jobs import Setting

CALLS = 50
"""New calls of a round."""

OF_SHAPES: dict[str, Callable[[Any], object]] = {
    "a + a": lambda a: a + a,
    "a[1:]": lambda a: a[1:],
    "a[5]": lambda a: a[5],
    "a.sum()": lambda a: a.sum(),
    "a.sum(axis=0)": lambda a: a.sum(axis=0),
    "a[:-2] + a[2:]": lambda a: a[:-2] + a[2:],
    "np.concatenate([a, a])": lambda a: np.concatenate([a, a]),
    "np.roll(a, 1, axis=0)": lambda a: np.roll(a, 1, axis=0),
    "a[a > 0]": lambda a: a[a > 0],
    "relayout rows to columns": lambda a: mc.relayout(a, mc.Layout([mc.UNSHARDED, "x"], a.mesh)),
    "np.sort(a, axis=0)": lambda a: np.sort(a, axis=0),
    "a[:, 3] @ a": lambda a: a[:, 3] @ a,
}
"""Calls with a tensor of n × 64 doubles, whose rows are cut: n is another number each time."""


def _halve(m: Any, i: int) -> None:
    m[i:, i:] = m[i:, i:] * 0.5


OF_SLICES: dict[str, Callable[[Any, int], object]] = {
    "m[i:] * 2": lambda m, i: m[i:] * 2,
    "m[:, i] @ m[:, i:]": lambda m, i: m[:, i] @ m[:, i:],
    "m[i:, i:] = m[i:, i:] * 0.5": _halve,
}
"""Calls with one tensor of 700 × 700 doubles; i is another number each time."""


def measured(rounds: int) -> dict[str, list[list[float]]]:
    """Return the microseconds of a call in each round: made again, and new beyond that. Collective."""
    comm, lengths, random = MPI.COMM_WORLD, count(300), np.random.default_rng(0)
    rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", comm.size)]))

    def timed(call: Callable[..., object], arguments: list[tuple[Any, ...]]) -> list[float]:
        times = []
        for _ in range(2):  # new, and again
            comm.Barrier()
            begin = time.perf_counter()
            for each in arguments:
                call(*each)
            comm.Barrier()
            times.append((time.perf_counter() - begin) * 1e6 / len(arguments))
        return [times[1], times[0] - times[1]]

    large = mc.distribute(random.random((700, 700)), rows)
    found: dict[str, list[list[float]]] = {name: [] for name in (*OF_SHAPES, *OF_SLICES)}
    for turn in range(rounds):
        for name, call in OF_SHAPES.items():
            shapes = [(next(lengths), 64) for _ in range(CALLS)]
            found[name].append(timed(call, [(mc.distribute(random.random(shape) - 0.5, rows),) for shape in shapes]))
        for name, of_slice in OF_SLICES.items():
            first = turn * CALLS % 600
            found[name].append(timed(of_slice, [(large, first + i) for i in range(CALLS)]))
    return found


def page(measure: Measured) -> Sequence[str]:
    """Return the lines of the page."""
    jobs = {f"{ranks} rank{'s'[: ranks - 1]}": measure(Setting(ranks, True)) for ranks in (1, 2)}
    heads = [f"{name}: {what}, µs" for name in jobs for what in ("again", "new beyond it")]
    rows = [
        [
            f"`{case}`",
            *(spread([times[which] for times in figures[case]]) for figures in jobs.values() for which in (0, 1)),
        ]
        for case in (*OF_SHAPES, *OF_SLICES)
    ]
    return [*table(["", *heads], rows)]


if __name__ == "__main__":
    main("new_calls", __doc__, 5, measured, page)
