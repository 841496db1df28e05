"""Contractions of sharded tensors: ``python benchmarks/contractions.py`` writes build/bench/contractions.md.

It takes a quarter of an hour; with ``--quick``, on smaller tensors, one minute. The cases, of doubles, are

- ``a @ b`` of two matrices of 4096 x 4096, for all pairs of layouts: rows, columns, 2-D blocks, and block-cyclic ones
  with blocks of 128 x 128. Rows and columns are cut over a mesh of one dimension if both operands are;
- ``np.einsum("bij,bjk->bik", a, b)`` of 8,192 pairs of matrices of 64 x 64, cut over the pairs;
- ``a.T @ a`` of 400,000 x 64, cut over the rows.

Contenders take turns in rounds; the time of a call is from when all ranks begin until all have ended. They are

- *meshcomm*;
- *local*: NumPy's products without any exchange, on all ranks at once. Of two matrices it is one product with a rank's
  share of the arithmetic, into an array that is there already. Of the others it is NumPy's product of the blocks;
- *JAX*: one process, with as many devices as there are ranks;
- *Heat* and *DTensor* (PyTorch's, on gloo), on as many ranks;
- *pdgemm*: of MKL or another ScaLAPACK, by `meshcomm.linalg.scalapack`. Operands that are not block-cyclic are relaid
  before, and the result after.

A peer that is not installed is skipped, and so are layouts that it does not have. JAX, Heat and DTensor run in
processes of their own, which sleep between their turns. At a small size all results are compared with NumPy's first.

The page has medians and quartiles of the ratios of one round, and the medians of the times. *Memory* is the most that
a rank of meshcomm needs in a call beyond its blocks of the operands and of the result. It is what tracemalloc counts,
so without the buffers of MPI and BLAS.
"""

import argparse
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from contractions_turns import Case, cases
from pages import options_of, written
from report import number, spread
from rounds import OURS, Launch, Times, launched, measured

from jobs import Setting, launcher

HERE = Path(__file__).resolve().parent
PEERS = {"JAX": "contractions_jax.py", "Heat": "contractions_heat.py", "DTensor": "contractions_torch.py"}
"""Libraries with jobs of their own, and their programs."""


def launch(program: str, ranks: int) -> Launch:
    """Return how the processes of a program begin."""
    command = [sys.executable, str(HERE / program), "--ranks", str(ranks)]
    return Launch(command, 1) if program == PEERS["JAX"] else Launch([*launcher(ranks), *command], ranks)


def row(case: Case, setting: Setting, times: Times, peak: int) -> str:
    """Return a row of the page."""

    def over(one: str, other: str) -> str:
        if one not in times:
            return "-"
        return spread([a / b for a, b in zip(times[one], times[other], strict=True)])

    ratios = [over("meshcomm", "local"), *(over(peer, "meshcomm") for peer in (*PEERS, "pdgemm"))]
    medians = [number(statistics.median(times[name]) * 1e3) for name in ("meshcomm", "local")]
    return f"| {case}, {setting} | {' | '.join([*ratios, *medians])} | {number(peak / 2**20)} |"


def options() -> argparse.Namespace:
    """Return the options of the command."""
    more: dict[str, dict[str, Any]] = {
        "ranks": {"type": int, "nargs": "+", "default": [4, 2]},
        "quick": {"action": "store_true", "help": "smaller tensors"},
        "size": {"type": int, "help": "rows of the matrices; 4096, or 1024 with --quick"},
        "cases": {"default": "", "help": "regular expression: only cases with a matching name"},
        "unshared": {"action": "store_true", "help": "meshcomm sends by MPI, without shared memory"},
    }
    return options_of(__doc__ or "", 5, **more)


def main() -> None:
    """Launch the jobs and write the page."""
    given = options()
    every = cases(given.size or (1024 if given.quick else 4096), given.quick)
    chosen = [case for case in every if re.search(given.cases, str(case))]
    ratios = ["meshcomm / local", *(f"{peer} / meshcomm" for peer in (*PEERS, "pdgemm"))]
    columns = ["", *ratios, "meshcomm, ms", "local, ms", "memory, MiB"]
    page = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for ranks in given.ranks:
        setting = Setting(ranks, not given.unshared)
        peers = {name: launch(program, ranks) for name, program in PEERS.items()}
        jobs = launched(setting, launch("contractions_ours.py", ranks), peers)
        for case, times in measured(jobs, chosen, given.rounds):
            page.append(row(case, setting, times, jobs[OURS].ask("memory")))
    written("contractions", page, given)


if __name__ == "__main__":
    main()
