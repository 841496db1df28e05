"""Fourier transforms of sharded arrays: ``python benchmarks/fft.py`` writes build/bench/fft.md.

It takes some minutes. Each case is a transform and back, by 2 and 4 ranks of this node, of 256**3 or 4096**2 elements.
Contenders take turns in rounds; the time of a call is from when all ranks begin until all have ended. They are:

- *meshcomm*: the `forward` and `backward` of a plan, with new results
- *local transforms*: SciPy's on the same blocks, without any exchange; each is one call for a whole block, which makes
  a new array. *in place* is the same with ``overwrite_x=True``: no user can write that for the first transform of data
  that are still needed
- *by hand*: scipy.fft on the block, from_local, and relayout, in the order of the plan
- *PFFT*: mpi4py-fft with FFTW, into the arrays that it keeps, if it is installed
- *JAX*: `shard_map` over as many devices of the host, in one process, if it is installed
- *FFTW-MPI*: on Debian's Open MPI, in place: ``apt install libfftw3-mpi3 openmpi-bin``
- *MKL*: its cluster FFT, in place: ``pip install mkl``

The last three run in processes of their own, which sleep between their turns. Their results are compared with NumPy's
at a small size first. One that is not here is skipped, with the reason. FFTW and MKL have slabs only. All leave the
spectrum as their transform gives it, transposed.

The page has medians and quartiles of the ratios of one round, and the medians of the times.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
from commands import obey
from fft_turns import CALLS, Case, cases
from mpi4py import MPI
from pages import options_of, written
from report import number, spread
from rounds import Launch, Runs, Times, Turns, asleep, launched, measured

import meshcomm as mc
from jobs import Setting, launcher
from meshcomm.fft.steps import LocalStep, RelayoutStep

HERE = Path(__file__).resolve().parent
PEERS = {"JAX": "fft_jax.py", "FFTW-MPI": "fft_fftw.py", "MKL": "fft_mkl.py"}
"""Libraries with jobs of their own, and their programs."""


def contenders(case: Case) -> Runs:
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
        np.ones(step.layout.block_shape(step.shape, mesh.rank), step.dtype) if isinstance(step, LocalStep) else None
        for step in steps
    ]

    def locally(in_place: bool) -> None:
        for step, block in zip(steps, blocks, strict=True):
            if isinstance(step, LocalStep):
                assert block is not None
                scipys(step, block, overwrite_x=in_place and step.transform.change == "complex")

    def by_hand() -> mc.DTensor:
        now = tensor
        for step in steps:
            if isinstance(step, RelayoutStep):
                now = mc.relayout(now, step.layout)
            elif isinstance(step, LocalStep):
                assert now.local is not None
                now = mc.from_local(scipys(step, now.local), step.layout, step.shape_after)
        return now

    found: Runs = {
        "meshcomm": lambda: plan.backward(plan.forward(tensor)),
        "local transforms": lambda: locally(False),
        "in place": lambda: locally(True),
        "by hand": by_hand,
    }
    peer = pfft(case, tensor)
    return found | ({"PFFT": peer} if peer else {})


def scipys(step: LocalStep, block: np.ndarray, **options: bool) -> np.ndarray:
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


class World:
    """The ranks of mpi4py, as in `rounds`."""

    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size

    def together(self) -> None:
        """Wait for all ranks, asleep."""
        asleep(self.comm.Ibarrier().Test)

    def contenders(self, *case: Any) -> Runs:
        """Return what each contender does in a call. Collective."""
        return contenders(Case.of(*case))


def launch(name: str, ranks: int) -> Launch:
    """Return how the processes of a peer begin."""
    command = [sys.executable, str(HERE / PEERS[name]), "--ranks", str(ranks)]
    if name == "JAX":
        return Launch(command, 1)
    if name == "FFTW-MPI":
        mpiexec = ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        return Launch([*mpiexec, *command], ranks)
    return Launch([*launcher(ranks), *command], ranks)


def measured_on(ranks: int, rounds: int) -> Iterator[tuple[Case, Times]]:
    """Yield each case and the seconds of its contenders."""
    ours = Launch([*launcher(ranks), sys.executable, str(HERE / "fft.py")], ranks)
    jobs = launched(Setting(ranks, True), ours, {name: launch(name, ranks) for name in PEERS})
    return measured(jobs, cases(ranks), rounds)


def main() -> None:
    """Launch the jobs and write the page; with ``--pipes``, be a rank of ours."""
    ranks_of, pipes = {"type": int, "nargs": "+", "default": [2, 4]}, {"type": Path, "help": argparse.SUPPRESS}
    options = options_of(__doc__ or "", 5, ranks=ranks_of, pipes=pipes)
    if options.pipes:
        world = World()
        obey(Turns(world, CALLS), world.rank, options.pipes)
        return
    limits = ("local transforms", "in place", "by hand", "PFFT")
    page = [f"| meshcomm / | {' | '.join([*limits, *PEERS])} | meshcomm, ms |"]
    page.append("|---" * (len(limits) + len(PEERS) + 2) + "|")
    for ranks in options.ranks:
        for case, times in measured_on(ranks, options.rounds):
            ours = times["meshcomm"]
            ratios = [
                spread([a / b for a, b in zip(ours, times[other], strict=True)]) if other in times else "-"
                for other in (*limits, *PEERS)
            ]
            page.append(f"| {case}, {ranks} ranks | {' | '.join(ratios)} | {number(statistics.median(ours) * 1e3)} |")
    written("fft", page, options)


if __name__ == "__main__":
    main()
