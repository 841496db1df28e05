"""Fused elementwise functions: ``python benchmarks/fuse.py`` writes build/bench/fuse.md.

It takes some minutes. Functions of arrays of 2**24 doubles run on tensors whose elements are cut, on 1 and 2 ranks, as
they are and fused. Beside them each rank runs NumPy on its block, and numexpr if it is installed, with one thread.
JAX's jit runs in a process of its own, on as many cores and devices as there are ranks, if it is installed.
Contenders take turns call by call, JAX with NumPy on its arrays. The time of a call is that of the slowest rank. The
page has milliseconds, medians of the rounds, and how many times as long as NumPy each takes in the same round.
"""

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Callable
from importlib import util
from typing import Any

import numpy as np
from pages import in_turns, options_of, written
from report import number, spread, table
from rounds import jax_with

from jobs import Setting, measured_by

RANKS, ELEMENTS, CALLS = (1, 2), 2**24, 3

CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "eight operations": (
        lambda np, a, b: np.sqrt(a * a + b * b) * 0.5 + np.maximum(a, b) - a * b,
        "sqrt(a * a + b * b) * 0.5 + where(a > b, a, b) - a * b",
    ),
    "a sum of squares": (lambda np, a, b: ((a - b) ** 2).sum(), "sum((a - b) ** 2)"),
    "where, exp and a cast": (
        lambda np, a, b: np.where(a > 0.5, a * 2, np.exp(-b)).astype(np.float32),
        "where(a > 0.5, a * 2, exp(-b))",
    ),
}
"""A function of a module like NumPy and of two arrays, and the same for numexpr; that has no casts to float32."""

Times = dict[str, dict[str, list[float]]]
"""The seconds of each contender in each round, by case."""


def values(size: int = 1, rank: int = 0) -> np.ndarray:
    """Return two operands: the block of a rank."""
    return np.random.default_rng(rank).random((2, ELEMENTS // size))


def by_numexpr(text: str, a: np.ndarray, b: np.ndarray) -> Callable[[], object] | None:
    """Return a call of numexpr, with one thread; None if it is not installed."""
    if util.find_spec("numexpr") is None:
        return None
    import numexpr

    numexpr.set_num_threads(1)
    return lambda: numexpr.evaluate(text, {"a": a, "b": b})


def ours(rounds: int) -> Times:
    """Return the times of tensors, of NumPy and of numexpr. Collective over all ranks."""
    from mpi4py import MPI

    import meshcomm as mc

    comm = MPI.COMM_WORLD.Dup()
    layout = mc.Layout(["x"], mc.create_mesh([("x", comm.size)]))
    a, b = values(comm.size, comm.rank)
    t, u = (mc.from_local(each, layout) for each in (a, b))
    found = {}
    for case, (function, text) in CASES.items():
        of_numpy = lambda a, b, function=function: function(np, a, b)  # noqa: E731 - a default for each case
        fused, other = mc.fuse(of_numpy), by_numexpr(text, a, b)
        assert np.allclose(fused(t, u).to_numpy(), of_numpy(t, u).to_numpy())
        runs: dict[str, Callable[[], object]] = {
            "NumPy": lambda of_numpy=of_numpy: of_numpy(a, b),
            "tensors": lambda of_numpy=of_numpy: of_numpy(t, u),
            "fused": lambda fused=fused: fused(t, u),
        }
        found[case] = in_turns(comm, runs | ({"numexpr": other} if other else {}), rounds, CALLS, comm.Barrier)
    return found


def jax(ranks: int, rounds: int) -> Times:
    """Return the times of JAX's jit on so many cores, and of NumPy beside it."""
    from mpi4py import MPI

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:ranks])
    jax = jax_with(ranks)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    a, b = values()
    c, d = (jax.device_put(each, cut) for each in (a, b))
    found = {}
    for case, (function, _) in CASES.items():
        compiled = jax.jit(lambda a, b, function=function: function(jax.numpy, a, b))
        assert np.allclose(compiled(c, d), function(np, a, b))
        runs: dict[str, Callable[[], object]] = {
            "NumPy": lambda function=function: function(np, a, b),
            "JAX": lambda compiled=compiled: compiled(c, d).block_until_ready(),
        }
        found[case] = in_turns(MPI.COMM_SELF, runs, rounds, CALLS, lambda: None)
    return found


def rows(ranks: int, given: argparse.Namespace) -> list[list[str]]:
    """Return the rows of the page for so many ranks."""
    jobs: list[Times] = [measured_by("fuse.py", Setting(ranks, True), given.rounds)]
    if util.find_spec("jax") is not None:
        try:
            jobs.append(measured_by("fuse.py", Setting(1, True), given.rounds, "--jax", str(ranks)))
        except subprocess.CalledProcessError as problem:
            print(f"JAX is skipped: {problem}", flush=True)
    found = []
    for case in CASES:
        for times in jobs:
            base = times[case]["NumPy"]
            for name, seconds in times[case].items():
                ratio = spread([own / other for own, other in zip(seconds, base, strict=True)])
                if name != "NumPy" or times is jobs[0]:
                    found.append([case, str(ranks), name, number(statistics.median(seconds) * 1e3), ratio])
    return found


def main() -> None:
    """Launch the jobs and write the page; with ``--job``, be one of their ranks."""
    more: dict[str, dict[str, Any]] = {
        "job": {"action": "store_true", "help": argparse.SUPPRESS},
        "jax": {"type": int, "help": argparse.SUPPRESS},
    }
    given = options_of(__doc__ or "", 9, **more)
    if given.job:
        found = jax(given.jax, given.rounds) if given.jax else ours(given.rounds)
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 0:
            print(json.dumps(found))
        return
    lines = [row for ranks in RANKS for row in rows(ranks, given)]
    written("fuse", [*table(["", "ranks", "", "ms", "times NumPy"], lines)], given)


if __name__ == "__main__":
    main()
