"""What small calls cost: ``python benchmarks/calls.py`` writes build/bench/calls.md.

It takes some minutes. Each call is one that programs for NumPy make, on arrays of 64 × 64 doubles whose rows are cut;
``--side`` gives another length. It runs on tensors and on NumPy's arrays by turns, on 1 and 2 ranks. In jobs of their
own run PyTorch's DTensor, Heat, and JAX, which is one process with a device for each rank and waits for each result.
Peers that are not installed are skipped, and so are calls that they do not have. A time is that of a hundred calls,
from a barrier of all ranks to the next. The page has the microseconds of NumPy's call, and those that each library
takes beyond it: medians and quartiles of the rounds.
"""

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib import util
from timeit import Timer
from types import ModuleType
from typing import Any

import numpy as np
from pages import options_of, written
from report import number, spread, table
from rounds import jax_with

from jobs import Setting, measured_by

CALLS = 100
"""Calls of one time."""

CASES = (
    *("a + b", "a * 2.0", "a += b", "a > 0.5", "np.sqrt(a)", "np.maximum(a, b)", "np.where(a > 0.5, a, b)"),
    *("a[1:-1, 1:-1]", "a[:-2] + a[2:]", "a[:, :-2] + a[:, 2:]", "a[3]", "a[3, 4]", "a[:, None]", "a + a[3]"),
    *("a[1:-1, 1:-1] = b[1:-1, 1:-1]", "a[1:-1, 1:-1] = 0.5", "a[3] = 0.5", "a[3, 4] = 0.5"),
    *("a.sum()", "float(a.sum())", "a.sum(axis=0)", "a.sum(axis=1)", "a - a.mean(axis=0)", "a @ b"),
    *("a.T", "a.reshape(-1)", "a.copy()", "a.astype(np.float32)", "np.zeros_like(a)"),
    *("np.einsum('ij,ij->i', a, b)", "np.roll(a, 1, axis=0)", "np.concatenate([a, b])"),
)
Figures = dict[str, list[list[float]]]
"""The microseconds that a library takes beyond NumPy's in each round, and those of NumPy, by case."""


class Ours:
    """Tensors on the ranks of the job."""

    package, one_process, statement = "meshcomm", False, "{}"
    module: ModuleType = np

    def __init__(self, ranks: int) -> None:
        from mpi4py import MPI

        self.comm, self.rank = MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.rank
        self.make = self.maker(ranks)

    def maker(self, ranks: int) -> Callable[[Any], Any]:
        """Return what makes the library's array of values, with its rows cut."""
        import meshcomm as mc

        rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", ranks)]))
        return lambda values: mc.distribute(values, rows)

    def wait(self, result: Any) -> None:
        """Return when the result is there."""

    def now(self) -> float:
        """Return the time when all ranks are here."""
        self.comm.Barrier()
        return time.perf_counter()


class Torch(Ours):
    """PyTorch's DTensor on gloo."""

    package = "torch"

    def maker(self, ranks: int) -> Callable[[Any], Any]:
        import torch
        from peers import device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        self.module, mesh = torch, device_mesh((("x", ranks),))
        return lambda values: distribute_tensor(torch.from_numpy(values), mesh, [Shard(0)])


class Heat(Ours):
    """Heat's arrays, split along their rows."""

    package = "heat"

    def maker(self, ranks: int) -> Callable[[Any], Any]:
        import heat

        self.module = heat
        return lambda values: heat.array(values, split=0)


class Jax(Ours):
    """JAX in one process, with a device for each rank, call by call."""

    package, one_process, rank = "jax", True, 0
    statement = "wait({})"  # XLA's devices block each other when many sums are in flight

    def __init__(self, ranks: int) -> None:
        self.jax = jax = jax_with(ranks)
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None))
        self.module, self.make = jax.numpy, lambda values: jax.device_put(values, rows)

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def now(self) -> float:
        return time.perf_counter()


LIBRARIES: dict[str, type[Ours]] = {"meshcomm": Ours, "PyTorch": Torch, "Heat": Heat, "JAX": Jax}


def timer(library: Ours, statement: str, module: ModuleType, arrays: list[Any]) -> Timer:
    """Return what times a statement on two arrays of a module."""
    names = {"np": module, "arrays": arrays, "wait": library.wait}
    return Timer(statement, "a, b = arrays", library.now, names)


def measured(library: Ours, side: int, rounds: int) -> Figures:
    """Return what the calls take. Collective over the ranks of the job."""
    found, random = {}, np.random.default_rng(0)
    for case in CASES:
        values = random.random((2, side, side))

        try:
            arrays = [library.make(each.copy()) for each in values]
            ours = timer(library, library.statement.format(case), library.module, arrays)
            ours.timeit(3)
        except Exception:
            if type(library) is Ours:
                raise
            continue  # the peer does not have it
        numpys = timer(library, case, np, list(values))
        times = [[each.timeit(CALLS) * 1e6 / CALLS for each in (ours, numpys)] for _ in range(rounds)]
        found[case] = [[ours - numpys, numpys] for ours, numpys in times]
    return found


def job(library: str, ranks: int, given: argparse.Namespace) -> Figures:
    """Return what the ranks of a job have measured; nothing of a peer that is absent or fails."""
    kind = LIBRARIES[library]
    if util.find_spec(kind.package) is None:
        print(f"{library} is skipped: it is not installed", flush=True)
        return {}
    more = ("--library", library, "--ranks", str(ranks), "--side", str(given.side))
    try:
        found: Figures = measured_by("calls.py", Setting(1 if kind.one_process else ranks, True), given.rounds, *more)
    except subprocess.CalledProcessError as problem:
        if kind is Ours:
            raise
        print(f"{library} is skipped: {problem}", flush=True)
        return {}
    return found


def options() -> argparse.Namespace:
    """Return the options of the command."""
    more: dict[str, dict[str, Any]] = {
        "ranks": {"type": int, "nargs": "+", "default": [1, 2]},
        "side": {"type": int, "default": 64, "help": "rows and columns of the arrays"},
        "library": {"choices": LIBRARIES, "help": "only this one"},
        "job": {"action": "store_true", "help": argparse.SUPPRESS},
    }
    return options_of(__doc__ or "", 9, **more)


def main() -> None:
    """Launch the jobs and write the page; with ``--job``, be one of their ranks."""
    given = options()
    if given.job:
        library = LIBRARIES[given.library](given.ranks[0])
        found = measured(library, given.side, given.rounds)
        if library.rank == 0:
            print(json.dumps(found))
        return
    jobs = {
        f"{library}, {ranks}": job(library, ranks, given)
        for library in ([given.library] if given.library else LIBRARIES)
        for ranks in given.ranks
    }
    jobs = {name: figures for name, figures in jobs.items() if figures}
    rows = []
    for case in CASES:
        of_numpy = [numpys for figures in jobs.values() for _, numpys in figures.get(case, [])]
        cells = [spread([beyond for beyond, _ in each[case]]) if case in each else "-" for each in jobs.values()]
        rows.append([f"`{case}`", number(statistics.median(of_numpy)) if of_numpy else "-", *cells])
    written("calls", [*table(["", "NumPy, µs", *(f"{name}: µs beyond" for name in jobs)], rows)], given)


if __name__ == "__main__":
    main()
