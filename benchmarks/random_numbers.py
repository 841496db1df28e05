"""Random numbers: ``python benchmarks/random_numbers.py`` writes build/bench/random_numbers.md.

It takes a minute. Four ranks fill 2**26 doubles: a vector, and a matrix cut by rows and by columns. Beside them run
NumPy's own generators, which fill as many elements on each rank: ``Generator(Philox(seed))``, which has the same bit
generator, and ``default_rng(seed)``, whose PCG64 is faster. Contenders take turns call by call. The time of a call is
that of the slowest rank. The page has the medians and quartiles of the ratios of one round, and the medians of the
times. A row of its own is `permutation`, beside one of NumPy on one rank.
"""

import statistics
from collections.abc import Callable
from math import prod

import numpy as np
from pages import Measured, in_turns, main
from report import number, spread

import meshcomm as mc
from jobs import Setting

RANKS, SIZE, ROWS = 4, 1 << 26, 1 << 22
CALLS = 2
"""Calls of each contender in a round, of which the shortest counts."""

METHODS = ("random", "standard_normal", "normal", "integers", "exponential")
GIVEN = {"integers": (1000,)}


def contenders(comm, method: str) -> dict[str, Callable[[], object]]:
    """Return what is measured of a *method*. Collective."""
    mesh = mc.create_mesh([("x", comm.size)])
    mc.barrier(mesh)  # ranks share the memory of blocks that are made after they first communicate
    ours, given = mc.random.default_rng(1), GIVEN.get(method, ())
    layouts = {
        "vector": ((SIZE,), mc.Layout(["x"], mesh)),
        "rows": ((1 << 13, 1 << 13), mc.Layout(["x", mc.UNSHARDED], mesh)),
        "columns": ((1 << 13, 1 << 13), mc.Layout([mc.UNSHARDED, "x"], mesh)),
    }
    assert all(prod(shape) == SIZE for shape, _ in layouts.values())
    theirs = {
        "Philox": np.random.Generator(np.random.Philox(comm.rank)),
        "default_rng": np.random.default_rng(comm.rank),
    }

    def drawn(shape: tuple[int, ...], layout: mc.Layout) -> Callable[[], object]:
        return lambda: getattr(ours, method)(*given, size=shape, layout=layout)

    def by_numpy(rng: np.random.Generator) -> Callable[[], object]:
        return lambda: getattr(rng, method)(*given, size=SIZE // comm.size)

    return {name: drawn(*how) for name, how in layouts.items()} | {name: by_numpy(rng) for name, rng in theirs.items()}


def permutation(comm) -> dict[str, Callable[[], object]]:
    """Return a permutation of integers, and NumPy's of as many on each rank. Collective."""
    layout = mc.Layout(["x"], mc.create_mesh([("x", comm.size)]))
    ours, theirs = mc.random.default_rng(1), np.random.default_rng(1)
    return {
        "vector": lambda: ours.permutation(ROWS, layout=layout),
        "default_rng": lambda: theirs.permutation(ROWS),
    }


def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each contender in each round, by method. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    found = {name: in_turns(comm, contenders(comm, name), rounds, CALLS, comm.Barrier) for name in METHODS}
    found["permutation"] = in_turns(comm, permutation(comm), rounds, CALLS, comm.Barrier)
    comm.Free()
    return found


def page(measured_of: Measured) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "| | of Philox's time | of default_rng's | meshcomm, ms | Philox, ms | default_rng, ms |",
        "|---" * 6 + "|",
    ]
    for method, times in measured_of(Setting(RANKS, True)).items():
        for name in (name for name in times if name in ("vector", "rows", "columns")):
            ratios, medians = [], [number(statistics.median(times[name]) * 1e3)]
            for other in ("Philox", "default_rng"):
                known = other in times
                both = zip(times[name], times[other], strict=True) if known else ()
                ratios.append(spread([a / b for a, b in both]) if known else "-")
                medians.append(number(statistics.median(times[other]) * 1e3) if known else "-")
            lines.append(f"| {method}, {name} | {' | '.join([*ratios, *medians])} |")
    return lines


if __name__ == "__main__":
    main("random_numbers", __doc__, 5, measured, page)
