"""Fourier transforms of sharded arrays: ``python benchmarks/fft.py`` writes build/bench/fft.md.

It takes some minutes. Each case is a transform and back, by 2 and 4 ranks of this node, of 256**3 or 4096**2 elements.
Contenders take turns call by call; the time of a call is that of the slowest rank. They are:

- *meshcomm*: the `forward` and `backward` of a plan, with new results
- *local transforms*: SciPy's on the same blocks, without any exchange; each is one call for a whole block, which makes
  a new array. *in place* is the same with ``overwrite_x=True``: no user can write that for the first transform of data
  that are still needed
- *by hand*: scipy.fft on the block, from_local, and relayout, in the order of the plan
- *PFFT*: mpi4py-fft with FFTW, into the arrays that it keeps, if it is installed

The page has medians and quartiles of the ratios of one round, and the medians of the times.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.fft
from mpi4py import MPI
from report import number, spread

import meshcomm as mc
from jobs import Setting, measured_by
from meshcomm.fft.steps import Local, Move

HERE = Path(__file__).resolve().parent
CALLS = 2
"""Calls of each contender in a round, of which the shortest counts."""


class Case(NamedTuple):
    """A transform and back."""

    shape: tuple[int, ...]
    dtype: str
    dims: int

    def __str__(self) -> str:
        n = f"{self.shape[0]}{'³' if len(self.shape) == 3 else '²'}"
        return f"{n} {np.dtype(self.dtype).name}, {'slabs' if self.dims == 1 else 'pencils'}"


def cases(ranks: int) -> list[Case]:
    """Return the cases for a number of ranks."""
    found = [Case((256,) * 3, dtype, 1) for dtype in ("c16", "f8", "c8", "f4")]
    found += [Case((4096,) * 2, dtype, 1) for dtype in ("c16", "f8", "c8", "f4")]
    return found + [Case((256,) * 3, dtype, 2) for dtype in ("c16", "f8", "c8", "f4") if ranks == 4]


def contenders(case: Case) -> dict[str, Callable[[], object]]:
    """Return what each contender does in a call. Collective."""
    size = MPI.COMM_WORLD.size
    dims = {"x": size} if case.dims == 1 else {"x": 2, "y": size // 2}
    mesh = mc.create_mesh(list(dims.items()))
    names = list(dims)
    source = mc.Layout([*names, *[mc.UNSHARDED] * (len(case.shape) - len(names))], mesh)
    kind = "fftn" if np.dtype(case.dtype).kind == "c" else "rfftn"
    plan = mc.fft.plan(case.shape, case.dtype, source, kind=kind, machine=mc.machine_of(mesh))
    values = np.random.default_rng(mesh.rank).random(source.block_shape(case.shape, mesh.rank))
    tensor = mc.from_local(values.astype(case.dtype), source, case.shape)
    steps = (*plan.steps, *plan.steps_back)
    blocks = [
        np.ones(step.layout.block_shape(step.shape, mesh.rank), step.dtype) if isinstance(step, Local) else None
        for step in steps
    ]

    def locally(in_place: bool) -> None:
        for step, block in zip(steps, blocks, strict=True):
            if isinstance(step, Local):
                assert block is not None
                scipys(step, block, overwrite_x=in_place and step.transform.change == "complex")

    def by_hand() -> mc.DTensor:
        now = tensor
        for step in steps:
            if isinstance(step, Move):
                now = mc.relayout(now, step.layout)
            elif isinstance(step, Local):
                assert now.local is not None
                now = mc.from_local(scipys(step, now.local), step.layout, step.shape_after)
        return now

    found: dict[str, Callable[[], object]] = {
        "meshcomm": lambda: plan.backward(plan.forward(tensor)),
        "local transforms": lambda: locally(False),
        "in place": lambda: locally(True),
        "by hand": by_hand,
    }
    peer = pfft(case, tensor)
    return found | ({"PFFT": peer} if peer else {})


def scipys(step: Local, block: np.ndarray, **options: bool) -> np.ndarray:
    """Return what one call of SciPy makes of a whole block."""
    transform = step.transform
    made: np.ndarray = getattr(scipy.fft, transform.kind)(block, transform.lengths, transform.axes, **options)
    return made


def pfft(case: Case, tensor: mc.DTensor) -> Callable[[], object] | None:
    """Return the transform and back by mpi4py-fft; None if that is not installed."""
    try:
        from mpi4py_fft import PFFT, newDistArray
    except ImportError:
        return None
    size = MPI.COMM_WORLD.size
    grid = [size] if case.dims == 1 else [2, size // 2]
    fft = PFFT(
        MPI.COMM_WORLD, case.shape, dtype=np.dtype(case.dtype), grid=[*grid, *[1] * (len(case.shape) - len(grid))]
    )
    field, spectrum = newDistArray(fft, False), newDistArray(fft, True)
    field[...] = tensor.local
    return lambda: fft.backward(fft.forward(field, spectrum), field)


def together(comm: MPI.Intracomm) -> None:
    """Wait for all ranks, asleep: with fewer cores than ranks, a rank that polls takes the core of another."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-4)


def measured(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each contender in each round, by case. Collective."""
    comm, result = MPI.COMM_WORLD.Dup(), {}
    for case in cases(comm.size):
        ways = contenders(case)
        times = np.empty((rounds + 1, CALLS, len(ways)))
        order = list(enumerate(ways.values()))
        for turn in range(rounds + 1):
            order = order[1:] + order[:1]
            for which, run in order:
                for call in range(CALLS):
                    together(comm)
                    begin = time.perf_counter()
                    run()
                    together(comm)
                    times[turn, call, which] = time.perf_counter() - begin
        slowest = np.empty_like(times)
        comm.Allreduce(times, slowest, MPI.MAX)
        result[str(case)] = dict(zip(ways, slowest[1:].min(axis=1).T.tolist(), strict=True))
        del ways, order
    comm.Free()
    return result


def main() -> None:
    """Launch the jobs and write the page; with ``--job``, be a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--output", type=Path, default=HERE.parent / "build" / "bench", help="directory")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        found = measured(options.rounds)
        if MPI.COMM_WORLD.rank == 0:
            print(json.dumps(found))
        return
    others = ("local transforms", "in place", "by hand", "PFFT")
    page = [f"| meshcomm / | {' | '.join(others)} | meshcomm, ms |", "|---" * (len(others) + 2) + "|"]
    for ranks in options.ranks:
        setting = Setting(ranks, True)
        for name, times in measured_by("fft.py", setting, options.rounds).items():
            ours = times["meshcomm"]
            ratios = [
                spread([a / b for a, b in zip(ours, times[other], strict=True)]) if other in times else "-"
                for other in others
            ]
            page.append(f"| {name}, {ranks} ranks | {' | '.join(ratios)} | {number(statistics.median(ours) * 1e3)} |")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "fft.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n")
    print("\n".join(page))


if __name__ == "__main__":
    main()
