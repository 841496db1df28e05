"""The clocks of ranks on several hosts, made one.

Ranks on one host read one clock, `time.monotonic_ns`. Those of other hosts began at other times, and go a little
faster or slower. Before and after a trace, the first rank asks one rank of each other host for its time, and takes the
answer that came back fastest: its clock showed that time in the middle of the journey, to half of the journey.
"""

from time import monotonic_ns
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Array
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.hosts import first_on_host, this_host

QUESTIONS = 20
"""Requests for the time of a rank. One answer in twenty finds both ranks and the network idle."""


class Clock(NamedTuple):
    """The difference of the clock of a host and that of the first rank: *offset* nanoseconds at its time *at*."""

    at: int = 0
    offset: int = 0
    uncertain: int = 0
    """Half of the time that the fastest answer took, in nanoseconds."""


def compare_clocks(communicator: Communicator) -> Clock:
    """Return the difference of the clock of this rank's host and that of rank 0. Collective."""
    first = first_on_host(communicator.allgather_json(this_host()))
    clocks_of_ranks = {0: Clock()}
    for rank in sorted({*first} - {0}):
        if communicator.rank == 0:
            clocks_of_ranks[rank] = _ask_clock(communicator, rank)
        elif communicator.rank == rank:
            _answer_clock(communicator)
    clocks = dict(communicator.allgather_json(list(clocks_of_ranks.items()))[0])
    return Clock(*clocks[first[communicator.rank]])


def _ask_clock(communicator: Communicator, rank: int) -> Clock:
    best: Clock | None = None
    theirs = np.zeros(1, dtype=np.int64)
    for _ in range(QUESTIONS):
        begin = monotonic_ns()
        communicator.send(as_bytes(theirs), rank)
        communicator.receive(as_bytes(theirs), rank)
        half = (monotonic_ns() - begin) // 2
        if best is None or half < best.uncertain:
            answer = int(theirs[0])
            best = Clock(answer, answer - begin - half, half)
    assert best is not None
    return best


def _answer_clock(communicator: Communicator) -> None:
    time: Array = np.zeros(1, dtype=np.int64)
    for _ in range(QUESTIONS):
        communicator.receive(as_bytes(time), 0)
        time[0] = monotonic_ns()
        communicator.send(as_bytes(time), 0)


class Aligned(NamedTuple):
    """Times of this rank as the first rank would have read them, between two comparisons of their clocks.

    >>> aligned = Aligned(Clock(1000, 500), Clock(3000, 502))
    >>> aligned.time(1000), aligned.time(2000), aligned.time(3000)
    (500, 1499, 2498)
    """

    before: Clock
    after: Clock

    def time(self, local_time: int) -> int:
        """Return the time on the clock of the first rank when that of this rank shows *local_time*."""
        (at, offset, _), (end, last, _) = self
        drift = (last - offset) * (local_time - at) // (end - at) if end > at else 0
        return local_time - offset - drift
