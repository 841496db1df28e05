"""Find for whom a rank waited, by a comparison of the traces of all ranks: the late sender.

While a program runs, a rank in MPI does not know whether it waits or data moves. Afterwards it is known: the trace of
each rank says when that rank began each operation. A rank waited until all ranks that it needed had begun. The rest of
the operation moves data. Other tools for traces call this the analysis of late senders, or of wait states.

A sender may also wait until the receiver is ready. That depends on the MPI library and the size of the message, so it
is not distinguished, and shown as moving.
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
"""The most ranks of a job; a file that names more is no trace."""
_MAX_UNKNOWN = 2**20
"""The most operations of a stream that may be missing between others in a trace; a file with more is no trace."""


class _OperationStarts(NamedTuple):
    """Times at which a rank began the operations of a stream, from number *first* on; -1 if not known."""

    rank: int
    first: int
    times: "array[int]"

    def time(self, number: int) -> int:
        """Return the time at which the rank began operation *number*, or -1."""
        is_known = self.first <= number < self.first + len(self.times)
        return self.times[number - self.first] if is_known else -1


class LastArrival(NamedTuple):
    """The rank that began an operation last, and the time in nanoseconds."""

    time: int
    rank: int


class Arrivals:
    """Times at which ranks began operations that others may wait for. ``ValueError`` for values that no rank writes.

    Times are added as a clock shows them; `begin` is the time on this clock that is 0 in the trace.

    >>> arrivals = Arrivals()
    >>> arrivals.add(0, [(Arrival("0-1 #1", 7, 0), 100)])
    >>> arrivals.add(1, [(Arrival("0-1 #1", 7, 1), 250)])
    >>> arrivals.last([["0-1 #1", 7, "0-1"]])
    LastArrival(time=250, rank=1)
    """

    def __init__(self) -> None:
        self.begin = 0
        self._starts: dict[str, dict[int, _OperationStarts]] = {}
        self._last_arrivals: dict[tuple[str, int, str], LastArrival | None] = {}

    def add(self, rank: int, arrivals: Iterable[tuple[Arrival, int]]) -> None:
        """Add the arrivals of one *rank*, each with its time."""
        times_by_position: dict[tuple[str, int], dict[int, int]] = {}
        for arrival, time in arrivals:
            times_by_position.setdefault((arrival.stream, arrival.position), {})[arrival.number] = time
        for (stream, position), times in times_by_position.items():
            first_number, last_number = min(times), max(times)
            if last_number - first_number > len(times) + _MAX_UNKNOWN:
                raise ValueError(f"the operations of {stream} have numbers from {first_number} to {last_number}")
            starts = array("q", (times.get(number, -1) for number in range(first_number, last_number + 1)))
            self._starts.setdefault(stream, {})[position] = _OperationStarts(rank, first_number, starts)

    def last(self, needed: object) -> LastArrival | None:
        """Return the last arrival of those that a span *needed*, as its argument has them; None if one is unknown."""
        candidates = [self._last_of(stream, number, positions) for stream, number, positions in read(list, needed)]
        known_arrivals = [arrival for arrival in candidates if arrival is not None]
        if not known_arrivals or len(known_arrivals) < len(candidates):
            return None
        last_arrival = max(known_arrivals)
        return last_arrival._replace(time=last_arrival.time - self.begin)

    def _last_of(self, stream: str, number: int, positions: str) -> LastArrival | None:
        key = stream, number, positions
        if key in self._last_arrivals:
            return self._last_arrivals[key]
        starts, awaited_positions = self._starts.get(stream, {}), _parsed_positions(positions)
        arrivals = [
            LastArrival(starts[position].time(number), starts[position].rank)
            for position in awaited_positions
            if position in starts
        ]
        last_arrival = (
            max(arrivals)
            if len(arrivals) == len(awaited_positions) and min(arrivals, default=LastArrival(-1, -1)).time >= 0
            else None
        )
        if len(awaited_positions) == len(starts):  # all ranks ask the same
            self._last_arrivals[key] = last_arrival
        return last_arrival


def waiting_spans(span: TraceEvent, arrivals: Arrivals, uncertainty: int) -> Iterator[TraceEvent]:
    """Yield a *span* of a rank, and within it spans of waiting for another rank and of moving data.

    Clocks may differ by *uncertainty* nanoseconds: shorter waits are not shown.
    """
    span["args"].pop(ARRIVES, None)
    needed = span["args"].pop(NEEDS, None)
    yield span
    last_arrival = arrivals.last(needed) if needed else None
    began = round(span["ts"] * 1000)
    ended = began + round(span["dur"] * 1000)
    if last_arrival is None or last_arrival.time > ended + uncertainty:  # not known, or the clocks differ by more
        return
    wait_end = (
        min(last_arrival.time, ended)
        if last_arrival.rank != span["pid"] and last_arrival.time > began + uncertainty
        else began
    )
    entries = TraceEvent(ph=span["ph"], pid=span["pid"], tid=span["tid"], args={})
    if wait_end > began:
        name = f"waiting for rank {last_arrival.rank}"
        yield {"name": name, "cat": "wait", "ts": began / 1000, "dur": (wait_end - began) / 1000, **entries}
    if ended > wait_end and span["cat"] == "mpi":
        yield {"name": _MOVING, "cat": _MOVING, "ts": wait_end / 1000, "dur": (ended - wait_end) / 1000, **entries}


def is_explained(line: str) -> bool:
    """Return whether a *line* of a trace has arguments for `waiting_spans`."""
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
