"""Linear algebra of sharded matrices: ``python benchmarks/linalg.py`` writes build/bench/linalg.md.

It takes a quarter of an hour; with ``--quick``, on smaller matrices, two minutes. The cases, of doubles, are

- ``np.linalg.qr`` and ``svd`` of 1,000,000 x 64, cut over the rows;
- ``solve`` with one right side and ``cholesky`` of 4096 x 4096, ``eigh`` and ``svd`` of 2048 x 2048, on a mesh of
  2 x 2 that cuts both axes.

Contenders take turns in rounds; the time of a call is from when all ranks begin until all have ended. They are

- *meshcomm*: with the relayouts to ScaLAPACK's layout and back;
- *local*, of tall matrices: NumPy's function of the block of each rank, on all ranks at once, without an exchange;
- *ScaLAPACK*, of square ones: ``pdgesv``, ``pdpotrf``, ``pdsyevd`` and ``pdgesvd``, of MKL or another library, on
  copies that lie in its layout already, with workspace from an earlier call;
- *NumPy*, of square ones: on one core, while the other ranks sleep;
- *Heat*, on as many ranks; *Dask* and *JAX*: one process, with as many threads or devices as there are ranks.

A peer that is not installed is skipped, and so are functions that it does not have. Peers run in processes of their
own, which sleep between their turns. At a small size all results are compared with NumPy's first. The page has medians
and quartiles of the ratios of one round, and the medians of the times.
"""

import argparse
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from linalg_turns import Case, cases
from pages import options_of, written
from report import number, spread
from rounds import Launch, Times, launched, measured

from jobs import Setting, launcher

HERE = Path(__file__).resolve().parent
PEERS = {"Heat": "linalg_heat.py", "Dask": "linalg_dask.py", "JAX": "linalg_jax.py"}
"""Libraries with jobs of their own, and their programs."""
BESIDE = ("local", "ScaLAPACK", "NumPy")
"""What the ranks of meshcomm run besides."""


def launch(program: str, ranks: int) -> Launch:
    """Return how the processes of a program begin."""
    command = [sys.executable, str(HERE / program), "--ranks", str(ranks)]
    alone = program in (PEERS["Dask"], PEERS["JAX"])
    return Launch(command, 1) if alone else Launch([*launcher(ranks), *command], ranks)


def row(case: Case, setting: Setting, times: Times) -> str:
    """Return a row of the page."""

    def over(one: str, other: str) -> str:
        if one not in times or other not in times:
            return "-"
        return spread([a / b for a, b in zip(times[one], times[other], strict=True)])

    ratios = [*(over("meshcomm", other) for other in BESIDE), *(over(peer, "meshcomm") for peer in PEERS)]
    return f"| {case}, {setting} | {' | '.join(ratios)} | {number(statistics.median(times['meshcomm']) * 1e3)} |"


def options() -> argparse.Namespace:
    """Return the options of the command."""
    more: dict[str, dict[str, Any]] = {
        "ranks": {"type": int, "nargs": "+", "default": [4, 2]},
        "quick": {"action": "store_true", "help": "smaller matrices"},
        "size": {"type": int, "help": "rows of the square matrices; 4096, or 2200 with --quick"},
        "cases": {"default": "", "help": "regular expression: only cases with a matching name"},
        "peers": {"nargs": "*", "choices": [*PEERS], "default": [*PEERS], "help": "only these; none without a name"},
        "unshared": {"action": "store_true", "help": "meshcomm sends by MPI, without shared memory"},
    }
    return options_of(__doc__ or "", 5, **more)


def main() -> None:
    """Launch the jobs and write the page."""
    given = options()
    ratios = [*(f"meshcomm / {other}" for other in BESIDE), *(f"{peer} / meshcomm" for peer in PEERS)]
    columns = ["", *ratios, "meshcomm, ms"]
    page = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for ranks in given.ranks:
        setting = Setting(ranks, not given.unshared)
        size, rows = (2200, 100_000) if given.quick else (4096, 1_000_000)
        every = cases(given.size or size, rows, ranks)
        chosen = [case for case in every if re.search(given.cases, str(case))]
        peers = {name: launch(PEERS[name], ranks) for name in given.peers}
        jobs = launched(setting, launch("linalg_ours.py", ranks), peers)
        page += [row(case, setting, times) for case, times in measured(jobs, chosen, given.rounds) if times]
    written("linalg", page, given)


if __name__ == "__main__":
    main()
