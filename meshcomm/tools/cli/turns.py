"""Time calls in turns, so that other work on the machine slows down all of them, not only some."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm.core.ranks.communicator import Communicator

Run: TypeAlias = Callable[[], object]

MIN_BATCH_SECONDS = 2e-4
"""A short call repeats within a turn until it takes about this long."""

MAX_REPEATS = 50
"""A call repeats at most this many times within a turn."""


class Turns:
    """Times *runs* in turns.

    Each run starts after a barrier and is timed on every rank; the maximum over ranks counts. A run is None on a rank
    that only takes part in the barrier. Each method is **Collective** over the communicator.
    """

    def __init__(self, communicator: Communicator, runs: Sequence[Run | None]) -> None:
        self._communicator, self._runs = communicator, runs
        self._nanoseconds_per_turn: list[list[int]] = []
        for run in runs:
            self._nanoseconds(run, 1)  # opens communicators, plans, and touches memory for the first time
        fastest = self._slowest([[min(self._nanoseconds(run, 1) for _ in range(3)) for run in runs]])[0].tolist()
        self._repeats = [
            int(min(max(1, MIN_BATCH_SECONDS * 1e9 / max(1, nanoseconds)), MAX_REPEATS)) for nanoseconds in fastest
        ]
        self.seconds_per_turn = (
            sum(nanoseconds * repeats for nanoseconds, repeats in zip(fastest, self._repeats, strict=True)) * 1e-9
        )
        """An estimate, from the fastest of three calls of each run."""

    @property
    def num_turns(self) -> int:
        """The number of turns taken."""
        return len(self._nanoseconds_per_turn)

    def take_turn(self) -> None:
        """Time each run once more. Every other turn goes backwards, so no run always profits from another's caches."""
        order = range(len(self._runs))
        nanoseconds = [0] * len(order)
        for index in order if self.num_turns % 2 else reversed(order):
            nanoseconds[index] = self._nanoseconds(self._runs[index], self._repeats[index])
        self._nanoseconds_per_turn.append(nanoseconds)

    def seconds(self) -> NDArray[np.float64]:
        """Return the seconds of a call of each run: an array of shape (turns, runs)."""
        nanoseconds = self._slowest(self._nanoseconds_per_turn) // np.array(self._repeats, dtype=np.int64)
        return np.maximum(nanoseconds, 1).astype(np.float64) * 1e-9

    def _slowest(self, nanoseconds: list[list[int]]) -> NDArray[np.int64]:
        """Return the maximum of each time over the ranks."""
        times = np.array(nanoseconds, dtype=np.int64)
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
