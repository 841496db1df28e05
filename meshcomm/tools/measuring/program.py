"""Traces of whole programs: with ``MESHCOMM_TRACE=folder`` each rank writes its trace to a file there when it ends.

At the end of a program no rank can know whether the others still run, so ranks do not communicate for their traces.
``python -m meshcomm trace FOLDER out.json`` merges the files into one trace. Ranks on one host have one clock. The
clocks of several hosts are compared by the time of day on each host, which NTP keeps equal to some milliseconds.
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
"""The most JSON values in a file: an event has some dozen, and each takes up to 72 bytes of memory."""

_MAX_FILE_BYTES = 2**28
"""Bytes: a larger file is no trace of a rank. An event takes some 300 bytes, and a rank keeps a limited number."""


class _ProgramTrace(Events):
    """The last events of this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(DEFAULT_MAX_EVENTS)
        self._folder = folder
        self._process = os.getpid()
        self._rank_and_size: tuple[int, int] | None = None

    def on_call_end(self, span: Span) -> None:
        super().on_call_end(span)
        if self._rank_and_size is None:
            self._rank_and_size = comm_world()  # at the end MPI may be finalized
            with contextlib.suppress(OSError):  # a file of an earlier job
                (resolved(self._folder) / f"rank-{self._rank_and_size[0]}.json").unlink()

    def on_job_end(self) -> None:
        self.write()

    def write(self) -> None:
        """Write the file of this rank, if it has any events."""
        if self.is_empty or forks.is_child or os.getpid() != self._process:
            return
        if (
            folder_in(TRACE_FOLDER) is None or not check_trace_folder()
        ):  # None: who found it wrong has removed the variable
            return
        rank, size = self._rank_and_size or comm_world()
        metadata: _About = {
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
                    document(self.lines(rank, os.uname().nodename, 0, lambda local_time: local_time), metadata)
                )
        except OSError as error:
            say(f"the trace of rank {rank} could not be written: {error}")


def start() -> None:
    """Trace this process from now on to its end, if ``MESHCOMM_TRACE`` asks for it."""
    folder = folder_in(TRACE_FOLDER)
    if folder is not None:
        program_trace = _ProgramTrace(folder)
        recorder.add(program_trace)
        atexit.register(program_trace.write)


_READ_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError)
"""Errors from reading a file that no rank has written."""


_About = TypedDict(
    "_About", {"rank": int, "size": int, "host": str, "dropped events": int, "clock": tuple[int, int]}, total=False
)
"""The metadata of a rank in its file. "clock" has the monotonic time and the time of day at one moment."""


class _RankFile(NamedTuple):
    """The file of a rank: its path, its metadata, and the time of day, in nanoseconds, when its first span began."""

    path: Path
    rank: int
    size: int
    host: str
    dropped: int
    first: int


class _RankFiles:
    """The files of the ranks of a job. Each is read twice: first for its metadata and arrivals, then for its spans.

    So memory holds one file, and for each rank the times at which it began operations that others may wait for.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.clocks: dict[str, tuple[int, int]] = {}
        self.arrivals = Arrivals()
        self.totals = Totals()
        self.files = sorted((self._comparable_file(path) for path in paths), key=lambda file: file.rank)
        self.arrivals.begin = min((file.first for file in self.files), default=0)

    def _comparable_file(self, path: Path) -> _RankFile:
        """Return the metadata of the file at *path*, and add its arrivals, with times of day."""
        with _reading_trace(path):
            metadata, events = _load(path)
            rank, size, dropped = (int(metadata[name]) for name in ("rank", "size", "dropped events"))
            host, (monotonic, time_of_day) = str(metadata["host"]), map(int, metadata["clock"])
            self.clocks.setdefault(host, (monotonic, time_of_day))  # all ranks of a host use one comparison
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
        """Return the nanoseconds to add to the times of a host to get the time of day."""
        monotonic, time_of_day = self.clocks[host]
        return time_of_day - monotonic

    def lines(self) -> Iterator[str]:
        """Yield the events of all ranks as JSON, with times from 0 on and with spans of waiting."""
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
    """Merge the traces of all ranks in *folder* into the file *out*, and return a line and a table about it.

    ``MeshcommError`` if there are no traces, or a file is something else.
    """
    rank_files = _RankFiles(sorted(folder.glob("rank-*.json"), key=lambda path: (len(path.name), path.name)))
    files, clocks = rank_files.files, rank_files.clocks
    if not files:
        raise MeshcommError(
            f"there are no traces in {folder}; with MESHCOMM_TRACE a rank writes rank-NUMBER.json there"
        )
    sizes = sorted({file.size for file in files})
    if len(sizes) > 1:
        sizes_text = " and ".join(map(str, sizes))
        raise MeshcommError(f"{folder} has traces of several jobs, of {sizes_text} ranks: give each job a folder")
    dropped = {str(file.rank): file.dropped for file in files if file.dropped}
    with replacing(out) as file:
        file.writelines(document(rank_files.lines(), {"dropped events by rank": dropped}, rank_files.totals))
    text = f"{out} has the traces of {len(files)} of {sizes[0]} ranks on {counted(len(clocks), 'host')}"
    dropped_text = f"; {sum(map(int, dropped.values()))} older events were dropped" if dropped else ""
    return f"{text}{dropped_text}\n\n{rank_files.totals.table()}"


@contextlib.contextmanager
def _reading_trace(path: Path) -> Iterator[None]:
    """Return a context that raises ``MeshcommError`` for errors from reading *path*."""
    try:
        yield
    except _READ_ERRORS as error:
        raise MeshcommError(f"{path} is no trace of a rank: {quote(error)}") from None


def _load(path: Path) -> tuple[_About, list[TraceEvent]]:
    """Return the metadata and the events in the file of a rank."""
    if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"it must be a file of at most {_MAX_FILE_BYTES} bytes")
    text = path.read_bytes()
    if sum(map(text.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise ValueError(f"it has more than {_MAX_VALUES} values")
    content = json.loads(text)
    return content["otherData"], list(content["traceEvents"])
