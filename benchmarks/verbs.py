"""NumPy's verbs on tensors: ``python benchmarks/verbs.py`` writes build/bench/verbs.md.

It takes some minutes. Four ranks have a block of 32 MiB each. Beside a reduction runs NumPy's own on the block of each
rank; beside the sort of 2**24 numbers runs NumPy's sort of all of them on one rank, while the others sleep. They take
turns call by call. The time of a call is that of the slowest rank. The page has medians and quartiles of the ratios of
one round, and the medians of the times. Slices, which send nothing, are measured on one rank, in microseconds.
"""

import statistics
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from mpi4py import MPI
from pages import Measured, in_turns, main
from report import number, spread

import meshcomm as mc
from jobs import Setting

RANKS, N, SORTED = 4, 4096, 2**24
CALLS = 3
"""Calls of each contender in a round, of which the shortest counts."""
REDUCTIONS = ("sum", "mean", "max", "std", "any", "argmax", "nanmax")
Pair: TypeAlias = tuple[Callable[[], object], Callable[[], object]]


def pairs(mesh: mc.Mesh) -> dict[str, Pair]:
    """Return ours and NumPy's for each case. Collective."""
    rows = mc.Layout(["x", mc.UNSHARDED], mesh)
    numbers = np.random.default_rng(mesh.rank)
    tensor = mc.from_local(numbers.random((N // RANKS, N)), rows, (N, N))
    block = tensor.local
    assert block is not None
    found: dict[str, Pair] = {}
    for name in REDUCTIONS:
        function = getattr(np, name)
        found[name] = (lambda f=function: f(tensor), lambda f=function: f(block))
        found[f"{name}, axis 0"] = (lambda f=function: f(tensor, axis=0), lambda f=function: f(block, axis=0))
    line = mc.from_local(numbers.random(SORTED // RANKS), mc.Layout(["x"], mesh), (SORTED,))
    whole = line.to_numpy()
    found[f"sort of {SORTED:,}"] = (lambda: np.sort(line), lambda: np.sort(whole) if mesh.rank == 0 else None)
    return found


def together(comm: MPI.Intracomm) -> None:
    """Wait for all ranks, asleep: with fewer cores than ranks, a rank that polls takes the core of another."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-4)


def measured(rounds: int) -> dict[str, list[list[float]]]:
    """Return the seconds of ours and of NumPy's in each round, by case. Collective."""
    comm, mesh = MPI.COMM_WORLD.Dup(), mc.create_mesh([("x", RANKS)])
    result = {}
    for name, pair in pairs(mesh).items():
        # NumPy's functions on all blocks, plus one small exchange
        ours, numpys = in_turns(
            comm, dict(zip("ab", pair, strict=True)), rounds, CALLS, lambda: together(comm)
        ).values()
        result[name] = [ours, numpys]
    comm.Free()
    return result


def slices() -> dict[str, float]:
    """Return the microseconds of slices on one of four simulated ranks."""

    def program() -> dict[str, float]:
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        tensor = mc.zeros((N, N), "f4", mc.Layout(["x", "y"], mesh))
        indices = {"t[1:-1, 1:-1]": np.s_[1:-1, 1:-1], "t[5]": np.s_[5], "t[::2, ::3]": np.s_[::2, ::3]}
        found = {name: _microseconds(lambda i=index: tensor[i]) for name, index in indices.items()}
        numbers = iter(range(10**6))
        found["t[n:], each n once"] = _microseconds(lambda: tensor[next(numbers) % N :])
        return found

    with mc.simulate(4) as world:
        return world.run(program)[0]


def _microseconds(run: Callable[[], object]) -> float:
    """Return the shortest of some medians."""
    return min(statistics.median(_once(run) for _ in range(300)) for _ in range(5)) * 1e6


def _once(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def page(measured_of: Measured) -> list[str]:
    """Return the lines of the page."""
    lines = ["| | meshcomm / NumPy | meshcomm, ms | NumPy, ms |", "|---" * 4 + "|"]
    for setting in (Setting(RANKS, True), Setting(RANKS, False)):
        for name, (ours, numpys) in measured_of(setting).items():
            ratio = spread([a / b for a, b in zip(ours, numpys, strict=True)])
            medians = " | ".join(number(statistics.median(times) * 1e3) for times in (ours, numpys))
            lines.append(f"| {name}, {setting} | {ratio} | {medians} |")
    return [
        *lines,
        "",
        "| slice | µs |",
        "|---|---|",
        *(f"| {name} | {number(us)} |" for name, us in slices().items()),
    ]


if __name__ == "__main__":
    main("verbs", __doc__, 9, measured, page)
