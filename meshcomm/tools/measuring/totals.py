"""Sums over the spans of a rank: time in calls, waiting, copying and moving data; and the memory of the rank."""

import contextlib
import re
from pathlib import Path
from typing import TypedDict

from meshcomm.core._json import read
from meshcomm.core._types import JsonObject
from meshcomm.tools.measuring.columns import in_columns

MAX_ROWS = 64
"""The most rows of the table. Of more ranks it shows those that waited least: the others wait for them."""

PEAK, SHARE = "VmHWM bytes", "Pss bytes"
"""Peak memory of a rank, with all pages that it shares; and its share of memory now. Keys of `process_memory`."""

_MAX_NUMBER = 2**63
"""Nanoseconds, or bytes: no rank writes as much."""

_CALLS, _WAITING, _COPYING, _MOVING = "in calls", "waiting", "copying", "moving over MPI"
_TIME_OF_KIND = {"call": _CALLS, "wait": _WAITING, "copy": _COPYING, "mpi": _MOVING}


class TraceEvent(TypedDict, total=False):
    """An event in the file of a trace: a span, or metadata of a process or a thread."""

    name: str
    cat: str
    ph: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: JsonObject


def process_memory() -> dict[str, int]:
    """Return the peak memory of this process, and its share of memory now, in bytes, if Linux knows them.

    A page that several processes share counts for each as a fraction (PSS). So the sum over ranks counts it once.
    """
    memory: dict[str, int] = {}
    for name, file in ((PEAK, "status"), (SHARE, "smaps_rollup")):
        with contextlib.suppress(OSError):
            match = re.search(rf"^{name.split()[0]}:\s*(\d+) kB$", Path("/proc/self", file).read_text(), re.MULTILINE)
            memory |= {name: int(match[1]) * 1024} if match else {}
    return memory


class _RankTotals:
    """The sums of one rank, in nanoseconds, and its memory."""

    def __init__(self) -> None:
        self.times = dict.fromkeys(_TIME_OF_KIND.values(), 0)
        self.memory: dict[str, int] = {}
        self._last_end: dict[tuple[int, str], int] = {}

    def add(self, span: TraceEvent) -> None:
        """Add a *span*, unless it lies within another of its kind and thread. Spans come as they began."""
        thread, kind = span["tid"], span["cat"]
        began = round(span["ts"] * 1000)
        ended = began + _check_range(round(span["dur"] * 1000))
        if kind in _TIME_OF_KIND and began >= self._last_end.get((thread, kind), began):
            self._last_end[thread, kind] = ended
            self.times[_TIME_OF_KIND[kind]] += ended - began
            if kind == "wait" and began < self._last_end.get((thread, "mpi"), began):
                self.times[_MOVING] -= ended - began


class Totals:
    """The sums of all ranks whose events are added. ``ValueError`` for what no rank writes.

    >>> totals = Totals()
    >>> for name, began, took in (("call", 0, 9), ("mpi", 1, 7), ("wait", 1, 3)):
    ...     totals.add({"ph": "X", "cat": name, "ts": began, "dur": took, "pid": 5, "tid": 0})
    >>> for name, seconds in totals.by_rank()["5"].items():
    ...     print(name, seconds)
    seconds in calls 9e-06
    seconds waiting 3e-06
    seconds copying 0.0
    seconds moving over MPI 4e-06
    """

    def __init__(self) -> None:
        self._ranks: dict[int, _RankTotals] = {}

    def add(self, event: TraceEvent) -> None:
        """Add an *event* of a trace: a span, or metadata."""
        rank = self._ranks.setdefault(int(event["pid"]), _RankTotals())
        if event["ph"] == "X":
            rank.add(event)
        else:
            args = event["args"]
            rank.memory.update({key: _check_range(int(read(int, args, key))) for key in (PEAK, SHARE) if key in args})

    def by_rank(self) -> dict[str, dict[str, float]]:
        """Return the sums by rank, as they are written to the file of a trace."""
        return {
            str(rank): {**{f"seconds {name}": time / 1e9 for name, time in sums.times.items()}, **sums.memory}
            for rank, sums in sorted(self._ranks.items())
        }

    def table(self) -> str:
        """Return a table as text, with a row for each rank. Of many ranks it has those that waited least."""
        shown_ranks = sorted(self._ranks, key=lambda rank: self._ranks[rank].times[_WAITING])[:MAX_ROWS]
        rows = [("seconds", *_TIME_OF_KIND.values(), "peak MiB", "share MiB")]
        for rank in sorted(shown_ranks):
            sums = self._ranks[rank]
            times = (f"{time / 1e9:.6f}" for time in sums.times.values())
            rows.append((f"rank {rank}", *times, *(_mib_text(sums.memory.get(key)) for key in (PEAK, SHARE))))
        shares = [sums.memory[SHARE] for sums in self._ranks.values() if SHARE in sums.memory]
        if len(shares) == len(self._ranks):
            rows.append(("all ranks", *("" for _ in rows[0][2:]), _mib_text(sum(shares))))
        hidden_count = len(self._ranks) - len(shown_ranks)
        return in_columns(rows) + (
            f"\n{hidden_count} more ranks, which waited longer, are in the file" if hidden_count else ""
        )


def _check_range(number: int) -> int:
    if abs(number) >= _MAX_NUMBER:
        raise ValueError("a duration or a number of bytes that no rank writes")
    return number


def _mib_text(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**20:.1f}"
