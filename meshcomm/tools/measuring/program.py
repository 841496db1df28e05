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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

from meshcomm.core._arguments import counted, quote
from meshcomm.core._files import replacing, resolved
from meshcomm.core._json import read
from meshcomm.core.failures import forks
from meshcomm.core.failures.abort import comm_world, say
from meshcomm.core.failures.launchers import TRACE_FOLDER, folder_in
from meshcomm.core.failures.recorder import Arrival
from meshcomm.core.ranks.hosts import this_host
from meshcomm.core.ranks.recording import Span, recorder
from meshcomm.core.ranks.variables import check_trace_folder
from meshcomm.errors import MeshcommError
from meshcomm.tools.measuring.events import ARRIVES, DEFAULT_MAX_EVENTS, Events, document
from meshcomm.tools.measuring.totals import Totals, TraceEvent
from meshcomm.tools.measuring.waits import Arrivals, waiting_spans

_MAX_VALUES = 2**24
"""Values of JSON in a file: those of an event are some dozen, and each takes up to 72 bytes of memory."""

_MAX_FILE_BYTES = 2**28
"""Bytes: a larger file is no trace of a rank. An event has some 300 bytes, and a rank keeps a limited number."""


class _ProgramTrace(Events):
    """The last events of this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(DEFAULT_MAX_EVENTS)
        self._folder = folder
        self._process = os.getpid()
        self._rank: tuple[int, int] | None = None

    def on_call_end(self, span: Span) -> None:
        super().on_call_end(span)
        if self._rank is None:
            self._rank = comm_world()  # while MPI can still say
            with contextlib.suppress(OSError):  # what an earlier job has left
                (resolved(self._folder) / f"rank-{self._rank[0]}.json").unlink()

    def on_job_end(self) -> None:
        self.write()

    def write(self) -> None:
        """Write the file of this rank, if it made any call."""
        if self.is_empty or forks.is_child or os.getpid() != self._process:
            return
        if (
            folder_in(TRACE_FOLDER) is None or not check_trace_folder()
        ):  # None: who found it wrong has removed the variable
            return
        rank, size = self._rank or comm_world()
        about: _About = {
            "rank": rank,
            "size": size,
            "host": this_host(),
            "dropped events": self.dropped,
            "clock": (time.monotonic_ns(), time.time_ns()),
        }
        try:
            folder = resolved(self._folder)
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / f"rank-{rank}.json") as file:
                file.writelines(
                    document(self.lines(rank, os.uname().nodename, 0, lambda local_time: local_time), about)
                )
        except OSError as error:
            say(f"the trace of rank {rank} could not be written: {error}")


def start() -> None:
    """Trace this process from now on to its end, if ``MESHCOMM_TRACE`` asks for it."""
    folder = folder_in(TRACE_FOLDER)
    if folder is not None:
        program = _ProgramTrace(folder)
        recorder.add(program)
        atexit.register(program.write)


_WRONG = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError)
"""What reading a file raises that no rank has written."""


_About = TypedDict(
    "_About", {"rank": int, "size": int, "host": str, "dropped events": int, "clock": tuple[int, int]}, total=False
)
"""What a rank tells about itself in its file."""


class _RankFile(NamedTuple):
    """The file of a rank: where it is, what it tells, and when its first span began, in the time of day."""

    path: Path
    rank: int
    size: int
    host: str
    dropped: int
    first: int


class _Files:
    """The files of the ranks of a job. Each is read twice: first for what ranks are compared by, then for its spans.

    So memory holds one file, and of each rank the times at which it began what others may wait for.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.clocks: dict[str, tuple[int, int]] = {}
        self.arrivals = Arrivals()
        self.totals = Totals()
        self.files = sorted((self._comparable_file(path) for path in paths), key=lambda file: file.rank)
        self.arrivals.begin = min((file.first for file in self.files), default=0)

    def _comparable_file(self, path: Path) -> _RankFile:
        """Return what the file at *path* tells, and add its arrivals, in the time of day."""
        with _reading_trace(path):
            about, events = _load(path)
            rank, size, dropped = (int(about[name]) for name in ("rank", "size", "dropped events"))
            host, (monotonic, day) = str(about["host"]), map(int, about["clock"])
            self.clocks.setdefault(host, (monotonic, day))  # one for a host, so that nothing moves between its ranks
            shift = self._clock_shift(host)
            spans = [event for event in events if event["ph"] == "X"]
            times = [round(span["ts"] * 1000) + shift for span in spans]
            self.arrivals.add(
                rank,
                (
                    (Arrival(str(stream), int(number), int(position)), time)
                    for span, time in zip(spans, times, strict=True)
                    for stream, number, position in read(list, span["args"].get(ARRIVES, []))
                ),
            )
            return _RankFile(path, rank, size, host, dropped, min(times, default=monotonic + shift))

    def _clock_shift(self, host: str) -> int:
        """Return what to add to the times of a host, in nanoseconds, to have the time of day."""
        monotonic, day = self.clocks[host]
        return day - monotonic

    def lines(self) -> Iterator[str]:
        """Yield the events of all ranks as JSON, from 0 on, and for whom they waited."""
        for file in self.files:
            shift = self._clock_shift(file.host) - self.arrivals.begin
            with _reading_trace(file.path):
                for event in _load(file.path)[1]:
                    if event["ph"] == "X":
                        event["ts"] = (round(event["ts"] * 1000) + shift) / 1000
                    for explained_event in waiting_spans(event, self.arrivals, 0) if event["ph"] == "X" else (event,):
                        self.totals.add(explained_event)
                        yield json.dumps(explained_event)


def merge(folder: Path, out: Path) -> str:
    """Write one trace of those of all ranks in *folder*, and return what is in it: a line, and a table of the ranks.

    ``MeshcommError`` if there are none, or a file is something else.
    """
    files = _Files(sorted(folder.glob("rank-*.json"), key=lambda path: (len(path.name), path.name)))
    files_of_ranks, clocks = files.files, files.clocks
    if not files_of_ranks:
        raise MeshcommError(
            f"there are no traces in {folder}; with MESHCOMM_TRACE a rank writes rank-NUMBER.json there"
        )
    sizes = sorted({file.size for file in files_of_ranks})
    if len(sizes) > 1:
        counts = " and ".join(map(str, sizes))
        raise MeshcommError(f"{folder} has traces of several jobs, of {counts} ranks: give each job a folder")
    dropped = {str(file.rank): file.dropped for file in files_of_ranks if file.dropped}
    with replacing(out) as file:
        file.writelines(document(files.lines(), {"dropped events by rank": dropped}, files.totals))
    text = f"{out} has the traces of {len(files_of_ranks)} of {sizes[0]} ranks on {counted(len(clocks), 'host')}"
    older = f"; {sum(map(int, dropped.values()))} older events were dropped" if dropped else ""
    return f"{text}{older}\n\n{files.totals.table()}"


@contextlib.contextmanager
def _reading_trace(path: Path) -> Iterator[None]:
    """Say that *path* is no trace of a rank if what it says cannot be read."""
    try:
        yield
    except _WRONG as error:
        raise MeshcommError(f"{path} is no trace of a rank: {quote(error)}") from None


def _load(path: Path) -> tuple[_About, list[TraceEvent]]:
    """Return what the file of a rank tells about itself, and its events."""
    if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"it must be a file of at most {_MAX_FILE_BYTES} bytes")
    text = path.read_bytes()
    if sum(map(text.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise ValueError(f"it has more than {_MAX_VALUES} values")
    content = json.loads(text)
    return content["otherData"], list(content["traceEvents"])
