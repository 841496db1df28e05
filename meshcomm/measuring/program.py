"""Traces of whole programs: with ``MESHCOMM_TRACE=folder`` each rank writes what it did to a file there when it ends.

At the end of a program no rank can know whether the others still come: so ranks do not talk about their traces.
``python -m meshcomm trace FOLDER out.json`` makes one trace of the files. Ranks on one host have one clock. The clocks
of several hosts are compared by the time of day that each host has, so they are as good as that: with NTP, some
milliseconds at worst.
"""

import atexit
import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from meshcomm._arguments import counted, quote
from meshcomm._types import Json
from meshcomm.errors import MeshcommError
from meshcomm.measuring.events import ARRIVES, MOST_EVENTS, Events, document, replacing
from meshcomm.measuring.waits import Arrivals, explained
from meshcomm.ranks import forks
from meshcomm.ranks.abort import comm_world, say
from meshcomm.ranks.hosts import host_name, this_host
from meshcomm.ranks.recording import Arrival, Span, recorder
from meshcomm.ranks.trace_folder import is_trace_possible, trace_folder

_LARGEST_FILE = 2**30
"""Bytes: a larger file is no trace of a rank. An event has some 300 bytes, and a rank keeps a limited number."""


class _Program(Events):
    """The last events of this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MOST_EVENTS)
        self._folder = folder
        self._process = os.getpid()
        self._rank: tuple[int, int] | None = None

    def called(self, span: Span) -> None:
        super().called(span)
        if self._rank is None:
            self._rank = comm_world()  # while MPI can still say
            with contextlib.suppress(OSError):  # what an earlier job has left
                (self._folder / f"rank-{self._rank[0]}.json").unlink()

    def job_ends(self) -> None:
        self.write()

    def write(self) -> None:
        """Write the file of this rank, if it made any call."""
        if self.is_empty or forks.is_child or os.getpid() != self._process or not is_trace_possible():
            return
        rank, size = self._rank or comm_world()
        about: dict[str, Json] = {
            "rank": rank,
            "size": size,
            "host": this_host(),
            "dropped events": self.dropped,
            "clock": [time.monotonic_ns(), time.time_ns()],
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._folder / f"rank-{rank}.json") as file:
                file.writelines(document(self.lines(rank, host_name(), 0, lambda its: its), about))
        except OSError as error:
            say(f"the trace of rank {rank} could not be written: {error}")


def start() -> None:
    """Trace this process from now on to its end, if ``MESHCOMM_TRACE`` asks for it."""
    folder = trace_folder()
    if folder is not None:
        program = _Program(folder)
        recorder.add(program)
        atexit.register(program.write)


class _Told(NamedTuple):
    """The file of a rank: where it is, and what it says about itself."""

    path: Path
    rank: int
    size: int
    host: str
    dropped: int
    clock: tuple[int, int]


def merge(folder: Path, out: Path) -> str:
    """Write one trace of those of all ranks in *folder*, and return in a line what is in it.

    ``MeshcommError`` if there are none, or a file is something else.
    """
    found = sorted((_about(path) for path in folder.glob("rank-*.json")), key=lambda its: its.rank)
    if not found:
        raise MeshcommError(
            f"there are no traces in {folder}; with MESHCOMM_TRACE a rank writes rank-NUMBER.json there"
        )
    sizes = sorted({its.size for its in found})
    if len(sizes) > 1:
        counts = " and ".join(map(str, sizes))
        raise MeshcommError(f"{folder} has traces of several jobs, of {counts} ranks: give each job a folder")
    clocks: dict[str, tuple[int, int]] = {}
    for its in found:  # one for each host, so that nothing moves between its ranks
        clocks.setdefault(its.host, its.clock)
    begin = min(_first(its, clocks) for its in found)
    arrivals = Arrivals()
    for its in found:
        _add(arrivals, its, _shift(its, clocks) - begin)
    dropped = {str(its.rank): its.dropped for its in found if its.dropped}
    with replacing(out) as file:
        file.writelines(document(_merged(found, clocks, begin, arrivals), {"dropped events by rank": dropped}))
    size = max(its.size for its in found)
    text = f"{out} has the traces of {len(found)} of {size} ranks on {counted(len(clocks), 'host')}"
    return text + (f"; {sum(map(int, dropped.values()))} older events were dropped" if dropped else "")


def _shift(its: _Told, clocks: dict[str, tuple[int, int]]) -> int:
    """Return what to add to the times of a rank, in nanoseconds, to have the time of day."""
    monotonic, day = clocks[its.host]
    return day - monotonic


def _first(its: _Told, clocks: dict[str, tuple[int, int]]) -> int:
    starts = [int(event["ts"] * 1000) for event in _events(its.path) if event["ph"] == "X"]
    return min(starts, default=its.clock[0]) + _shift(its, clocks)


def _add(arrivals: Arrivals, its: _Told, shift: int) -> None:
    try:
        arrivals.add(
            its.rank,
            (
                (Arrival(str(stream), int(number), int(position)), round(event["ts"] * 1000) + shift)
                for event in _events(its.path)
                if event["ph"] == "X"
                for stream, number, position in event["args"].get(ARRIVES, ())
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MeshcommError(f"{its.path} is no trace of a rank: {quote(error)}") from None


def _merged(
    found: Sequence[_Told], clocks: dict[str, tuple[int, int]], begin: int, arrivals: Arrivals
) -> Iterator[str]:
    for its in found:
        shift = _shift(its, clocks) - begin
        for event in _events(its.path):
            if event["ph"] == "X":
                event["ts"] = (round(event["ts"] * 1000) + shift) / 1000
                try:
                    yield from map(json.dumps, explained(event, arrivals, 0))
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                    raise MeshcommError(f"{its.path} is no trace of a rank: {quote(error)}") from None
            else:
                yield json.dumps(event)


def _load(path: Path) -> Json:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"it must be a file of at most {_LARGEST_FILE} bytes")
        return json.loads(path.read_text())
    except (ValueError, RecursionError, OSError) as error:
        raise MeshcommError(f"{path} is no trace of a rank: {quote(error)}") from None


def _about(path: Path) -> _Told:
    told = _load(path)
    try:
        about = told["otherData"]
        monotonic, day = map(int, about["clock"])
        rank, size, dropped = (int(about[name]) for name in ("rank", "size", "dropped events"))
        return _Told(path, rank, size, str(about["host"]), dropped, (monotonic, day))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MeshcommError(f"{path} is no trace of a rank: {quote(error)}") from None


def _events(path: Path) -> list[Json]:
    """Return the events of a file that can be shown. ``MeshcommError`` if it is something else."""
    try:
        found = _load(path)["traceEvents"]
        for event in found:
            if event["ph"] == "X":
                float(event["ts"]), float(event["dur"])
        return list(found)
    except (KeyError, TypeError, ValueError) as error:
        raise MeshcommError(f"{path} is no trace of a rank: {quote(error)}") from None
