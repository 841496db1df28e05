"""Rows taken by an index array: ``python benchmarks/indexing.py`` writes build/bench/indexing.md.

It takes two minutes. Four ranks share 2**24 rows of 64 bytes, and take 2**22 of them by a sharded index. Beside it run
NumPy's take of as many rows from a rank's own block; mpi4py by hand, with lists of indices that it pickles; and Heat,
if it is installed. A permutation of all rows runs beside a relayout of as many bytes in runs of 64. Contenders take
turns call by call. The time of a call is that of the slowest rank. The page has the medians and quartiles of the
ratios of one round, and the medians of the times.
"""

import statistics
from collections.abc import Callable

import numpy as np
from pages import Measured, in_turns, main
from report import number, spread

import meshcomm as mc
from jobs import Setting

RANKS, ROWS, TAKEN, WIDTH = 4, 1 << 24, 1 << 22, 8
CALLS = 2
"""Calls of each contender in a round, of which the shortest counts."""


def by_hand(comm, block: np.ndarray, starts: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return rows as a program without meshcomm gets them: it sends lists of indices, and arrays, pickled."""
    owners = np.searchsorted(starts, indices, side="right") - 1
    order = np.argsort(owners, kind="stable")
    cuts = np.searchsorted(owners[order], np.arange(1, comm.size))
    asked = comm.alltoall([share.tolist() for share in np.split(indices[order], cuts)])
    found = comm.alltoall([block[np.array(share, dtype=np.intp) - starts[comm.rank]] for share in asked])
    rows = np.empty((len(indices), block.shape[1]))
    rows[order] = np.concatenate(found)
    return rows


def with_heat(indices: np.ndarray) -> Callable[[], object] | None:
    """Return Heat's way for a split array and a split index; None if it is not installed."""
    try:
        import heat
    except ImportError:
        return None
    table, index = heat.zeros((ROWS, WIDTH), heat.float64, split=0), heat.array(indices, is_split=0)
    return lambda: table[index]


def contenders(comm, kind: str) -> dict[str, Callable[[], object]]:
    """Return what is measured for random or sorted indices. Collective."""
    mesh = mc.create_mesh([("x", comm.size)])
    mc.barrier(mesh)  # ranks share the memory of blocks that are made after they first communicate
    table = mc.zeros((ROWS, WIDTH), "f8", mc.Layout(["x", mc.UNSHARDED], mesh))
    table.local[:, 0] = np.arange(len(table.local)) + table.slices[0].start
    chosen = np.random.default_rng(1).integers(0, ROWS, TAKEN)
    index = mc.distribute(np.sort(chosen) if kind == "sorted" else chosen, mc.Layout(["x"], mesh))
    assert np.array_equal(table[index].local[:, 0], index.local)
    own = np.sort(index.local % len(table.local)) if kind == "sorted" else index.local % len(table.local)
    starts = np.array(table.layout.cut(0, ROWS).all_starts()[:-1])
    found: dict[str, Callable[[], object]] = {
        "meshcomm": lambda: table[index],
        "take": lambda: table.local.take(own, axis=0),
    }
    if kind == "random":
        found["by hand"] = lambda: by_hand(comm, table.local, starts, index.local)
        heat = with_heat(index.local)
        if heat is not None:
            found["heat"] = heat
    return found


def permutation(comm, kind: str) -> dict[str, Callable[[], object]]:
    """Return a permutation of all rows, and a relayout of as many bytes in runs as long. Collective."""
    mesh = mc.create_mesh([("x", comm.size)])
    mc.barrier(mesh)
    rows = mc.Layout(["x", mc.UNSHARDED], mesh)
    table = mc.zeros((ROWS, WIDTH), "f8", rows)
    order = mc.distribute(np.random.default_rng(2).permutation(ROWS), mc.Layout(["x"], mesh))
    wide = mc.zeros((ROWS // comm.size, WIDTH * comm.size), "f8", rows)
    columns = mc.Layout([mc.UNSHARDED, "x"], mesh)
    return {"meshcomm": lambda: table[order], "take": lambda: mc.relayout(wide, columns)}


def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each contender in each round, by case. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    cases = {"random": contenders, "sorted": contenders, "permutation / relayout": permutation}
    found = {name: in_turns(comm, make(comm, name), rounds, CALLS, comm.Barrier) for name, make in cases.items()}
    comm.Free()
    return found


def page(measured_of: Measured) -> list[str]:
    """Return the lines of the page."""
    lines = ["| | meshcomm / base | others / meshcomm | meshcomm, ms | base, ms |", "|---" * 5 + "|"]
    for setting in (Setting(RANKS, True), Setting(RANKS, False)):
        for name, times in measured_of(setting).items():
            ratio = spread([a / b for a, b in zip(times["meshcomm"], times["take"], strict=True)])
            others = "; ".join(
                f"{other} {spread([a / b for a, b in zip(times[other], times['meshcomm'], strict=True)])}"
                for other in times
                if other not in ("meshcomm", "take")
            )
            medians = [number(statistics.median(times[each]) * 1e3) for each in ("meshcomm", "take")]
            lines.append(f"| {name}, {setting} | {ratio} | {others or '-'} | {' | '.join(medians)} |")
    return lines


if __name__ == "__main__":
    main("indexing", __doc__, 5, measured, page)
