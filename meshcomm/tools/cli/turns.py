"""Times calls in turns, so that other work on the machine slows down all of them, not only some."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm.core.ranks.communicator import Communicator

Run: TypeAlias = Callable[[], object]

BATCH = 2e-4
"""Seconds. A short call repeats within a turn until it takes about this long."""

MOST_REPEATS = 50
"""A call repeats at most this many times within a turn."""


class Turns:
    """Times *runs*, each between two points of time that a rank reads after all ranks are there.

    The slowest rank counts. None means that this rank has nothing to do. All ranks make the same calls: each method is
    **Collective** over the communicator.
    """

    def __init__(self, communicator: Communicator, runs: Sequence[Run | None]) -> None:
        self._communicator, self._runs = communicator, runs
        self._taken: list[list[int]] = []
        for run in runs:
            self._nanoseconds(run, 1)  # opens communicators, plans, and touches memory for the first time
        first = self._slowest([[min(self._nanoseconds(run, 1) for _ in range(3)) for run in runs]])[0].tolist()
        self._repeats = [int(min(max(1, BATCH * 1e9 / max(1, took)), MOST_REPEATS)) for took in first]
        self.length = sum(took * n for took, n in zip(first, self._repeats, strict=True)) * 1e-9
        """Seconds that a turn takes, about."""

    def __len__(self) -> int:
        """Return how many turns there were."""
        return len(self._taken)

    def take(self) -> None:
        """Time each run once more: every other turn backwards, so that what a call leaves in caches helps no other."""
        order = range(len(self._runs))
        took = [0] * len(order)
        for which in order if len(self) % 2 else reversed(order):
            took[which] = self._nanoseconds(self._runs[which], self._repeats[which])
        self._taken.append(took)

    def seconds(self) -> NDArray[np.float64]:
        """Return what a call of each run took: a row for each turn."""
        nanoseconds = self._slowest(self._taken) // np.array(self._repeats, dtype=np.int64)
        return np.maximum(nanoseconds, 1).astype(np.float64) * 1e-9

    def _slowest(self, taken: list[list[int]]) -> NDArray[np.int64]:
        times = np.array(taken, dtype=np.int64)
        return self._communicator.allreduce_max(times.ravel()).reshape(times.shape)

    def _nanoseconds(self, run: Run | None, repeats: int) -> int:
        """Return the nanoseconds that this rank needs for *repeats* calls; all ranks begin together."""
        self._communicator.allreduce_max(_ZERO)
        begin = time.perf_counter_ns()
        if run is not None:
            for _ in range(repeats):
                run()
        return time.perf_counter_ns() - begin


_ZERO: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
