"""What it costs that calls are compared: ``python benchmarks/checks.py`` writes build/bench/checks.md.

It takes one to four minutes. A relayout that was made before runs as by default, as with ``MESHCOMM_CHECK=1``, and as
it would be if nothing were compared, which no program can have. Beside it run a bare ``MPI_Alltoallv`` of the same
bytes, which packs nothing, and NumPy's copy of a block. They take turns call by call, in
an order that changes, so that all see the same noise; the time of a call is that of the slowest rank. A round has the
shortest of its calls: on a busy machine most others wait for a processor. The page has the ratios of one round, their
medians and quartiles, and the medians of the times.
"""

import os
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import NamedTuple

import numpy as np
from pages import Measured, main, slowest
from report import number, spread

import meshcomm as mc
from jobs import Setting
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks.call_log import PreparedCall
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.core.transport import packed
from meshcomm.core.transport.comparison import Blocks
from meshcomm.core.transport.exchange import ExchangeSpec

SETTINGS = [Setting(ranks, shared) for shared in (False, True) for ranks in (2, 4)]


class Nothing:
    """Instead of a comparison of calls: none."""

    def __init__(self, tensors: Sequence[ExchangeSpec]) -> None:
        self.tensors = list(tensors)

    def begin(self, sources: Blocks, targets: Blocks) -> tuple[Blocks, Blocks, None]:
        """Return the blocks."""
        return sources, targets, None

    def is_complete(self, begun: None) -> bool:
        """Return True."""
        return True

    def check(self, begun: None) -> None:
        """Do nothing."""


class Case(NamedTuple):
    """A relayout of float64 from rows to columns."""

    name: str
    rows_per_rank: int
    """Rows of each rank; for a number that is negative, of all ranks."""
    columns: int

    def shape(self, ranks: int) -> tuple[int, int]:
        """Return the shape of the array."""
        return (self.rows_per_rank * ranks if self.rows_per_rank > 0 else -self.rows_per_rank), self.columns


CASES = [Case("64²", -64, 64), Case("1 MiB per rank", 512, 256)]
CALLS = 25
"""Calls of each contender in a round."""
Times = dict[str, list[float]]


def set_checked(checked: bool) -> None:
    """Do what ``MESHCOMM_CHECK`` says, which a process reads once."""
    os.environ["MESHCOMM_CHECK"] = "1" if checked else "0"
    agreement.checks_every_call.cache_clear()
    agreement.checks_every_call()


def tensor_on(dimension: str, case: Case, ranks: int) -> tuple[mc.DTensor, mc.Layout]:
    """Return a tensor in rows, and the layout in columns, on a mesh with a dimension of this name."""
    mesh = mc.create_mesh([(dimension, ranks)])
    rows, columns = mc.Layout([dimension, mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, dimension], mesh)
    return mc.relayout(mc.zeros(case.shape(ranks), float, columns), rows), columns


@contextmanager
def nothing_compared(mesh: mc.Mesh) -> Iterator[None]:
    """Prepare exchanges in this context that compare no calls; the calls on *mesh* are not noted from now on.

    In shared memory ranks read the digest of their peers with the location of the block: it is always the same one.
    """
    comparing = packed.comparing
    packed.comparing = lambda group, tensors, *others, **more: Nothing(tensors)  # type: ignore[assignment]
    location_in(mesh).rank_set.recall = MethodType(recalled, location_in(mesh).rank_set)  # type: ignore[method-assign]
    try:
        yield
    finally:
        packed.comparing = comparing


def recalled(rank_set: RankSet, key: Hashable) -> PreparedCall | None:
    """Return the call that is kept for *key*, as `RankSet.recall` does, and note nothing."""
    call = rank_set._prepared.get(key)
    if call is not None:
        rank_set._clock += 1
        call.used = rank_set._clock
    return call


def measured(case: Case, rounds: int) -> Times:
    """Return the seconds of a call in each round: of the slowest rank, for each contender. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    tensor, columns = tensor_on("x", case, comm.size)
    uncompared, its_columns = tensor_on("uncompared", case, comm.size)
    with nothing_compared(uncompared.mesh):
        mc.relayout(uncompared, its_columns)
    assert tensor.local is not None
    block = tensor.local.reshape(-1).copy()
    into, share = np.empty_like(block), block.size // comm.size
    counts, offsets = [share] * comm.size, [share * rank for rank in range(comm.size)]
    send, receive = [block, counts, offsets, MPI.DOUBLE], [into, counts, offsets, MPI.DOUBLE]
    contenders: dict[str, Callable[[], object]] = {
        "default": lambda: mc.relayout(tensor, columns),
        "not compared": lambda: mc.relayout(uncompared, its_columns),
        "MPI_Alltoallv": lambda: comm.Alltoallv(send, receive),
        "MESHCOMM_CHECK=1": lambda: mc.relayout(tensor, columns),
        "memcpy": lambda: np.copyto(into, block),
    }
    names, shuffled = list(contenders), np.random.default_rng(1).permutation  # alike on all ranks
    times = np.empty((rounds + 1, CALLS, len(names)))
    for turn in range(rounds + 1):
        for call in range(CALLS):
            for which in shuffled(len(names)):
                set_checked(names[which] == "MESHCOMM_CHECK=1")
                comm.Barrier()
                begin = time.perf_counter()
                contenders[names[which]]()
                times[turn, call, which] = time.perf_counter() - begin
    shortest = slowest(comm, times)[1:].min(axis=1)  # the first round is warm-up
    set_checked(False)
    tensor.mesh.close()
    comm.Free()
    return {name: column.tolist() for name, column in zip(names, shortest.T, strict=True)}


def lines(setting: Setting, name: str, times: Times) -> str:
    """Return the row of the page."""

    def over(contender: str, base: str) -> str:
        return spread([a / b for a, b in zip(times[contender], times[base], strict=True)])

    medians = [number(statistics.median(column) * 1e6) for column in times.values()]
    pairs = zip(times["default"], times["not compared"], strict=True)
    comparison = spread([a - b for a, b in pairs], 1e6)
    ratios = [over("default", "not compared"), over("MESHCOMM_CHECK=1", "default")]
    ratios += [over("default", base) for base in ("MPI_Alltoallv", "memcpy")]
    return f"| {name}, {setting} | {' | '.join((*ratios, comparison, *medians))} |"


def page(measured_of: Measured) -> list[str]:
    """Return the lines of the page."""
    head = ["", "default / not compared", "MESHCOMM_CHECK=1 / default", "default / MPI_Alltoallv", "default / memcpy"]
    head += ["comparison, µs"]
    head += [f"{name}, µs" for name in ("default", "not compared", "MPI_Alltoallv", "MESHCOMM_CHECK=1", "memcpy")]
    rows = [lines(setting, name, times) for setting in SETTINGS for name, times in measured_of(setting).items()]
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows]


if __name__ == "__main__":
    main("checks", __doc__, 40, lambda rounds: {case.name: measured(case, rounds) for case in CASES}, page)
