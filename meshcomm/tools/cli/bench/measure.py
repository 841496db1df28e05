"""Time an operation in turns with its reference, and then check what it makes.

A round runs the operation and its reference, each between two points of time that a rank reads after all ranks are
there. The slowest rank counts. Both see the same other work on the machine, so that their ratio is steadier than
their times.
"""

import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm.core.ranks.communicator import Communicator

Run: TypeAlias = Callable[[], object]

BATCH = 2e-4
"""Seconds. A short call repeats within a round until it takes about this long."""

MOST_REPEATS = 100
"""A call repeats at most this many times within a round."""

BUDGET = 0.35
"""Seconds after which no further round of a size begins, if no number of rounds is asked for."""

FEWEST_ROUNDS, MOST_ROUNDS = 5, 50

_ZERO: NDArray[np.int64] = np.zeros(1, dtype=np.int64)


class Case(NamedTuple):
    """An operation on blocks of one size. All ranks run it together.

    Parameters
    ----------
    block: bytes of the largest block of a rank
    moved: bytes that the operation makes, which the rate counts
    run: the operation
    reference: what it is compared with
    wrong: runs the operation on other values, and returns how many elements are wrong on this rank
    """

    block: int
    moved: int
    run: Run
    reference: Run
    wrong: Callable[[], int]


class Row(NamedTuple):
    """What was measured of one case.

    *seconds* are the lower quartile, the median and the upper quartile of the rounds. *ratio* is the median of the
    ratios to the reference of the same round. *wrong* counts elements on all ranks.
    """

    block: int
    moved: int
    rounds: int
    seconds: tuple[float, float, float]
    gigabytes_per_second: float
    ratio: float
    wrong: int

    @property
    def took(self) -> float:
        """Seconds of a median round: the operation and its reference."""
        return self.seconds[1] * (1 + 1 / self.ratio)


def measured(communicator: Communicator, case: Case, rounds: int | None = None) -> Row:
    """Return what *case* takes in so many *rounds*, by default as many as the budget has time for. Collective."""
    runs = (case.run, case.reference)
    for run in runs:
        _nanoseconds(communicator, run, 1)  # opens communicators, plans, and touches memory for the first time
    first = _slowest(communicator, [[min(_nanoseconds(communicator, run, 1) for _ in range(2)) for run in runs]])[0]
    repeats = [max(1, min(int(BATCH * 1e9 / max(1, took)), MOST_REPEATS)) for took in first.tolist()]
    taken: list[list[int]] = []
    end = time.perf_counter() + BUDGET
    while len(taken) < (rounds or MOST_ROUNDS):
        if rounds is None and len(taken) >= FEWEST_ROUNDS and _any(communicator, time.perf_counter() > end):
            break
        both = [0, 0]
        for which in (0, 1) if len(taken) % 2 else (1, 0):  # what a call leaves in the caches helps neither more often
            both[which] = _nanoseconds(communicator, runs[which], repeats[which])
        taken.append(both)
    seconds = np.maximum(_slowest(communicator, taken) / np.array(repeats), 1) * 1e-9
    low, median, high = np.quantile(seconds[:, 0], [0.25, 0.5, 0.75]).tolist()
    ratio = float(np.median(seconds[:, 0] / seconds[:, 1]))
    wrong = sum(communicator.told(case.wrong()))
    return Row(case.block, case.moved, len(taken), (low, median, high), case.moved / median * 1e-9, ratio, wrong)


def _slowest(communicator: Communicator, taken: list[list[int]]) -> NDArray[np.int64]:
    """Return of each time the largest over the ranks. Collective."""
    times = np.array(taken, dtype=np.int64)
    return communicator.allreduce_max(times.ravel()).reshape(times.shape)


def _any(communicator: Communicator, mine: bool) -> bool:
    """Return whether a rank says so. Collective."""
    return bool(communicator.allreduce_max(np.array([mine], dtype=np.int64))[0])


def _nanoseconds(communicator: Communicator, run: Run, repeats: int) -> int:
    """Return the nanoseconds that this rank needs for *repeats* calls; all ranks begin together. Collective."""
    communicator.allreduce_max(_ZERO)
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        run()
    return time.perf_counter_ns() - begin
