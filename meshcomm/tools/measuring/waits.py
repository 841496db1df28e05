"""For whom a rank waited, found when the traces of all ranks are compared: the late sender.

While a program runs, a rank cannot tell in MPI whether it waits or data move. Afterwards it can: of each operation the
trace of every rank says when that rank began it. As long as one that this rank needed had not, this rank waited. What
remains of the operation moves data. Other tools for traces call this the analysis of late senders, or wait states.

A rank may also wait for one that receives what it sends, until that one is ready. That depends on the library of MPI
and on the size of the message, so it is not distinguished, and shown as moving.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from meshcomm.core._json import read
from meshcomm.core.failures.recorder import Arrival
from meshcomm.tools.measuring.events import ARRIVES, NEEDS
from meshcomm.tools.measuring.totals import TraceEvent

_MOVING = "moving"
_MAX_RANKS = 2**24
"""No job has more ranks; a file that names more is no trace."""
_MAX_UNKNOWN = 2**20
"""Operations of a stream that may lack in the trace of a rank between others; a file with more is no trace."""


class _OperationStarts(NamedTuple):
    """When a rank began the operations of a stream, from number *first* on; -1 where that is not known."""

    rank: int
    first: int
    times: "array[int]"

    def time(self, number: int) -> int:
        """Return when it began that operation, or -1."""
        is_known = self.first <= number < self.first + len(self.times)
        return self.times[number - self.first] if is_known else -1


class LastArrival(NamedTuple):
    """The rank that began an operation last, and when: in nanoseconds of the trace."""

    time: int
    rank: int


class Arrivals:
    """When ranks began the operations that others may wait for. ``ValueError`` for what no rank writes.

    `begin` is 0 on the axis of the trace: the times that are added are those of a clock.

    >>> arrivals = Arrivals()
    >>> arrivals.add(0, [(Arrival("0-1 #1", 7, 0), 100)])
    >>> arrivals.add(1, [(Arrival("0-1 #1", 7, 1), 250)])
    >>> arrivals.last([["0-1 #1", 7, "0-1"]])
    LastArrival(time=250, rank=1)
    """

    def __init__(self) -> None:
        self.begin = 0
        self._begun: dict[str, dict[int, _OperationStarts]] = {}
        self._last: dict[tuple[str, int, str], LastArrival | None] = {}

    def add(self, rank: int, arrivals: Iterable[tuple[Arrival, int]]) -> None:
        """Add those of one *rank*, each with its time."""
        of: dict[tuple[str, int], dict[int, int]] = {}
        for arrival, time in arrivals:
            of.setdefault((arrival.stream, arrival.position), {})[arrival.number] = time
        for (stream, position), times in of.items():
            first, last = min(times), max(times)
            if last - first > len(times) + _MAX_UNKNOWN:
                raise ValueError(f"the operations of {stream} have numbers from {first} to {last}")
            row = array("q", (times.get(number, -1) for number in range(first, last + 1)))
            self._begun.setdefault(stream, {})[position] = _OperationStarts(rank, first, row)

    def last(self, needed: object) -> LastArrival | None:
        """Return the last of those that an operation *needed*, as a span says it; None if one is not known."""
        candidates = [self._last_of(stream, number, positions) for stream, number, positions in read(list, needed)]
        late_ranks = [late for late in candidates if late is not None]
        if not late_ranks or len(late_ranks) < len(candidates):
            return None
        last = max(late_ranks)
        return last._replace(time=last.time - self.begin)

    def _last_of(self, stream: str, number: int, positions: str) -> LastArrival | None:
        key = stream, number, positions
        if key in self._last:
            return self._last[key]
        begun, awaited = self._begun.get(stream, {}), _parsed_positions(positions)
        late_ranks = [
            LastArrival(begun[position].time(number), begun[position].rank)
            for position in awaited
            if position in begun
        ]
        late = (
            max(late_ranks)
            if len(late_ranks) == len(awaited) and min(late_ranks, default=LastArrival(-1, -1)).time >= 0
            else None
        )
        if len(awaited) == len(begun):  # all ranks ask the same
            self._last[key] = late
        return late


def waiting_spans(span: TraceEvent, arrivals: Arrivals, uncertain: int) -> Iterator[TraceEvent]:
    """Yield a *span* of a rank, and within it spans of waiting for another rank and of moving data.

    Clocks may differ by *uncertain* nanoseconds: shorter spans are not shown.
    """
    span["args"].pop(ARRIVES, None)
    needed = span["args"].pop(NEEDS, None)
    yield span
    late = arrivals.last(needed) if needed else None
    began = round(span["ts"] * 1000)
    ended = began + round(span["dur"] * 1000)
    if late is None or late.time > ended + uncertain:  # not known, or the clocks differ by more
        return
    until = min(late.time, ended) if late.rank != span["pid"] and late.time > began + uncertain else began
    within = TraceEvent(ph=span["ph"], pid=span["pid"], tid=span["tid"], args={})
    if until > began:
        name = f"waiting for rank {late.rank}"
        yield {"name": name, "cat": "wait", "ts": began / 1000, "dur": (until - began) / 1000, **within}
    if ended > until and span["cat"] == "mpi":
        yield {"name": _MOVING, "cat": _MOVING, "ts": until / 1000, "dur": (ended - until) / 1000, **within}


def is_explained(line: str) -> bool:
    """Return whether a *line* of a trace is about other ranks, so that `waiting_spans` has something to say."""
    return f'"{ARRIVES}":' in line or f'"{NEEDS}":' in line


@lru_cache(1024)
def _parsed_positions(text: str) -> tuple[int, ...]:
    """Return the numbers in a text such as "0-2, 5"."""
    if not re.fullmatch(r"(\d{1,8}(-\d{1,8})?(, |$))*", text):
        raise ValueError(f"{text} names no ranks")
    positions: list[int] = []
    for numbers in filter(None, text.split(", ")):
        first, _, last = numbers.partition("-")
        positions += range(int(first), min(int(last or first), _MAX_RANKS) + 1)
    return tuple(positions)
