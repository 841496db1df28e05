"""Convert times on the clocks of several hosts to the clock of the first rank.

Ranks on one host read one clock, `time.monotonic_ns`. The clocks of other hosts started at other times, and run a
little faster or slower. Before and after a trace, the first rank asks one rank of each other host for its time
repeatedly, and takes the fastest answer. It assumes that the other clock showed this time halfway between request and
answer; the error is at most half of the time between them.
"""

from time import monotonic_ns
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Array
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.hosts import first_on_host, this_host

QUESTIONS = 20
"""Number of requests for the time of a rank: for at least one answer, both ranks and the network should be idle."""


class Clock(NamedTuple):
    """The difference between the clock of a host and the clock of the first rank, in nanoseconds."""

    at: int = 0
    """The time on the clock of the host when they were compared."""
    offset: int = 0
    """The clock of the host minus the clock of the first rank."""
    uncertainty: int = 0
    """The largest error of the offset: half of the time that the fastest answer took."""


def compare_clocks(communicator: Communicator) -> Clock:
    """Return the difference between the clock of this rank's host and that of rank 0. Collective."""
    first_ranks = first_on_host(communicator.allgather_json(this_host()))
    clocks_of_ranks = {0: Clock()}
    for rank in sorted({*first_ranks} - {0}):
        if communicator.rank == 0:
            clocks_of_ranks[rank] = _ask_clock(communicator, rank)
        elif communicator.rank == rank:
            _answer_clock(communicator)
    clocks = dict(communicator.allgather_json(list(clocks_of_ranks.items()))[0])
    return Clock(*clocks[first_ranks[communicator.rank]])


def _ask_clock(communicator: Communicator, rank: int) -> Clock:
    best_clock: Clock | None = None
    remote_time = np.zeros(1, dtype=np.int64)
    for _ in range(QUESTIONS):
        begin = monotonic_ns()
        communicator.send(as_bytes(remote_time), rank)
        communicator.receive(as_bytes(remote_time), rank)
        half_journey = (monotonic_ns() - begin) // 2
        if best_clock is None or half_journey < best_clock.uncertainty:
            answer = int(remote_time[0])
            best_clock = Clock(answer, answer - begin - half_journey, half_journey)
    assert best_clock is not None
    return best_clock


def _answer_clock(communicator: Communicator) -> None:
    local_time: Array = np.zeros(1, dtype=np.int64)
    for _ in range(QUESTIONS):
        communicator.receive(as_bytes(local_time), 0)
        local_time[0] = monotonic_ns()
        communicator.send(as_bytes(local_time), 0)


class AlignedClock(NamedTuple):
    """Converts times of this rank to the clock of the first rank, from comparisons of the two *before* and *after*.

    >>> aligned = AlignedClock(Clock(1000, 500), Clock(3000, 502))
    >>> aligned.time(1000), aligned.time(2000), aligned.time(3000)
    (500, 1499, 2498)
    """

    before: Clock
    after: Clock

    def time(self, local_time: int) -> int:
        """Return the time on the clock of the first rank when the clock of this rank shows *local_time*."""
        (first_time, first_offset, _), (last_time, last_offset, _) = self
        drift = (
            (last_offset - first_offset) * (local_time - first_time) // (last_time - first_time)
            if last_time > first_time
            else 0
        )
        return local_time - first_offset - drift
